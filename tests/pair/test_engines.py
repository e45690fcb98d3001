"""Whatever computes the models, the text is the target's own: equal at temperature 0 and under
coupling, and by a chi-squared test of short sequences where the preset draws by the rejection rule.

Of a target in fewer bits or as a GGUF file the target is what those weights say. One that does not
promise the same bits in every batch rounds differently when others share its passes; where two
tokens tie to that rounding, a text may then be another. `make test-texts` asks 32 prompts and 2,000
sequences each, `make test` a few of some, `make test-long` of some more: of int8, which draws as
float32 does, texts alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tandem.backends.model_source import AUTO
from tandem.demo import demo_folder
from tandem.specdec.presets import PRESETS
from tandem.suite.models import ModelPair, choose_model, demo_source, load_pair
from tandem.testing.lossless import LosslessPlan, check_presets
from tests.long_runs import LONG
from tests.pair.test_text_equality import prompts
from tools.write_gguf import write_gguf

ALL = 125
"""`--prompts` of `make test-texts`."""
ALL_PRESETS = ("coupled", "dssd")
LAST_BIT = 1 / 16
"""By so much two logits of 8 to 16 differ in bfloat16 if only their last bit does."""


@dataclass(frozen=True, slots=True)
class Sides:
    """How both models are computed; GGUF names a kind of quantised file of the demo model. `quick`
    and `long`: the presets that `make test` asks, and those that `make test-long` asks."""

    draft_engine: str = AUTO
    draft_dtype: str = "float32"
    target_dtype: str = "float32"
    draft_gguf: str = ""
    target_gguf: str = ""
    quick: tuple[str, ...] = ()
    long: tuple[str, ...] = ()


SIDES = {
    "float32": Sides(),
    "bfloat16": Sides(draft_dtype="bfloat16", target_dtype="bfloat16"),
    "int8": Sides(draft_dtype="int8", target_dtype="int8", long=("coupled",)),
    "int4": Sides(draft_dtype="int4", target_dtype="int4"),
    "an int4 draft for a float32 target": Sides(draft_dtype="int4"),
    "lookup": Sides(draft_engine="lookup"),
    "a GGUF draft": Sides(draft_gguf="Q8_0", quick=("coupled",), long=("dssd",)),
    "GGUF on both sides": Sides(draft_gguf="Q8_0", target_gguf="F32"),
}


def pair_of(sides: Sides, folder: Path) -> ModelPair:
    sources = {name: demo_source(name) for name in ("demo-draft", "demo-target")}
    for name, kind in (("demo-draft", sides.draft_gguf), ("demo-target", sides.target_gguf)):
        if kind:
            sources[name] = str(write_gguf(demo_folder(name), folder / f"{name}.gguf", kind=kind))
    if sides.draft_engine == "lookup":
        sources["demo-draft"] = "models/demo-target"
    draft = choose_model(sources["demo-draft"], dtype=sides.draft_dtype, engine=sides.draft_engine)
    target = choose_model(sources["demo-target"], dtype=sides.target_dtype)
    return load_pair(draft, target)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "long"),
    [
        *((name, False) for name in SIDES),
        *(pytest.param(name, True, marks=LONG) for name, sides in SIDES.items() if sides.long),
    ],
)
async def test_texts_and_short_sequences_are_the_target_s(
    name: str, long: bool, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    every = pytestconfig.getoption("--prompts") >= ALL
    some = SIDES[name].long if long else SIDES[name].quick
    if every and long:
        pytest.skip("all presets are asked anyway")
    if not (every or some):
        pytest.skip("takes minutes for all engines: make test-texts")
    pair = pair_of(SIDES[name], tmp_path)
    asked = tuple(tuple(pair.tokenizer.encode(text)) for text in prompts(32 if every else 3))
    plan = LosslessPlan(asked, 24 if every else 10, 2000 if every else 100, 2, seed=5)
    presets = [PRESETS[each] for each in (ALL_PRESETS if every else some)]
    closest = 0.0 if pair.target.capabilities.same_bits else LAST_BIT
    for check in await check_presets(pair, presets, plan):
        assert len(check.divergences) == sum(check.different.values()), check
        gaps = [each.gap for each in check.divergences]
        assert all(gap is not None and gap <= closest for gap in gaps), check
        assert check.sequences is None or check.sequences.fits, check
