"""Single choices of a preset by name."""

import pytest

from tandem.core.errors import InvalidArgument
from tandem.specdec.choices import Predraft, RejectionPayload
from tandem.specdec.overrides import (
    check_overrides,
    field_names,
    with_overrides,
)
from tandem.specdec.presets import PRESETS, Preset

PICOSPEC = PRESETS["picospec"]


def changed_by(preset: Preset, texts: list[str]) -> Preset:
    return with_overrides(preset, texts)


def test_choices_change_one_by_one() -> None:
    changed = changed_by(
        PICOSPEC,
        [
            "window=4",
            "schedule.bonus=true",
            "rejection_payload=top_k",
            "confidence_threshold=0.5",
            "predraft = off",
        ],
    )
    assert (changed.schedule.window, changed.schedule.bonus) == (4, True)
    assert (changed.rejection_payload, changed.confidence_threshold) == (
        RejectionPayload.TOP_K,
        0.5,
    )
    assert changed.predraft is Predraft.OFF
    assert changed.schedule.chunk == PICOSPEC.schedule.chunk
    for text, bonus in (("true", True), ("On", True), ("false", False), ("off", False)):
        assert changed_by(PRESETS["dsd"], [f"bonus={text}"]).schedule.bonus is bonus
    assert changed_by(PICOSPEC, ["uplink_precision=float16"]).uplink_precision == "float16"


def test_every_field_can_be_set_to_what_it_is() -> None:
    for preset in PRESETS.values():
        for name in field_names(preset):
            value = preset
            for part in name.split("."):
                value = getattr(value, part)
            assert changed_by(preset, [f"{name}={value}"]) == preset, name


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("window", "not field=value"),
        ("windw=3", "unknown: 'windw'; did you mean 'window'"),
        ("name=other", "unknown: 'name'; known: draft_length"),
        ("window=many", "window must be a whole number, not 'many'"),
        ("bonus=maybe", "bonus must be true or false, not 'maybe'"),
        ("confidence_threshold=much", "confidence_threshold must be a number, not 'much'"),
        ("window=2.5", "window must be a whole number, not '2.5'"),
        ("window=true", "window must be a whole number, not 'true'"),
        ("rejection_payload=none", "rejection_payload must be token, full_distribution"),
        ("uplink_precision=float64", "must be float32, float16, not 'float64'"),
    ],
)
def test_what_is_no_override(override: str, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words) as caught:
        changed_by(PICOSPEC, [override])
    assert caught.value.field == "overrides"


def test_a_tree_and_a_draft_length_change_all_that_goes_with_them() -> None:
    grown = changed_by(PRESETS["mc-dsd"], ["expansion=3,2"])
    assert (grown.expansion, grown.schedule.window, grown.schedule.chunk) == ((3, 2), 2, 2)
    assert changed_by(grown, [" draft_length = 3 "]).expansion == (3, 2, 1)
    for override in ("expansion=3,x", "expansion=", "draft_length=many"):
        with pytest.raises(InvalidArgument, match="whole number") as caught:
            changed_by(PRESETS["mc-dsd"], [override])
        assert caught.value.field == override.partition("=")[0]


@pytest.mark.parametrize(
    ("overrides", "fits"),
    [
        (["window=8"] * 32, True),
        (["window=8"] * 33, False),
        (["window=" + "8".zfill(121)], True),
        (["window=" + "8".zfill(122)], False),
        ([], True),
    ],
)
def test_how_many_there_may_be_and_how_long(overrides: list[str], fits: bool) -> None:
    if fits:
        check_overrides(overrides)
        return
    with pytest.raises(InvalidArgument, match=r"^overrides: "):
        check_overrides(overrides)


def test_a_field_of_a_part_may_be_named_by_itself() -> None:
    changed = changed_by(PRESETS["tslt"], ["top_k=5", "truncation.top_p=0.5"])
    assert (changed.truncation.top_k, changed.truncation.top_p) == (5, 0.5)
    with pytest.raises(InvalidArgument, match=r"unknown: 'schedule\.top_k'"):
        changed_by(PRESETS["tslt"], ["schedule.top_k=5"])


@pytest.mark.parametrize(
    "text", ["draft_length=3,4", "draft_length=true", "draft_length=2.5", "expansion=true"]
)
def test_lengths_are_whole_numbers(text: str) -> None:
    field = text.partition("=")[0]
    one = "a whole number," if field == "draft_length" else "whole numbers, for example 2,2,2,"
    with pytest.raises(InvalidArgument, match=f"must be {one}") as caught:
        changed_by(PRESETS["mc-dsd"], [text])
    assert caught.value.field == field


def test_a_number_becomes_what_its_field_holds() -> None:
    changed = changed_by(PRESETS["auto"], ["confidence_threshold=1", "payload_top=7"])
    assert (type(changed.confidence_threshold), changed.confidence_threshold) == (float, 1.0)
    assert (type(changed.payload_top), changed.payload_top) == (int, 7)
    with pytest.raises(InvalidArgument, match="confidence_threshold must be a number, not 'true'"):
        changed_by(PRESETS["auto"], ["confidence_threshold=true"])
    with pytest.raises(InvalidArgument, match="bonus must be true or false, not '1'"):
        changed_by(PRESETS["auto"], ["bonus=1"])


def test_later_overrides_win() -> None:
    assert changed_by(PICOSPEC, ["window=4", "window=6"]).schedule.window == 6


def test_words_are_read_in_any_case() -> None:
    assert changed_by(PRESETS["dsd"], ["bonus=FALSE"]).schedule.bonus is False
    assert changed_by(PRESETS["dsd"], ["rejection_payload=TOKEN"]) == PRESETS["dsd"]
