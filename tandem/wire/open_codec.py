"""The opening of a verifier stream to protobuf and back.
Invariant: what is too long to be taken, or a choice that is unknown, raises InvalidArgument naming
the field before anything is made of it; ranges are checked where session and vocabulary are known.
"""

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from tandem.core.errors import InvalidArgument, check_count
from tandem.core.probs import Truncation
from tandem.core.prompt import MAX_IMAGES
from tandem.net.tenant import check_tenant_id
from tandem.specdec.choices import (
    Acceptance,
    CloudDrafts,
    PredraftOrder,
    RejectionPayload,
    Uplink,
)
from tandem.specdec.messages import Open
from tandem.specdec.presets import MAX_DRAFT_LENGTH, VerifySettings
from tandem.wire.common_codec import (
    choice_of,
    numbers_of,
    params_from_proto,
    params_to_proto,
    same_fields,
)
from tandem_api.verifier.v1 import verifier_pb2 as pb

CLOUD_DRAFTS: dict[CloudDrafts, Any] = {
    CloudDrafts.NONE: pb.CLOUD_DRAFTS_UNSPECIFIED,
    **numbers_of(
        (CloudDrafts.MODEL, CloudDrafts.LOOKUP, CloudDrafts.ANY), pb.CloudDrafts, "CLOUD_DRAFTS"
    ),
}
"""What the cloud drafts itself, as it is asked for and as it is answered."""
_CHOICES: dict[str, dict[Any, Any]] = {
    "acceptance": numbers_of(Acceptance, pb.AcceptanceRule, "ACCEPTANCE_RULE"),
    "uplink": numbers_of(Uplink, pb.UplinkPayload, "UPLINK_PAYLOAD"),
    "rejection_payload": numbers_of(RejectionPayload, pb.RejectionPayload, "REJECTION_PAYLOAD"),
    "uplink_precision": numbers_of(("float32", "float16"), pb.Precision, "PRECISION"),
    "exit_order": numbers_of(PredraftOrder, pb.EarlyOrder, "EARLY_ORDER"),
    "cloud_drafts": CLOUD_DRAFTS,
}
# Fields that have one form here and in protobuf.
_OPEN = (
    *("vocabulary_hash", "vocabulary_size", "prompt_ids", "committed_ids"),
    *("tenant", "public_tokens", "allows_memory"),
)
_OTHER_FORM = (*_CHOICES, "preset_name", "truncation")
_SETTINGS = tuple(field.name for field in fields(VerifySettings) if field.name not in _OTHER_FORM)


def open_to_proto(opening: Open) -> pb.Open:
    """Return what the cloud must know of a session."""
    settings = opening.settings
    return pb.Open(
        params=params_to_proto(opening.params),
        preset=settings.preset_name,
        draft_top_k=settings.truncation.top_k,
        draft_top_p=settings.truncation.top_p,
        **{name: numbers[getattr(settings, name)] for name, numbers in _CHOICES.items()},
        **_named(opening, _OPEN),
        **_named(settings, _SETTINGS),
    )


def open_from_proto(opening: pb.Open, context_length: int) -> dict[str, Any]:
    """Return the fields of an `Open`. Raises InvalidArgument naming the field."""
    check_count(len(opening.prompt_ids), context_length, "prompt_ids")
    check_count(len(opening.committed_ids), context_length, "committed_ids")
    check_count(len(opening.expansion), MAX_DRAFT_LENGTH, "expansion")
    check_count(len(opening.params.images), MAX_IMAGES, "images")
    check_tenant_id(opening.tenant)
    if opening.public_tokens > len(opening.prompt_ids):
        why = f"{opening.public_tokens} of {len(opening.prompt_ids)} prompt_ids"
        raise InvalidArgument("public_tokens", why)
    numbers = {name: getattr(opening, name) for name in _CHOICES}
    numbers["exit_order"] = opening.exit_order or pb.EARLY_ORDER_CONFIDENCE
    settings = VerifySettings(
        preset_name=opening.preset,
        truncation=Truncation(opening.draft_top_k, opening.draft_top_p),
        **{name: choice_of(_CHOICES[name], number, name) for name, number in numbers.items()},
        **same_fields(opening, _SETTINGS),
    )
    params = params_from_proto(opening.params)
    return {"params": params, "settings": settings, **same_fields(opening, _OPEN)}


def _named(owner: object, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(owner, name) for name in names}
