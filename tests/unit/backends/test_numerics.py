"""What a token's logits may depend on: its sequence, nothing else."""

import copy
from typing import Any

import numpy as np
import pytest
import torch

from tandem.backends.interface import ForwardRequest
from tandem.backends.torch.engine import HuggingFaceEngine
from tandem.core.errors import InvalidArgument
from tests.unit.backends.reference_models import FAST_PATH, pair, tokens


@pytest.mark.parametrize("name", FAST_PATH)
def test_llama_and_generic_path_agree(name: str) -> None:
    sequence = tuple(tokens(50, seed=1))
    answers = []
    for fast_path in (True, False):
        engine = pair(name, fast_path=fast_path).engine
        session = engine.open(60)
        answers += engine.forward([ForwardRequest(session, sequence, 50)])
        session.close()
    assert np.abs(answers[0] - answers[1]).max() <= 1e-5


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_logits_do_not_depend_on_the_rest_of_the_pack(name: str) -> None:
    engine, sequence = pair(name).engine, tuple(tokens(20, seed=2))

    def beside(others: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        sessions = [engine.open(40) for _ in range(others + 1)]
        rest = [
            ForwardRequest(s, tuple(tokens(i + 3, seed=i)), 1) for i, s in enumerate(sessions[1:])
        ]
        answers = engine.forward([*rest[:1], ForwardRequest(sessions[0], sequence, 20), *rest[1:]])
        for session in sessions:
            session.close()
        return answers[min(others, 1)]

    alone = beside(0)
    for others in (1, 2, 7):
        assert np.abs(beside(others) - alone).max() <= 3e-6


def test_one_token_at_a_time_or_all_at_once() -> None:
    engine, sequence = pair("llama").engine, tokens(40, seed=3)
    whole, steps = engine.open(40), engine.open(40)
    (at_once,) = engine.forward([ForwardRequest(whole, tuple(sequence), 40)])
    one_by_one = [engine.forward([ForwardRequest(steps, (token,), 1)])[0] for token in sequence]
    assert np.abs(at_once - np.concatenate(one_by_one)).max() <= 5e-6
    whole.close()
    steps.close()


def test_a_layer_with_a_state_of_its_own_is_refused() -> None:
    """A layer that mixes neighbouring tokens outside attention, as convolutional hybrids do."""
    model: Any = copy.deepcopy(pair("qwen2", fast_path=False).reference)
    layer = model.get_submodule("model.layers.1.mlp")
    layer.register_forward_hook(lambda _, __, out: out + torch.roll(out, 1, 1))
    with pytest.raises(InvalidArgument, match="split over passes"):
        HuggingFaceEngine(model, model_name="mixed", vocabulary_hash="x", fast_path=False)
