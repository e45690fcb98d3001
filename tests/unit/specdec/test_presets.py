"""Presets are data: which compositions there are, and which would not give the target's
distribution."""

from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from tandem.core.errors import InvalidArgument
from tandem.core.probs import Truncation
from tandem.specdec.choices import (
    Acceptance,
    CloudDrafts,
    Control,
    Predraft,
    PredraftOrder,
    RejectionPayload,
    Schedule,
    Uplink,
)
from tandem.specdec.overrides import with_overrides
from tandem.specdec.presets import (
    MAX_DRAFT_LENGTH,
    PRESETS,
    Preset,
    VerifySettings,
)


def changed(name: str, schedule: dict[str, Any] | None = None, **choices: Any) -> Preset:
    """A named preset with choices, also of its schedule, changed; none is left to a clock."""
    preset = PRESETS[name]
    return replace(preset, schedule=replace(preset.schedule, **(schedule or {})), **choices)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_valid_at_every_draft_length(name: str) -> None:
    assert PRESETS[name].name == name
    PRESETS[name].validate()
    for length in (1, 2, 64):
        PRESETS[name].with_draft_length(length).validate()


def test_presets_cannot_be_changed_in_place() -> None:
    with pytest.raises(TypeError):
        PRESETS["dsd"] = PRESETS["ar"]  # type: ignore[index]
    with pytest.raises(FrozenInstanceError):
        PRESETS["dsd"].payload_top = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("preset", "field"),
    [
        (changed("dsd", {"window": -1}), "window"),
        (changed("dsd", {"window": 65, "bonus": False}), "window"),
        (changed("dssd", {"window": 257, "bonus": False}), "window"),
        (changed("ar", {"decode_when_idle": False}), "decode_when_idle"),
        (changed("dsd", {"chunk": 0}), "chunk"),
        (changed("dsd", {"chunk": 5}), "chunk"),
        (changed("dssd", payload_top=-1), "payload_top"),
        (changed("dssd", payload_top=4097), "payload_top"),
        (changed("picospec-top-k", payload_top=0), "payload_top"),
        (changed("fsd", exits=0), "exits"),
        (changed("mc-dsd", confidence_threshold=0.5), "confidence_threshold"),
        (changed("dssd", payload_tail_draws=-1), "payload_tail_draws"),
        (changed("dssd", payload_tail_draws=257), "payload_tail_draws"),
        (
            changed("coupled", rejection_payload=RejectionPayload.FULL_DISTRIBUTION),
            "rejection_payload",
        ),
        (
            changed("coupled", rejection_payload=RejectionPayload.LOSSLESS_SPARSE),
            "rejection_payload",
        ),
        (changed("dsd", uplink=Uplink.IDS), "uplink"),
        (changed("dssd", rejection_payload=RejectionPayload.TOKEN), "rejection_payload"),
        (changed("dssd", {"decode_when_idle": True}), "decode_when_idle"),
        (changed("tslt", truncation=Truncation(top_k=-1)), "draft_top_k"),
        (changed("tslt", truncation=Truncation(top_p=0.0)), "draft_top_p"),
        (changed("coupled", truncation=Truncation(top_p=1.5)), "draft_top_p"),
        (changed("split", {"window": 4, "chunk": 4}), "window"),
        (changed("split", split_layers=0), "split_layers"),
        (changed("ar", split_layers=3), "split_layers"),
        (changed("coupled", uplink=Uplink.HIDDEN_STATES), "split_layers"),
        (changed("dssd", truncate_after_sampling=True), "truncate_after_sampling"),
        (changed("mc-dsd", truncate_after_sampling=True), "truncate_after_sampling"),
        (changed("mc-dsd", expansion=(2, 0, 2)), "expansion"),
        (changed("mc-dsd", expansion=(4, 4, 4)), "expansion"),
        (changed("mc-dsd", expansion=(2, 2)), "expansion"),
        (changed("mc-dsd", {"window": 6}), "expansion"),
        (changed("mc-dsd", {"verify_on_arrival": True}), "expansion"),
        (changed("mc-dsd", {"decode_when_idle": True}), "decode_when_idle"),
        (changed("mc-dsd", {"bonus": False}), "expansion"),
        (changed("picospec", {"prepare_on_arrival": True}), "prepare_on_arrival"),
        (changed("stream", {"prepare_on_arrival": True}), "prepare_on_arrival"),
        (changed("mc-dsd", {"prepare_on_arrival": True}), "prepare_on_arrival"),
        (changed("fsd", {"prepare_on_arrival": True}), "prepare_on_arrival"),
        (changed("mc-dsd", {"token_by_token": True}), "expansion"),
        (changed("mc-dsd", predraft=Predraft.LIKELY_OUTCOMES), "predraft"),
        (changed("mc-dsd", control=Control.LATENCY_AWARE), "control"),
        (changed("mc-dsd", exits=2), "exits"),
        (changed("coupled", control=Control.LEAST_COST), "control"),
        (changed("coupled", cloud_drafts=CloudDrafts.MODEL), "cloud_drafts"),
        (changed("split", cloud_drafts=CloudDrafts.LOOKUP), "cloud_drafts"),
        (changed("cloud-draft", cloud_draft_length=0), "cloud_draft_length"),
        (
            changed("cloud-draft", cloud_draft_length=MAX_DRAFT_LENGTH + 1),
            "cloud_draft_length",
        ),
        (
            changed(
                "mc-dsd",
                uplink=Uplink.PROBABILITIES,
                rejection_payload=RejectionPayload.FULL_DISTRIBUTION,
            ),
            "uplink",
        ),
        (
            changed("mc-dsd", rejection_payload=RejectionPayload.FULL_DISTRIBUTION),
            "rejection_payload",
        ),
        (
            changed("coupled", with_replacement=True).with_expansion((2, 2)),
            "with_replacement",
        ),
    ],
)
def test_what_does_not_fit_is_named(preset: Preset, field: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"^{field}: "):
        preset.validate()


@pytest.mark.parametrize(
    "preset",
    [
        changed("dssd", truncation=Truncation(top_p=0.5)),
        changed("coupled", truncation=Truncation(top_k=3)),
        changed("tslt", rejection_payload=RejectionPayload.LOSSLESS_SPARSE),
        changed("mc-dsd", with_replacement=True, uplink=Uplink.FULL_DISTRIBUTIONS),
        PRESETS["mc-dsd"].with_expansion((64,)),
        PRESETS["dsd"].with_expansion((3, 1, 2)),
        PRESETS["coupled"].with_expansion((2, 2)),
        changed("dsd", {"window": 64, "bonus": False}),
        changed("dssd", {"window": 8, "bonus": False}),
        changed("dssd", payload_top=0, payload_tail_draws=0),
        changed("dsd", rejection_payload=RejectionPayload.FULL_DISTRIBUTION),
        changed("coupled", {"window": 1, "chunk": 1, "decode_when_idle": True}),
    ],
)
def test_what_fits(preset: Preset) -> None:
    preset.validate()


@pytest.mark.parametrize("length", [0, -1, 65])
def test_draft_lengths_out_of_range(length: int) -> None:
    for preset in PRESETS.values():
        with pytest.raises(InvalidArgument, match=r"^draft_length: "):
            preset.with_draft_length(length)


def test_a_draft_length_keeps_the_number_of_chunks() -> None:
    pipelined = changed("dsd", {"window": 8, "chunk": 4, "bonus": False})
    schedule = pipelined.with_draft_length(3).schedule
    assert schedule == Schedule(window=6, chunk=3, bonus=False)
    assert PRESETS["coupled"].with_draft_length(7).schedule == Schedule(window=7, chunk=7)
    assert PRESETS["ar"].with_draft_length(7) == PRESETS["ar"]


@pytest.mark.parametrize("name", ["ar", "stream", "auto"])
def test_a_cloud_that_goes_on_alone_may_draft_instead(name: str) -> None:
    drafting = with_overrides(PRESETS[name], ("cloud_drafts=lookup",))
    drafting.validate()
    assert drafting.cloud_drafts is CloudDrafts.LOOKUP
    chosen = CloudDrafts.ANY if name == "auto" else CloudDrafts.NONE
    assert PRESETS[name].cloud_drafts is chosen
    length = PRESETS[name].verify_settings.cloud_draft_length
    assert (length > 0) == (name == "auto"), "else as an older edge says"


@pytest.mark.parametrize(
    "overrides",
    [
        ["expansion=2,2"],
        ["control=fixed", "decode_when_idle=false"],
        ["control=fixed", "acceptance=rejection", "window=0"],
    ],
)
def test_where_other_choices_leave_no_room_for_drafts_of_the_cloud_auto_asks_for_none(
    overrides: list[str],
) -> None:
    """They are no demand, unlike those of a model or by lookup."""
    changed = with_overrides(PRESETS["auto"], overrides)
    changed.validate()
    settings = changed.verify_settings
    assert (settings.cloud_drafts, settings.cloud_draft_length) == (CloudDrafts.NONE, 0)
    assert not changed.may_draft_in_cloud
    with pytest.raises(InvalidArgument, match=r"^cloud_drafts: "):
        replace(
            changed.verify_settings, cloud_drafts=CloudDrafts.ANY, cloud_draft_length=4
        ).validate()


def test_auto_may_have_drafts_of_the_cloud_and_demands_none() -> None:
    auto = PRESETS["auto"]
    assert auto.may_draft_in_cloud
    assert not auto.drafts_in_cloud
    assert auto.verify_settings.cloud_drafts is CloudDrafts.ANY
    assert not with_overrides(auto, ("cloud_drafts=none",)).may_draft_in_cloud


def test_a_draft_length_is_the_cloud_s_where_the_edge_drafts_nothing() -> None:
    longer = PRESETS["cloud-draft"].with_draft_length(7)
    assert (longer.cloud_draft_length, longer.schedule.window) == (7, 0)
    both = replace(PRESETS["stream"], cloud_drafts=CloudDrafts.MODEL).with_draft_length(7)
    assert (both.cloud_draft_length, both.schedule.chunk) == (4, 7)


def test_a_preset_s_own_cut_fits_any_vocabulary() -> None:
    tslt = PRESETS["tslt"]
    assert tslt.fitted(64) == replace(tslt, truncation=replace(tslt.truncation, top_k=64))
    assert tslt.fitted(32_000) == tslt
    assert PRESETS["dsd"].fitted(64) == PRESETS["dsd"]


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
    assert deeper.tree_nodes <= 64


@pytest.mark.parametrize("name", ["dsd", "dssd", "tslt"])
def test_nobody_is_first_under_rejection_sampling(name: str) -> None:
    """Under Gumbel coupling the token is the same whoever is."""
    racing: list[tuple[dict[str, Any], Control, str]] = [
        ({"window": 8}, Control.FIXED, "bonus"),
        ({"token_by_token": True, "verify_on_arrival": True}, Control.FIXED, "bonus"),
        ({}, Control.LATENCY_AWARE, "bonus"),
        ({"decode_when_idle": True}, Control.FIXED, "decode_when_idle"),
        ({"decode_when_idle": True, "bonus": False}, Control.FIXED, "decode_when_idle"),
    ]
    for schedule, control, field in racing:
        with pytest.raises(InvalidArgument, match=rf"^{field}: "):
            changed(name, schedule, control=control).validate()
        changed("coupled", schedule, control=control).validate()
        if field == "bonus":
            changed(name, {**schedule, "bonus": False}, control=control).validate()
    for alone in ("token_by_token", "verify_on_arrival"):
        changed(name, {alone: True}).validate()
    changed("ar", acceptance=Acceptance.REJECTION).validate()


def test_what_the_draft_kv_holds_beside_the_text() -> None:
    """A branch is at most a window, a chunk and the outcome long, and no longer than the answer."""
    assert PRESETS["coupled"].spare_tokens(99) == 0
    assert PRESETS["mc-dsd"].spare_tokens(9) == 14  # 2 + 4 + 8 nodes
    assert replace(PRESETS["coupled"], predraft=Predraft.LIKELY_OUTCOMES).spare_tokens(99) == 4 * (
        4 + 4 + 1
    )
    assert PRESETS["auto"].spare_tokens(99) == 8 * (16 + 8 + 1)
    assert PRESETS["auto"].spare_tokens(10) == 8 * 10


def test_too_many_nodes_narrow_the_deepest_layers_one_candidate_at_a_time() -> None:
    wide = PRESETS["mc-dsd"].with_expansion((4, 3, 3))  # 4 + 12 + 36 nodes
    assert wide.with_draft_length(4).expansion == (4, 3, 2, 1)  # 4 + 12 + 24 + 24
    assert wide.with_draft_length(2).expansion == (4, 3)


def test_only_windows_that_a_controller_fills_are_widened_for_a_prediction() -> None:
    widened = {name for name, preset in PRESETS.items() if preset.widened() != preset}
    assert widened == {"auto"}
    for name in widened:
        wide = PRESETS[name].widened()
        wide.validate()
        assert (wide.schedule.window, wide.schedule.chunk) == (64, PRESETS[name].schedule.chunk)
        assert wide.widened() == wide


@pytest.mark.parametrize(
    ("preset", "field"),
    [
        (changed("fsd", exits=1), ""),
        (changed("fsd", exits=0), "exits"),
        (changed("fsd", exits=64), ""),
        (changed("fsd", exits=65), "exits"),
        (changed("split", split_layers=1), ""),
        (changed("split", split_layers=1024), ""),
        (changed("split", split_layers=1025), "split_layers"),
        (changed("ar", split_layers=-1), "split_layers"),
        (changed("split", rejection_payload=RejectionPayload.TOP_K), "rejection_payload"),
        (changed("dsd", {"window": 64, "bonus": False}), ""),
        (changed("dssd", payload_top=4096), ""),
        (changed("dssd", payload_tail_draws=256), ""),
        (changed("picospec-top-k", payload_top=1), ""),
        (changed("dssd-full", payload_top=0), ""),
        (changed("dssd", confidence_threshold=float("nan")), "confidence_threshold"),
        (changed("ar", acceptance=Acceptance.REJECTION), ""),
        (changed("dsd", {"window": 4, "chunk": 1}), "bonus"),
        (changed("dsd", {"window": 4, "chunk": 1, "bonus": False}), ""),
        (changed("tslt", truncate_after_sampling=True), ""),
        (changed("tslt", truncation=Truncation(top_k=4_194_304)), ""),
        (changed("tslt", truncation=Truncation(top_k=4_194_305)), "draft_top_k"),
        (changed("coupled", {"decode_when_idle": True, "prepare_on_arrival": True}), "prepare_on"),
        (changed("coupled", {"verify_on_arrival": True, "prepare_on_arrival": True}), "prepare_on"),
        (changed("coupled", {"prepare_on_arrival": True}), ""),
        (changed("coupled", {"prepare_on_arrival": True}, exits=1), "prepare_on"),
        (changed("mc-dsd", with_replacement=True), ""),
        (changed("mc-dsd", predraft=Predraft.EARLY_EXITS, exits=0), "exits"),
        (changed("coupled", with_replacement=True), ""),
        (changed("stream", control=Control.LEAST_COST), ""),
    ],
)
def test_the_last_that_fits_and_the_first_that_does_not(preset: Preset, field: str) -> None:
    if not field:
        preset.validate()
        return
    with pytest.raises(InvalidArgument) as caught:
        preset.validate()
    assert caught.value.field.startswith(field)


@pytest.mark.parametrize(
    ("expansion", "fits"),
    [
        ((64,), True),
        ((65,), False),
        ((1,) * 64, True),
        ((1,) * 65, False),
        ((), False),
        ((2, 0), False),
        ((7, 8), True),
        ((8, 8), False),
    ],
)
def test_a_tree_has_64_nodes_at_most(expansion: tuple[int, ...], fits: bool) -> None:
    if fits:
        grown = PRESETS["mc-dsd"].with_expansion(expansion)
        grown.validate()
        assert grown.expansion == expansion
        assert grown.schedule == Schedule(len(expansion), len(expansion))
        return
    with pytest.raises(InvalidArgument, match=r"^expansion: "):
        PRESETS["mc-dsd"].with_expansion(expansion)


def test_a_tree_takes_the_place_of_a_schedule_that_is_chosen_at_run_time() -> None:
    grown = PRESETS["auto"].with_expansion((2, 2))
    grown.validate()
    assert grown.schedule == Schedule(2, 2)
    assert (grown.control, grown.predraft) == (Control.FIXED, Predraft.OFF)
    kept = changed("mc-dsd", {"verify_on_arrival": True}).with_expansion((3,))
    assert kept.schedule == Schedule(1, 1, verify_on_arrival=True), "the rest of it stays"


@pytest.mark.parametrize(
    ("name", "changes", "allowed"),
    [
        ("stream", {}, True),
        ("auto", {}, True),
        ("stream", {"window": 0}, False),
        ("stream", {"verify_on_arrival": False}, False),
        ("stream", {"decode_when_idle": False}, False),
        ("picospec", {}, False),
        ("ar", {}, False),
    ],
)
def test_a_pass_may_take_a_part_of_the_drafts_where_nobody_minds(
    name: str, changes: dict[str, Any], allowed: bool
) -> None:
    settings = replace(PRESETS[name].verify_settings, **changes)
    assert settings.allows_partial_verification is allowed


@pytest.mark.parametrize(
    ("field", "least", "most"),
    [
        ("payload_top", 0, 4096),
        ("payload_tail_draws", 0, 256),
        ("confidence_threshold", 0, 1),
        ("predraft_workers", 1, 32),
        ("predraft_outcomes", 1, 256),
        ("exits", 0, 64),
    ],
)
def test_each_number_has_borders(field: str, least: int, most: int) -> None:
    preset = PRESETS["coupled"]
    for within in (least, most):
        with_overrides(preset, (f"{field}={within}",)).validate()
    for beyond in (most + 1, least - 1):
        with pytest.raises(InvalidArgument) as caught:
            with_overrides(preset, (f"{field}={beyond}",)).validate()
        assert caught.value.field == field


def test_the_cloud_is_told_each_choice_that_concerns_it() -> None:
    """All of them unlike what is assumed where nothing is said."""
    chosen = Preset(
        name="other",
        schedule=Schedule(
            window=6,
            chunk=3,
            verify_on_arrival=True,
            bonus=False,
            decode_when_idle=True,
            prepare_on_arrival=True,
        ),
        acceptance=Acceptance.GUMBEL,
        uplink=Uplink.SPARSE_DISTRIBUTIONS,
        rejection_payload=RejectionPayload.TOP_K,
        uplink_precision="float16",
        payload_top=7,
        payload_tail_draws=5,
        truncation=Truncation(top_k=9),
        expansion=(2, 1),
        with_replacement=True,
        exits=3,
        exit_order=PredraftOrder.RANDOM,
        split_layers=2,
    )
    assert chosen.verify_settings == VerifySettings(
        preset_name="other",
        acceptance=Acceptance.GUMBEL,
        uplink=Uplink.SPARSE_DISTRIBUTIONS,
        rejection_payload=RejectionPayload.TOP_K,
        window=6,
        verify_on_arrival=True,
        decode_when_idle=True,
        prepare_on_arrival=True,
        bonus=False,
        uplink_precision="float16",
        payload_top=7,
        payload_tail_draws=5,
        truncation=Truncation(top_k=9),
        expansion=(2, 1),
        with_replacement=True,
        exits=3,
        exit_order=PredraftOrder.RANDOM,
        split_layers=2,
    )


def test_what_an_edge_does_not_tell_is_as_in_older_releases() -> None:
    told = VerifySettings(
        preset_name="older",
        acceptance=Acceptance.GUMBEL,
        uplink=Uplink.IDS,
        rejection_payload=RejectionPayload.TOKEN,
        window=4,
    )
    assert (told.verify_on_arrival, told.decode_when_idle) == (False, False)
    assert (told.prepare_on_arrival, told.bonus) == (False, True)
    assert (told.payload_top, told.payload_tail_draws) == (64, 4)
    assert (told.expansion, told.with_replacement) == ((), False)
    assert (told.exits, told.split_layers) == (0, 0)
