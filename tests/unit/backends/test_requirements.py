"""Which presets a back end can run."""

import pytest

from tandem.backends.interface import Capabilities
from tandem.backends.requirements import (
    check_preset,
    check_verify_settings,
    fitted_to,
    missing_capabilities,
)
from tandem.core.errors import FailedPrecondition
from tandem.specdec.choices import Predraft
from tandem.specdec.presets import PRESETS
from tandem.testing.scripted import ScriptedEngine
from tests.howto.bigram_backend import BigramEngine

BARE = Capabilities()
CHAINS = (
    *("ar", "dsd", "dssd", "dssd-full", "tslt", "tslt-after"),
    *("picospec", "picospec-preverify", "picospec-top-k"),
    *("auto", "coupled", "split", "cloud-draft"),
)


def test_a_tree_is_drafted_and_judged_as_one() -> None:
    tree, trees = PRESETS["mc-dsd"], Capabilities(trees=True)
    assert missing_capabilities(tree, draft=BARE, target=BARE) == (
        "trees of the draft model",
        "trees of the target model",
    )
    assert missing_capabilities(tree, draft=trees, target=trees) == ()


@pytest.mark.parametrize("name", ["stream", "fsd"])
def test_pre_drafting_needs_forks_of_the_draft_alone(name: str) -> None:
    preset = PRESETS[name]
    assert missing_capabilities(preset, draft=BARE, target=BARE) == ("forks of the draft model",)
    assert missing_capabilities(preset, draft=Capabilities(forks=True), target=BARE) == ()


def test_split_layers_need_a_target_that_begins_behind_them() -> None:
    split = PRESETS["split"]
    assert missing_capabilities(split, draft=BARE, target=BARE) == ("splits of the target model",)
    assert missing_capabilities(split, draft=BARE, target=Capabilities(splits=True)) == ()


def test_a_preset_that_chooses_does_without_what_a_back_end_cannot_do() -> None:
    chooses, pipelined = PRESETS["auto"], PRESETS["stream"]
    without = fitted_to(chooses, BARE)
    without.validate()
    assert (without.predraft, without.spare_tokens(99)) == (Predraft.OFF, 0)
    assert fitted_to(chooses, Capabilities(forks=True)) == chooses
    assert fitted_to(pipelined, BARE) == pipelined, "its forks are what was asked for"


def test_a_refusal_names_the_preset_and_what_is_missing() -> None:
    with pytest.raises(FailedPrecondition, match=r"'stream' needs forks of the draft model"):
        check_preset(PRESETS["stream"], draft=BigramEngine(1))
    check_preset(PRESETS["mc-dsd"], draft=ScriptedEngine(4, lambda _: [0.25] * 4))


def test_the_verifier_refuses_what_its_engine_cannot_judge() -> None:
    tree = PRESETS["mc-dsd"].verify_settings
    with pytest.raises(FailedPrecondition, match="'mc-dsd' needs trees of the target model"):
        check_verify_settings(tree, target=BigramEngine(1))
    check_verify_settings(tree, target=ScriptedEngine(4, lambda _: [0.25] * 4))
    check_verify_settings(PRESETS["coupled"].verify_settings, target=BigramEngine(1))
