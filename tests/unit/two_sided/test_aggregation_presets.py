"""The composition of each preset of two-sided answers, and which choices do not fit each other."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from tandem.core.errors import InvalidArgument
from tandem.core.probs import NO_TRUNCATION, Truncation
from tandem.two_sided.protocol.presets import (
    AGGREGATION_PRESETS,
    AggregationMode,
    AggregationPreset,
    DocumentContext,
    DocumentTransfer,
    Draw,
    LocalProbs,
    Placement,
    ProbsPayload,
    Sources,
    find_aggregation_preset,
)
from tests.composed_presets import composed

HEADS = LocalProbs(
    draw=Draw.INDEPENDENT,
    payload=ProbsPayload.HEAD,
    precision="float16",
    truncation=NO_TRUNCATION,
    cut_after_draw=False,
    head=64,
)
IDS = replace(HEADS, draw=Draw.GUMBEL, payload=ProbsPayload.NONE, head=0)
CUT = replace(HEADS, payload=ProbsPayload.SPARSE, head=0)

AGGREGATED = AggregationMode.AGGREGATOR
COIN = AggregationMode.COIN
BOTH = Sources.BOTH
NONE = DocumentTransfer.NONE
SEPARATE = DocumentContext.SEPARATE
JOINED = DocumentContext.JOINED

COMPOSITIONS: dict[str, tuple[Any, ...]] = {
    "dragon": (AGGREGATED, HEADS, Placement.SCHEDULED, BOTH, NONE, SEPARATE, 8),
    "dragon-device": (AGGREGATED, HEADS, Placement.DEVICE, BOTH, NONE, SEPARATE, 8),
    "dragon-lossy": (
        AGGREGATED,
        replace(CUT, truncation=Truncation(top_p=0.8), cut_after_draw=True),
        *(Placement.SCHEDULED, BOTH, NONE, SEPARATE, 8),
    ),
    "dragon-coupled": (COIN, IDS, Placement.DEVICE, BOTH, NONE, SEPARATE, 8),
    "crcg-device": (COIN, IDS, Placement.DEVICE, Sources.DEVICE, NONE, JOINED, 8),
    "crcg-cloud": (COIN, IDS, Placement.DEVICE, Sources.CLOUD, NONE, JOINED, 8),
    "drcg-text": (COIN, IDS, Placement.DEVICE, BOTH, DocumentTransfer.TEXT, JOINED, 8),
    "drcg-kv": (COIN, IDS, Placement.DEVICE, BOTH, DocumentTransfer.KV, JOINED, 8),
    "drdg-tw": (AGGREGATED, HEADS, Placement.DEVICE, BOTH, NONE, SEPARATE, 1),
    "drdg-sw": (
        *(AggregationMode.ANSWER_COIN, HEADS, Placement.DEVICE),
        *(BOTH, NONE, SEPARATE, 8),
    ),
}


def test_the_composition_of_each_preset() -> None:
    assert COMPOSITIONS.keys() == AGGREGATION_PRESETS.keys()
    for name, expected in COMPOSITIONS.items():
        found = AGGREGATION_PRESETS[name]
        where = found.placement, found.sources, found.transfer, found.context
        assert (found.mode, found.probs, *where, found.ahead) == expected, name
        assert (found.name, found.top) == (name, 16)
        assert found.reweigh_every == 0, name


def test_presets_cannot_be_changed_in_place() -> None:
    with pytest.raises(TypeError):
        AGGREGATION_PRESETS["dragon"] = AGGREGATION_PRESETS["drdg-tw"]  # type: ignore[index]
    with pytest.raises(FrozenInstanceError):
        AGGREGATION_PRESETS["dragon"].ahead = 3  # type: ignore[misc]


def test_an_unknown_name_is_answered_with_those_that_are_known() -> None:
    assert find_aggregation_preset("drdg-sw") is AGGREGATION_PRESETS["drdg-sw"]
    with pytest.raises(InvalidArgument, match="unknown: 'dragom'; did you mean 'dragon'") as caught:
        find_aggregation_preset("dragom")
    assert caught.value.field == "preset"
    assert ", ".join(AGGREGATION_PRESETS) in str(caught.value)


def test_the_cloud_takes_part_unless_the_device_s_documents_alone_count() -> None:
    alone = [name for name, preset in AGGREGATION_PRESETS.items() if not preset.needs_cloud]
    assert alone == ["crcg-device"]


def test_overrides_of_dragon_are_its_ablations() -> None:
    for place in ("cloud", "random"):
        found = composed(f"dragon placement={place}")
        assert found == changed("dragon", placement=Placement(place))
        assert not found.lossy
    cut = composed("dragon payload=sparse top_k=64")
    choices = {"payload": ProbsPayload.SPARSE, "truncation": Truncation(top_k=64)}
    assert cut == changed("dragon", choices)
    assert cut.lossy


def test_two_sides_draft_chains_and_no_trees() -> None:
    preset = AGGREGATION_PRESETS["dragon"]
    assert preset.with_draft_length(3) == replace(preset, ahead=3)
    with pytest.raises(InvalidArgument) as refused:
        preset.with_expansion((2, 2))
    assert refused.value.field == "expansion"


def changed(name: str, probs: dict[str, Any] | None = None, **choices: Any) -> AggregationPreset:
    """A named preset with choices, also of what is sent, changed."""
    preset = AGGREGATION_PRESETS[name]
    return replace(preset, probs=replace(preset.probs, **(probs or {})), **choices)


@pytest.mark.parametrize(
    ("preset", "field"),
    [
        (changed("dragon", ahead=64), ""),
        (changed("dragon", ahead=65), "ahead"),
        (changed("dragon", ahead=1), ""),
        (changed("dragon", ahead=0), "ahead"),
        (changed("dragon", top=4096), ""),
        (changed("dragon", top=4097), "top"),
        (changed("dragon", top=1), ""),
        (changed("dragon", top=0), "top"),
        (changed("dragon", reweigh_every=4096), ""),
        (changed("dragon", reweigh_every=4097), "reweigh_every"),
        (changed("dragon", reweigh_every=1), ""),
        (changed("dragon", reweigh_every=-1), "reweigh_every"),
        (changed("dragon", {"head": 4096}), ""),
        (changed("dragon", {"head": 4097}), "head"),
        (changed("dragon", {"head": 1}), ""),
        (changed("dragon", {"head": 0}), "head"),
        (changed("dragon-coupled", {"head": 4096}), ""),
        (changed("dragon-coupled", {"head": 4097}), "head"),
        (changed("dragon-coupled", {"head": -1}), "head"),
        (changed("dragon-lossy", {"truncation": Truncation(top_k=-1)}), "local_top_k"),
        (changed("dragon-lossy", {"truncation": Truncation(top_p=1.0)}), ""),
        (changed("dragon-lossy", {"truncation": Truncation(top_p=0.0)}), "local_top_p"),
        (changed("dragon-lossy", {"truncation": Truncation(top_p=1.01)}), "local_top_p"),
        (changed("dragon", {"cut_after_draw": True}), "cut_after_draw"),
        (changed("dragon-lossy", {"truncation": Truncation(top_k=4_194_304)}), ""),
        (changed("dragon-lossy", {"truncation": Truncation(top_k=4_194_305)}), "local_top_k"),
        (changed("drdg-sw", reweigh_every=1), "reweigh_every"),
        (changed("drdg-sw", {"payload": ProbsPayload.NONE, "head": 0}), ""),
        (changed("dragon", {"payload": ProbsPayload.NONE, "head": 0}), "probs"),
        (changed("dragon", {"payload": ProbsPayload.FULL, "precision": "float32"}), ""),
        (changed("dragon", {"payload": ProbsPayload.FULL, "precision": "float16"}), "precision"),
        (changed("drcg-text", sources=Sources.DEVICE), "sources"),
        (changed("drcg-kv", sources=Sources.CLOUD), "sources"),
        (changed("drcg-kv", context=SEPARATE), ""),
        (changed("crcg-device", context=SEPARATE, reweigh_every=4), ""),
        (changed("crcg-device", reweigh_every=4), "reweigh_every"),
        (changed("dragon-coupled", context=JOINED), "context"),
        (changed("dragon-coupled", context=JOINED, sources=Sources.CLOUD), ""),
        (changed("dragon-coupled", context=JOINED, transfer=DocumentTransfer.TEXT), ""),
    ],
)
def test_what_does_not_fit_is_named_and_what_fits_is_taken(
    preset: AggregationPreset, field: str
) -> None:
    if not field:
        preset.validate()
        return
    with pytest.raises(InvalidArgument) as refused:
        preset.validate()
    assert refused.value.field == field
