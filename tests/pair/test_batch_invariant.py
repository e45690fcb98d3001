"""The GGUF demo pair where the target is batch-invariant: whatever drafts, and whoever shares the
machine, texts are those of the cloud alone to the last token. `make test` has a draft and a target
in different numbers of bits, `make test-long` both in eight."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.demo import demo_folder
from tandem.specdec.presets import PRESETS
from tandem.suite.models import choose_pair, load_pair
from tandem.testing.lossless import LosslessPlan, check_presets
from tests.long_runs import with_long_cases
from tests.pair.test_text_equality import prompts
from tools.write_gguf import write_gguf


@pytest.mark.parametrize("kind", with_long_cases(["Q8_0", "Q4_0"], ("Q4_0",)))
async def test_texts_are_the_target_s_bit_for_bit(kind: str, tmp_path: Path) -> None:
    sides = {"draft": "Q8_0", "target": kind}
    files = {
        side: str(write_gguf(demo_folder(f"demo-{side}"), tmp_path / f"{side}.gguf", kind=kind))
        for side, kind in sides.items()
    }
    defaults = {
        f"{name}_{side}": value
        for side in sides
        for name, value in (("device", "cpu"), ("dtype", "float32"), ("engine", "auto"))
    }
    options = {
        **files,
        **defaults,
        "exits": "none",
        "demo": False,
        "threads": 0,
        "batch_invariant": True,
    }
    pair = load_pair(*choose_pair(options))
    assert pair.target.capabilities.batch_invariant
    asked = tuple(tuple(pair.tokenizer.encode(text)) for text in prompts(2))
    plan = LosslessPlan(asked, 16, 100, 2, seed=5)
    presets = [PRESETS[name] for name in ("coupled", "stream", "auto")]
    for check in await check_presets(pair, presets, plan):
        assert check.different == {"greedy": 0, "coupled": 0}, check
