"""Openings that a verifier refuses over real gRPC, each with its exact status."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tandem_api.common.v1 import sampling_pb2
from tandem_api.verifier.v1 import verifier_pb2 as pb
from tests.services.scripted_suite import CONTEXT, VOCABULARY
from tests.services.verifier_peer import (
    control,
    dssd_draft,
    ending_of,
    endings_of,
    opening,
)

HUGE = 2**32 - 1


def sampling(**changes: float) -> sampling_pb2.SamplingParams:
    return sampling_pb2.SamplingParams(**{"temperature": 1.0, "top_p": 1.0, **changes})  # type: ignore[arg-type]


def opening_with(*images: bytes) -> pb.VerifyRequest:
    """For a model that reads text only."""
    frame = opening()
    frame.open.params.images.extend(images)
    return frame


LONG = tuple([1] * CONTEXT)

BAD_OPENS = [
    (opening(prompt_ids=()), "prompt_ids"),
    (opening(prompt_ids=(1, VOCABULARY)), "prompt_ids"),
    (opening(prompt_ids=(1, HUGE)), "prompt_ids"),
    (opening(prompt_ids=LONG), "prompt_ids"),
    (opening(committed_ids=(VOCABULARY,)), "committed_ids"),
    (opening(committed_ids=(HUGE,)), "committed_ids"),
    (opening(committed_ids=(1, 2), max_tokens=2), "committed_ids"),
    (opening(max_tokens=0), "max_tokens"),
    (opening(max_tokens=CONTEXT), "max_tokens"),
    (opening(max_tokens=HUGE), "max_tokens"),
    (opening(acceptance=0), "acceptance"),
    (opening(acceptance=99), "acceptance"),
    (opening(uplink=99), "uplink"),
    (opening(uplink_precision=99), "uplink_precision"),
    (opening(rejection_payload=99), "rejection_payload"),
    (opening(payload_top=4097), "payload_top"),
    (opening(payload_tail_draws=257), "payload_tail_draws"),
    (opening(window=257), "window"),
    (opening(window=0), "decode_when_idle"),
    (opening(uplink=pb.UPLINK_PAYLOAD_IDS), "uplink"),
    (
        opening("coupled", rejection_payload=pb.REJECTION_PAYLOAD_FULL_DISTRIBUTION),
        "rejection_payload",
    ),
    (opening(sampling=sampling(temperature=math.nan)), "temperature"),
    (opening(sampling=sampling(temperature=-1.0)), "temperature"),
    (opening(sampling=sampling(temperature=math.inf)), "temperature"),
    (opening(sampling=sampling(top_k=VOCABULARY + 1)), "top_k"),
    (opening(sampling=sampling(top_p=0.0)), "top_p"),
    (opening(sampling=sampling(top_p=math.nan)), "top_p"),
    (opening("tslt", draft_top_k=VOCABULARY + 1), "draft_top_k"),
    (opening("tslt", draft_top_p=0.0), "draft_top_p"),
    (opening("tslt", draft_top_p=1.5), "draft_top_p"),
    (opening("tslt", draft_top_p=math.nan), "draft_top_p"),
    (opening_with(b"GIF89a"), "images"),
    (opening_with(b""), "images"),
    (opening_with(*[b"x"] * 100), "images"),
    (opening("mc-dsd", expansion=(2, 0, 2)), "expansion"),
    (opening("mc-dsd", expansion=(5, 5, 5)), "expansion"),
    (opening("mc-dsd", expansion=(2, 2)), "expansion"),
    (opening("mc-dsd", bonus=False), "expansion"),
    (opening("mc-dsd", uplink=pb.UPLINK_PAYLOAD_IDS), "uplink"),
    (opening("coupled", window=4, expansion=(1,) * 4, with_replacement=True), "with_replacement"),
    (opening(tenant=bytes(33)), "tenant"),
    (opening(public_tokens=4), "public_tokens"),
    (opening(public_tokens=HUGE), "public_tokens"),
    (opening(base=2), "base"),
    (opening(base=HUGE), "base"),
    (dssd_draft(1, 2), "open"),
    (control("ping"), "open"),
    (control("cancel"), "open"),
    (pb.VerifyRequest(), "message"),
]


async def test_bad_openings_are_refused_by_name() -> None:
    endings = await endings_of([(frame,) for frame, _ in BAD_OPENS])
    for (frame, field), ending in zip(BAD_OPENS, endings, strict=True):
        assert ending.code == "INVALID_ARGUMENT", frame
        assert ending.details.startswith(f"{field}: "), frame
        assert not ending.answers


@pytest.mark.parametrize("change", [{"vocabulary_hash": "other"}, {"vocabulary_size": 65}])
async def test_another_vocabulary_is_a_failed_precondition(change: dict[str, Any]) -> None:
    ending = await ending_of(opening(**change))
    assert ending.code == "FAILED_PRECONDITION"
    assert ending.details.startswith("vocabulary_hash: ")


async def test_another_text_at_the_opening_is_data_loss() -> None:
    ending = await ending_of(opening(prefix=5))
    assert ending.code == "DATA_LOSS"
    assert ending.details.startswith("prefix: ")
