"""What a token's logits may depend on: its sequence, nothing else."""

import copy
from typing import Any

import pytest
import torch

from tandem.backends.torch.engine import HuggingFaceEngine
from tandem.core.errors import InvalidArgument
from tests.unit.backends.reference_models import pair


def test_a_layer_with_a_state_of_its_own_is_refused() -> None:
    """A layer that mixes neighbouring tokens outside attention, as convolutional hybrids do."""
    model: Any = copy.deepcopy(pair("qwen2", fast_path=False).reference)
    layer = model.get_submodule("model.layers.1.mlp")
    layer.register_forward_hook(lambda _, __, out: out + torch.roll(out, 1, 1))
    with pytest.raises(InvalidArgument, match="split over passes"):
        HuggingFaceEngine(model, model_name="mixed", vocabulary_hash="x", fast_path=False)
