"""Presets are data: which compositions there are, and which would not give the target's law."""

from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from tandem.core.errors import InvalidArgument
from tandem.core.truncation import Truncation
from tandem.policy.choices import Acceptance, Answer, Control, Predraft, Schedule, Uplink
from tandem.policy.presets import (
    MAX_ANSWER_TAIL_DRAWS,
    MAX_ANSWER_TOP,
    MAX_DRAFT_LENGTH,
    PRESETS,
    Preset,
    find_preset,
)


def changed(name: str, schedule: dict[str, Any] | None = None, **choices: Any) -> Preset:
    """A named preset with choices, also of its schedule, changed."""
    preset = PRESETS[name]
    return replace(preset, schedule=replace(preset.schedule, **(schedule or {})), **choices)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_valid_at_every_draft_length(name: str) -> None:
    assert PRESETS[name].name == name
    PRESETS[name].validate()
    for length in (1, 2, MAX_DRAFT_LENGTH):
        PRESETS[name].with_draft_length(length).validate()


def test_the_composition_of_each_preset() -> None:
    choices = {
        name: (preset.acceptance, preset.uplink, preset.answer) for name, preset in PRESETS.items()
    }
    rejection, shared = Acceptance.REJECTION, Acceptance.SHARED_NOISE
    assert choices == {
        "ar": (shared, Uplink.IDS, Answer.TOKEN),
        "dsd": (rejection, Uplink.FULL_LAWS, Answer.TOKEN),
        "dssd": (rejection, Uplink.PROBABILITIES, Answer.LOSSLESS_SPARSE),
        "dssd-full": (rejection, Uplink.PROBABILITIES, Answer.FULL_LAW),
        "tslt": (rejection, Uplink.SPARSE_LAWS, Answer.TOKEN),
        "picospec": (rejection, Uplink.PROBABILITIES, Answer.LOSSLESS_SPARSE),
        "picospec-top-k": (rejection, Uplink.PROBABILITIES, Answer.TOP_K),
        "mc-dsd": (rejection, Uplink.SPARSE_LAWS, Answer.TOKEN),
        "stream": (shared, Uplink.IDS, Answer.TOKEN),
        "stream-rejection": (rejection, Uplink.SPARSE_LAWS, Answer.TOKEN),
        "coupled": (shared, Uplink.IDS, Answer.TOKEN),
        "predraft": (shared, Uplink.IDS, Answer.TOKEN),
        "fsd": (rejection, Uplink.PROBABILITIES, Answer.LOSSLESS_SPARSE),
    }
    assert [name for name, preset in PRESETS.items() if preset.lossy] == ["picospec-top-k"]
    assert [name for name, preset in PRESETS.items() if not preset.drafts] == ["ar"]


def test_presets_cannot_be_changed_in_place() -> None:
    with pytest.raises(TypeError):
        PRESETS["dsd"] = PRESETS["ar"]  # type: ignore[index]
    with pytest.raises(FrozenInstanceError):
        PRESETS["dsd"].answer_top = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("preset", "field"),
    [
        (changed("dsd", {"window": -1}), "window"),
        (changed("dsd", {"window": 4 * MAX_DRAFT_LENGTH + 1}), "window"),
        (changed("ar", {"decode_when_idle": False}), "decode_when_idle"),
        (changed("dsd", {"chunk": 0}), "chunk"),
        (changed("dsd", {"chunk": 5}), "chunk"),
        (changed("dssd", answer_top=-1), "answer_top"),
        (changed("dssd", answer_top=MAX_ANSWER_TOP + 1), "answer_top"),
        (changed("dssd", answer_tail_draws=-1), "answer_tail_draws"),
        (changed("dssd", answer_tail_draws=MAX_ANSWER_TAIL_DRAWS + 1), "answer_tail_draws"),
        (changed("coupled", answer=Answer.FULL_LAW), "answer"),
        (changed("coupled", answer=Answer.LOSSLESS_SPARSE), "answer"),
        (changed("dsd", uplink=Uplink.IDS), "uplink"),
        (changed("dssd", answer=Answer.TOKEN), "answer"),
        (changed("dssd", {"decode_when_idle": True}), "decode_when_idle"),
        (changed("tslt", truncation=Truncation(top_k=-1)), "draft_top_k"),
        (changed("tslt", truncation=Truncation(top_p=0.0)), "draft_top_p"),
        (changed("coupled", truncation=Truncation(top_p=1.5)), "draft_top_p"),
        (changed("mc-dsd", expansion=(2, 0, 2)), "expansion"),
        (changed("mc-dsd", expansion=(4, 4, 4)), "expansion"),
        (changed("mc-dsd", expansion=(2, 2)), "expansion"),
        (changed("mc-dsd", {"window": 6}), "expansion"),
        (changed("mc-dsd", {"verify_on_arrival": True}), "expansion"),
        (changed("mc-dsd", {"decode_when_idle": True}), "expansion"),
        (changed("mc-dsd", {"bonus": False}), "expansion"),
        (changed("mc-dsd", {"token_by_token": True}), "expansion"),
        (changed("mc-dsd", predraft=Predraft.LIKELY_OUTCOMES), "predraft"),
        (changed("mc-dsd", control=Control.WINDOW), "control"),
        (changed("mc-dsd", exits=2), "exits"),
        (changed("mc-dsd", uplink=Uplink.PROBABILITIES, answer=Answer.FULL_LAW), "uplink"),
        (changed("mc-dsd", answer=Answer.FULL_LAW), "answer"),
        (
            changed("coupled", with_replacement=True).with_expansion((2, 2)),
            "with_replacement",
        ),
    ],
)
def test_what_does_not_fit_is_named(preset: Preset, field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        preset.validate()
    assert caught.value.field == field


@pytest.mark.parametrize(
    "preset",
    [
        changed("dsd", {"decode_when_idle": True}),
        changed("dssd", truncation=Truncation(top_p=0.5)),
        changed("coupled", truncation=Truncation(top_k=3)),
        changed("tslt", answer=Answer.LOSSLESS_SPARSE),
        changed("mc-dsd", with_replacement=True, uplink=Uplink.FULL_LAWS),
        PRESETS["mc-dsd"].with_expansion((64,)),
        PRESETS["dsd"].with_expansion((3, 1, 2)),
        PRESETS["coupled"].with_expansion((2, 2)),
        changed("dsd", {"window": 4 * MAX_DRAFT_LENGTH}),
        changed("dssd", {"window": 8, "bonus": False}),
        changed("dssd", answer_top=0, answer_tail_draws=0),
        changed("dsd", answer=Answer.FULL_LAW),
        changed("coupled", {"window": 1, "chunk": 1, "decode_when_idle": True}),
    ],
)
def test_what_fits(preset: Preset) -> None:
    preset.validate()


@pytest.mark.parametrize("length", [0, -1, MAX_DRAFT_LENGTH + 1])
def test_draft_lengths_out_of_range(length: int) -> None:
    for preset in PRESETS.values():
        with pytest.raises(InvalidArgument) as caught:
            preset.with_draft_length(length)
        assert caught.value.field == "draft_length"


def test_a_draft_length_keeps_the_number_of_chunks() -> None:
    pipelined = changed("dsd", {"window": 8, "chunk": 4, "bonus": False})
    schedule = pipelined.with_draft_length(3).schedule
    assert schedule == Schedule(window=6, chunk=3, bonus=False)
    assert PRESETS["coupled"].with_draft_length(7).schedule == Schedule(window=7, chunk=7)
    assert PRESETS["ar"].with_draft_length(7) == PRESETS["ar"]


def test_a_preset_s_own_cut_fits_any_vocabulary() -> None:
    tslt = PRESETS["tslt"]
    assert tslt.fitted(64) == replace(tslt, truncation=replace(tslt.truncation, top_k=64))
    assert tslt.fitted(32_000) is tslt
    assert PRESETS["dsd"].fitted(64) is PRESETS["dsd"]


@pytest.mark.parametrize(
    ("length", "expansion"),
    [
        (1, (2,)),
        (3, (2, 2, 2)),
        (5, (2, 2, 2, 1, 1)),
        (10, (2, 2, *(1,) * 8)),
        (64, (1,) * 64),
    ],
)
def test_a_draft_length_is_a_tree_s_depth(length: int, expansion: tuple[int, ...]) -> None:
    deeper = PRESETS["mc-dsd"].with_draft_length(length)
    assert deeper.expansion == expansion
    assert deeper.schedule == Schedule(window=length, chunk=length)
    assert deeper.tree_nodes <= MAX_DRAFT_LENGTH


@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        *((preset, preset.name == "stream-rejection") for preset in PRESETS.values()),
        (changed("dsd", {"window": 8}), True),
        (changed("dsd", {"window": 8, "bonus": False}), False),
        (changed("dsd", {"decode_when_idle": True}), True),
        (changed("dssd", {"window": 8}), True),
        (changed("coupled", {"window": 8, "decode_when_idle": True}), False),
    ],
)
def test_where_lateness_decides(preset: Preset, expected: bool) -> None:
    """Under shared noise the token is the same whoever is first; in stop and wait nobody is."""
    assert preset.judges_by_timing is expected


def test_finding_by_name() -> None:
    assert find_preset("dssd") is PRESETS["dssd"]
    with pytest.raises(
        InvalidArgument, match=r"unknown: 'vllm'; there are ar, dsd, dssd"
    ) as caught:
        find_preset("vllm")
    assert caught.value.field == "preset"
