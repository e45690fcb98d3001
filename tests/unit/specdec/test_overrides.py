"""Single choices of a preset by name."""

import pytest

from tandem.core.errors import InvalidArgument
from tandem.specdec.choices import Predraft, RejectionPayload
from tandem.specdec.overrides import field_names, with_overrides
from tandem.specdec.presets import PRESETS

PICOSPEC = PRESETS["picospec"]


def test_choices_change_one_by_one() -> None:
    changed = with_overrides(
        PICOSPEC,
        [
            "window=4",
            "schedule.bonus=true",
            "rejection_payload=top_k",
            "idle_weight=0.5",
            "predraft = off",
        ],
    )
    assert (changed.schedule.window, changed.schedule.bonus) == (4, True)
    assert (changed.rejection_payload, changed.idle_weight) == (RejectionPayload.TOP_K, 0.5)
    assert changed.predraft is Predraft.OFF
    assert changed.schedule.chunk == PICOSPEC.schedule.chunk
    for text, bonus in (("true", True), ("On", True), ("false", False), ("off", False)):
        assert with_overrides(PRESETS["dsd"], [f"bonus={text}"]).schedule.bonus is bonus
    assert with_overrides(PICOSPEC, ["uplink_precision=float16"]).uplink_precision == "float16"


def test_every_field_can_be_set_to_what_it_is() -> None:
    for preset in PRESETS.values():
        for name in field_names(preset):
            value = preset
            for part in name.split("."):
                value = getattr(value, part)
            assert with_overrides(preset, [f"{name}={value}"]) == preset, name


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("window", "not field=value"),
        ("windw=3", "unknown: 'windw'; did you mean 'window'"),
        ("name=other", "unknown: 'name'; there are draft_length"),
        ("window=many", "window must be int"),
        ("bonus=maybe", "bonus must be bool"),
        ("rejection_payload=none", "rejection_payload must be token, full_distribution"),
        ("uplink_precision=float64", "must be one of"),
    ],
)
def test_what_is_no_override(override: str, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words) as caught:
        with_overrides(PICOSPEC, [override])
    assert caught.value.field == "overrides"


def test_a_tree_and_a_draft_length_change_all_that_goes_with_them() -> None:
    grown = with_overrides(PRESETS["mc-dsd"], ["expansion=3,2"])
    assert (grown.expansion, grown.schedule.window, grown.schedule.chunk) == ((3, 2), 2, 2)
    assert with_overrides(grown, [" draft_length = 3 "]).expansion == (3, 2, 1)
    for override in ("expansion=3,x", "expansion=", "draft_length=many"):
        with pytest.raises(InvalidArgument, match="whole numbers") as caught:
            with_overrides(PRESETS["mc-dsd"], [override])
        assert caught.value.field == override.partition("=")[0]
