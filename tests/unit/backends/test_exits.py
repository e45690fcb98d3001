"""Early exits read the right rows of the right layers, in every architecture and on both paths."""

import copy
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM

from tandem.backends.interface import Engine, ForwardCancelled, ForwardRequest, Logits, Session
from tandem.backends.torch.engine import HuggingFaceEngine
from tandem.backends.torch.exit_adapters import ExitAdapters, ExitsDescription, new_adapters
from tandem.core.errors import InvalidArgument
from tandem.testing.paced import PacedEngine
from tandem.testing.scripted import ScriptedEngine, scripted_probs
from tests.unit.backends.reference_models import CONFIGS, CONTEXT, FAST_PATH, VOCABULARY, tokens

LAYERS = (0, 1)
Rows = NDArray[np.float32]


def adapters(trained: bool) -> ExitAdapters:
    """Fresh ones pass a hidden state on as it is; `trained` ones change it."""
    found = new_adapters(ExitsDescription("none", 3, 64, LAYERS, rank=8), seed=1)
    if trained:
        for index, adapter in enumerate(found.adapters):
            torch.nn.init.normal_(adapter.up, generator=torch.Generator().manual_seed(index))
    return found


def engine_of(model: Any, *, fast_path: bool, trained: bool = False) -> HuggingFaceEngine:
    return HuggingFaceEngine(
        copy.deepcopy(model),
        model_name="tiny",
        vocabulary_hash="none",
        fast_path=fast_path,
        exits=adapters(trained),
    )


def reference(name: str) -> torch.nn.Module:
    torch.manual_seed(7)
    found: torch.nn.Module = AutoModelForCausalLM.from_config(
        copy.deepcopy(CONFIGS[name]), attn_implementation="eager"
    ).eval()
    return found


def cut_after(model: torch.nn.Module, name: str, layer: int) -> torch.nn.Module:
    """The model with only its first layers: what an exit without adapter amounts to."""
    config = copy.deepcopy(CONFIGS[name])
    config.num_hidden_layers = layer + 1
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[: layer + 1]
    short: torch.nn.Module = AutoModelForCausalLM.from_config(
        config, attn_implementation="eager"
    ).eval()
    short.load_state_dict(model.state_dict(), strict=False)
    return short


class Heard:
    """What the exits of one request said."""

    def __init__(self) -> None:
        self.logits: dict[int, Logits] = {}

    def __call__(self, index: int, logits: Logits) -> None:
        self.logits[index] = logits

    def request(
        self, session: Session, fed: list[int], logits_to_keep: int, *exits: int
    ) -> ForwardRequest:
        return ForwardRequest(session, tuple(fed), logits_to_keep, exits=exits, on_exit=self)


def logits_of(model: torch.nn.Module, sequence: list[int]) -> Rows:
    with torch.inference_mode():
        found: Rows = model(torch.tensor([sequence])).logits[0].numpy()
    return found


def assert_said(logits: Rows, wanted: Rows, rounded: bool) -> None:
    """The Llama path may multiply what exits say in bfloat16, whose numbers have eight bits."""
    allowed = 2.0**-6 * np.abs(wanted).max() if rounded else 1e-5
    assert np.abs(logits - wanted).max() <= allowed


@pytest.mark.parametrize(
    ("name", "fast_path"),
    [*((name, False) for name in CONFIGS), *((name, True) for name in FAST_PATH)],
)
def test_an_exit_without_training_is_the_model_cut_short(name: str, fast_path: bool) -> None:
    model = reference(name)
    engine = engine_of(model, fast_path=fast_path)
    assert engine.fast_path == fast_path
    assert engine.exit_depths == pytest.approx((1 / 3, 2 / 3))
    one, other = tokens(20, seed=1), tokens(9, seed=2)
    first, second = engine.open(CONTEXT), engine.open(CONTEXT)
    engine.forward([ForwardRequest(first, tuple(one[:15]), 0)])
    heard, also = Heard(), Heard()
    whole, rest = engine.forward(
        [heard.request(first, one[15:], 4, 0, 1), also.request(second, other, 2, 1)]
    )
    assert (set(heard.logits), set(also.logits)) == ({0, 1}, {1})
    for index, layer in enumerate(LAYERS):
        short = cut_after(model, name, layer)
        assert_said(heard.logits[index], logits_of(short, one)[-4:], fast_path)
    assert_said(also.logits[1], logits_of(short, other)[-2:], fast_path)
    assert np.abs(whole - logits_of(model, one)[-4:]).max() <= 1e-5
    assert np.abs(rest - logits_of(model, other)[-2:]).max() <= 1e-5


@pytest.mark.parametrize("name", FAST_PATH)
def test_both_paths_adapt_alike(name: str) -> None:
    model, sequence = reference(name), tokens(12, seed=3)
    said = []
    for fast_path in (True, False):
        engine = engine_of(model, fast_path=fast_path, trained=True)
        heard = Heard()
        engine.forward([heard.request(engine.open(CONTEXT), sequence, 3, 0, 1)])
        said.append(heard.logits)
    plain = logits_of(cut_after(model, name, 0), sequence)[-3:]
    assert np.abs(said[0][0] - plain).max() > 0.1
    for index in (0, 1):
        assert_said(said[0][index], said[1][index], rounded=True)


@pytest.mark.parametrize("fast_path", [True, False])
def test_half_precision_hears_the_exits_too(fast_path: bool) -> None:
    model, sequence = reference("llama"), tokens(12, seed=3)
    exact = engine_of(model, fast_path=fast_path, trained=True)
    half = engine_of(model.to(torch.bfloat16), fast_path=fast_path, trained=True)
    said = []
    for engine in (exact, half):
        heard = Heard()
        engine.forward([heard.request(engine.open(CONTEXT), sequence, 3, 1)])
        said.append(heard.logits[1])
    assert np.linalg.norm(said[0] - said[1]) <= 0.05 * np.linalg.norm(said[0])


def test_an_exit_is_heard_before_the_next_layer_runs() -> None:
    """A pass given up at the last layer has told both exits, one given up before it the first."""
    for name, fast_path in (("llama", True), ("gpt2", False)):
        engine = engine_of(reference(name), fast_path=fast_path)
        for layers, told in ((1, {0}), (2, {0, 1})):
            session, heard = engine.open(CONTEXT), Heard()
            answers = iter([False] * layers + [True])
            request = heard.request(session, tokens(5, seed=4), 2, 0, 1)
            with pytest.raises(ForwardCancelled):
                engine.forward([request], partial(next, answers))
            assert set(heard.logits) == told


def test_exits_that_nobody_reads_are_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(reference("llama"), fast_path=True)
    monkeypatch.setattr("tandem.backends.torch.exit_adapters.ExitAdapter.forward", None)
    engine.forward([ForwardRequest(engine.open(CONTEXT), (1, 2), 1)])
    heard = Heard()
    engine.forward([heard.request(engine.open(CONTEXT), [1, 2], 0, 0, 1)])
    assert not heard.logits


def test_a_tree_is_read_node_by_node() -> None:
    model = reference("llama")
    engine = engine_of(model, fast_path=True)
    context, nodes, parents = tokens(6, seed=5), tokens(4, seed=6), (-1, 0, 0, 2)
    session, heard = engine.open(CONTEXT), Heard()
    engine.forward([ForwardRequest(session, tuple(context), 0)])
    request = heard.request(session, nodes, 4, 1)
    engine.forward([replace(request, parents=parents)])
    short = cut_after(model, "llama", 1)
    path = [*context, nodes[0], nodes[2], nodes[3]]
    assert_said(heard.logits[1][3], logits_of(short, path)[-1], rounded=True)


def scripted() -> ScriptedEngine:
    distributions = [scripted_probs(seed, VOCABULARY, order=50) for seed in (3, 4, 5)]
    return ScriptedEngine(
        VOCABULARY, distributions[2], context_length=CONTEXT, exit_distributions=distributions[:2]
    )


@pytest.mark.parametrize("paced", [False, True])
def test_scripted_exits_follow_their_distributions(paced: bool) -> None:
    engine: Engine = PacedEngine(scripted(), 0.0, 0.0) if paced else scripted()
    assert engine.exit_depths == pytest.approx((1 / 3, 2 / 3))
    heard, sequence = Heard(), tokens(7, seed=8)
    (final,) = engine.forward([heard.request(engine.open(20), sequence, 2, 0, 1)])
    for index, seed in ((0, 3), (1, 4)):
        wanted = np.log(np.asarray(scripted_probs(seed, VOCABULARY, order=50)(tuple(sequence))))
        assert np.allclose(heard.logits[index][-1], wanted, atol=1e-5)
        assert not np.allclose(heard.logits[index], final)


def test_a_paced_pass_tells_each_exit_in_its_time() -> None:
    now = [100.0]

    def clock() -> float:
        now[0] += 1e-6
        return now[0]

    def sleep(duration_s: float) -> None:
        now[0] += duration_s

    engine = PacedEngine(scripted(), 0.010, 0.002, clock=clock, sleep=sleep)
    heard_at: list[float] = []
    request = ForwardRequest(
        engine.open(20), (1, 2), 1, exits=(0, 1), on_exit=lambda *_: heard_at.append(now[0])
    )
    started = now[0]
    engine.forward([request])
    assert [moment - started for moment in heard_at] == pytest.approx([0.004, 0.008], abs=1e-5)
    assert now[0] - started == pytest.approx(0.012, abs=1e-5)


@pytest.mark.parametrize("exits", [(2,), (-1,), (0, 5)])
def test_an_exit_that_is_not_there_is_refused(exits: tuple[int, ...]) -> None:
    for engine in (scripted(), engine_of(reference("llama"), fast_path=True)):
        with pytest.raises(InvalidArgument, match="exits"):
            engine.forward([ForwardRequest(engine.open(10), (1, 2), 1, exits=exits)])
