"""Frames of the verifier conversation: plain values to protobuf and back. Invariant: decoding
bounds-checks everything a peer could get wrong, lengths before contents, and raises InvalidArgument
naming the field; what it returns is safe to hand to the state machines."""

from typing import Any, Protocol

import numpy as np

from tandem.core.codecs import (
    Precision,
    hidden_from_bytes,
    hidden_to_bytes,
    probs_from_bytes,
    probs_to_bytes,
    sparse_probs_from_bytes,
    sparse_probs_to_bytes,
)
from tandem.core.default_sampling import NO_DEFAULTS, DefaultSampling
from tandem.core.errors import InvalidArgument, check_count
from tandem.core.foreign_words import cleaned
from tandem.core.probs import Array
from tandem.core.prompt import MAX_PROMPT_IDS
from tandem.core.sparse_payload import FullPayload, SparsePayload
from tandem.core.tokens import check_token_ids
from tandem.specdec.choices import CloudDrafts, Uplink
from tandem.specdec.cloud_checks import CloudModel
from tandem.specdec.logprobs import PROMPT_LOGPROBS_AT_ONCE
from tandem.specdec.messages import (
    CloudMessage,
    Committed,
    Drafts,
    EdgeMessage,
    Open,
    Opened,
    PromptLogprobs,
)
from tandem.specdec.presets import MAX_DRAFT_LENGTH, VerifySettings
from tandem.specdec.rounds.messages import (
    EarlyVerdict,
    FullDistribution,
    HiddenStates,
    NeedFullDistribution,
    Recovered,
)
from tandem.wire.committed_codec import (
    fill_committed,
    fill_logprobs,
    fill_outcome,
    logprobs_from_proto,
    sparse_from_proto,
    work_from_proto,
)
from tandem.wire.common_codec import MAX_EOS_TOKEN_IDS, choice_of, default_sampling_to_proto
from tandem.wire.frame_codec import (
    CANCEL,
    GOING_AWAY,
    PING,
    PONG,
    FrameCodec,
    FramePart,
    check_share,
)
from tandem.wire.open_codec import (
    CLOUD_DRAFTS,
    open_from_proto,
    open_to_proto,
)
from tandem_api.common.v1.sampling_pb2 import ModelDescription
from tandem_api.verifier.v1 import verifier_pb2 as pb

_OPENED_FIELDS = (
    *("max_draft_length", "cached_tokens"),
    *("same_bits", "batch_invariant", "drafts_never_pay"),
)
_VERDICT_FIELDS = ("exit_index", "accepted", "rejected", "confidence")
"""Fields of the same name in a message here and on the wire."""


class _Model(Protocol):
    @property
    def model_name(self) -> str: ...
    @property
    def vocabulary_hash(self) -> str: ...
    @property
    def vocabulary_size(self) -> int: ...
    @property
    def context_length(self) -> int: ...
    @property
    def eos_token_ids(self) -> frozenset[int]: ...


def describe_model(
    model: _Model,
    device: str = "",
    dtype: str = "",
    kv_tokens: int = 0,
    default_sampling: DefaultSampling = NO_DEFAULTS,
) -> ModelDescription:
    """Describe an engine for `Describe` and `opened`. `kv_tokens`: that its service has room for;
    0: not said."""
    return ModelDescription(
        model_name=model.model_name,
        vocabulary_hash=model.vocabulary_hash,
        vocabulary_size=model.vocabulary_size,
        context_length=model.context_length,
        eos_token_ids=sorted(model.eos_token_ids),
        device=device,
        dtype=dtype,
        kv_tokens=kv_tokens,
        default_sampling=default_sampling_to_proto(default_sampling),
    )


class EdgeCodec(FrameCodec[EdgeMessage, CloudMessage]):
    """The edge's end of one stream: encodes its frames, decodes the cloud's."""

    def __init__(self, vocabulary_size: int, settings: VerifySettings) -> None:
        self._vocabulary_size = vocabulary_size
        self._settings = settings
        sent = (
            FramePart("open", Open, write=_write_open),
            FramePart("drafts", Drafts, write=self._write_drafts),
            FramePart("recovered", Recovered, ("token_id",)),
            FramePart("need_full_distribution", NeedFullDistribution),
            FramePart("hidden_states", HiddenStates, write=self._write_states),
            CANCEL,
            PING,
        )
        received = (
            FramePart("opened", Opened, _OPENED_FIELDS, read=_read_opened),
            FramePart("committed", Committed, read=self._read_committed),
            FramePart("prompt_logprobs", PromptLogprobs, ("first",), read=_read_prompt_logprobs),
            FramePart("early_verdict", EarlyVerdict, _VERDICT_FIELDS, read=self._read_verdict),
            FramePart("full_distribution", FullDistribution, read=self._read_full),
            GOING_AWAY,
            PONG,
        )
        super().__init__(pb.VerifyRequest, sent, received)

    def _write_drafts(self, proto: pb.Drafts, draft: Drafts) -> None:
        proto.token_ids.extend(draft.token_ids)
        proto.end_of_chunk = draft.end_of_chunk
        proto.probabilities.extend(draft.probabilities or ())
        proto.parents.extend(draft.parents or ())
        if draft.distributions is None:
            return
        sparse = self._settings.uplink is Uplink.SPARSE_DISTRIBUTIONS
        encode = sparse_probs_to_bytes if sparse else probs_to_bytes
        raw = [encode(probs, self._settings.uplink_precision) for probs in draft.distributions]
        if sparse:
            proto.sparse_probs.extend(raw)
        else:
            proto.distributions = b"".join(raw)

    def _write_states(self, proto: pb.HiddenStates, message: HiddenStates) -> None:
        proto.states = hidden_to_bytes(message.states, self._settings.uplink_precision)

    def _read_committed(self, committed: pb.Committed) -> dict[str, Any]:
        check_count(len(committed.token_ids), MAX_PROMPT_IDS, "token_ids")
        token_ids = tuple(committed.token_ids)
        check_token_ids(token_ids, self._vocabulary_size, "token_ids")
        check_count(len(committed.path), MAX_DRAFT_LENGTH, "path")
        return {
            "accepted": committed.accepted,
            "token_ids": token_ids,
            "work": work_from_proto(committed.work),
            "logprobs": logprobs_from_proto(committed, MAX_DRAFT_LENGTH + len(token_ids)),
            "cloud_accepted": committed.cloud_accepted,
            "draw_from": self._draw_from(committed),
            "path": tuple(committed.path),
        }

    def _draw_from(self, committed: pb.Committed) -> FullPayload | SparsePayload | None:
        match committed.WhichOneof("draw_from"):
            case "full_distribution":
                return FullPayload(self._probs(committed.full_distribution))
            case "sparse":
                return self._sparse(committed.sparse)
        return None

    def _read_verdict(self, verdict: pb.EarlyVerdict) -> dict[str, Any]:
        check_share(verdict.confidence, "confidence")
        outcome: int | SparsePayload
        match verdict.WhichOneof("outcome"):
            case "token_id":
                check_token_ids((verdict.token_id,), self._vocabulary_size, "token_id")
                outcome = verdict.token_id
            case "sparse":
                outcome = self._sparse(verdict.sparse)
            case _:
                raise InvalidArgument("outcome", "is missing")
        return {"outcome": outcome}

    def _read_full(self, full: pb.Distribution) -> dict[str, Any]:
        return {"target_probs": self._probs(full)}

    def _sparse(self, sparse: pb.SparsePayload) -> SparsePayload:
        payload = sparse_from_proto(sparse)
        payload.validate(self._vocabulary_size)
        return payload

    def _probs(self, probs: pb.Distribution) -> Array:
        return probs_from_bytes(
            probs.probabilities, self._vocabulary_size, "float32", "probabilities"
        )


class CloudCodec(FrameCodec[CloudMessage, EdgeMessage]):
    """The cloud's end of one stream: decodes the edge's frames, encodes its own."""

    def __init__(self, model: CloudModel, device: str = "", dtype: str = "") -> None:
        self._model = model
        self._device = device
        self._dtype = dtype
        self._opened_settings: VerifySettings | None = None
        sent = (
            FramePart("opened", Opened, _OPENED_FIELDS, write=self._write_opened),
            FramePart("committed", Committed, write=fill_committed),
            FramePart("prompt_logprobs", PromptLogprobs, ("first",), write=_write_prompt_logprobs),
            FramePart("early_verdict", EarlyVerdict, _VERDICT_FIELDS, write=fill_outcome),
            FramePart("full_distribution", FullDistribution, write=_write_full),
            GOING_AWAY,
            PONG,
        )
        received = (
            FramePart("open", Open, read=self._read_open),
            FramePart("drafts", Drafts, read=self._read_drafts),
            FramePart("recovered", Recovered, ("token_id",)),
            FramePart("need_full_distribution", NeedFullDistribution),
            FramePart("hidden_states", HiddenStates, read=self._read_states),
            CANCEL,
            PING,
        )
        super().__init__(pb.VerifyResponse, sent, received)

    @property
    def _settings(self) -> VerifySettings:
        """The session's. Raises InvalidArgument before it is open."""
        if self._opened_settings is None:
            raise InvalidArgument("open", "must be the first message of a stream")
        return self._opened_settings

    def _read_open(self, opening: pb.Open) -> dict[str, Any]:
        if self._opened_settings is not None:
            raise InvalidArgument("open", "the stream is open already")
        fields = open_from_proto(opening, self._model.context_length)
        self._opened_settings = fields["settings"]
        return fields

    def _write_opened(self, proto: pb.Opened, message: Opened) -> None:
        if message.row_share is not None:
            proto.row_share = message.row_share
        proto.cloud_drafts = CLOUD_DRAFTS[message.cloud_drafts]
        proto.model.CopyFrom(describe_model(self._model, self._device, self._dtype))

    def _read_drafts(self, draft: pb.Drafts) -> dict[str, Any]:
        settings = self._settings
        limit = min(self._model.max_draft_length, settings.most_drafts)
        check_count(len(draft.token_ids), limit, "draft_length")
        check_count(len(draft.probabilities), limit, "probabilities")
        check_count(len(draft.parents), limit, "parents")
        return {
            "token_ids": tuple(draft.token_ids),
            "end_of_chunk": draft.end_of_chunk,
            "probabilities": tuple(draft.probabilities) or None,
            "distributions": self._distributions(draft, settings),
            "parents": tuple(draft.parents) or None,
        }

    def _read_states(self, hidden: pb.HiddenStates) -> dict[str, Any]:
        settings = self._settings
        if not settings.split_layers:
            raise InvalidArgument("hidden_states", "the session is not split")
        size = self._model.hidden_size
        precision = settings.uplink_precision
        return {"states": hidden_from_bytes(hidden.states, size, precision, "hidden_states")}

    def _distributions(self, draft: pb.Drafts, settings: VerifySettings) -> Array | None:
        if not (draft.sparse_probs or draft.distributions):
            return None
        if not settings.carries_probs:
            raise InvalidArgument("distributions", "do not match the opened uplink payload")
        if draft.sparse_probs:
            return self._sparse_distributions(draft, settings.uplink_precision)
        return self._full_distributions(draft, settings.uplink_precision)

    def _sparse_distributions(self, draft: pb.Drafts, precision: Precision) -> Array:
        if draft.distributions:
            raise InvalidArgument("distributions", "cannot be combined with sparse distributions")
        # Each one becomes a whole distribution in memory.
        check_count(len(draft.sparse_probs), len(draft.token_ids), "sparse_probs")
        size = self._model.vocabulary_size
        return np.stack(
            [
                sparse_probs_from_bytes(raw, size, precision, "sparse_probs")
                for raw in draft.sparse_probs
            ]
        )

    def _full_distributions(self, draft: pb.Drafts, precision: Precision) -> Array:
        raw = draft.distributions
        size = self._model.vocabulary_size
        row_bytes = size * (4 if precision == "float32" else 2)
        if len(raw) % row_bytes or len(raw) > row_bytes * len(draft.token_ids):
            raise InvalidArgument("distributions", f"{len(raw)} bytes do not fit the draft")
        parts = (raw[start : start + row_bytes] for start in range(0, len(raw), row_bytes))
        return np.stack(
            [probs_from_bytes(part, size, precision, "distributions") for part in parts]
        )


def _write_open(proto: pb.Open, opening: Open) -> None:
    proto.CopyFrom(open_to_proto(opening))


def _read_opened(opened: pb.Opened) -> dict[str, Any]:
    model = opened.model
    check_count(len(model.eos_token_ids), MAX_EOS_TOKEN_IDS, "eos_token_ids")
    check_share(opened.row_share, "row_share")
    cloud_drafts = choice_of(CLOUD_DRAFTS, opened.cloud_drafts, "cloud_drafts")
    if cloud_drafts is CloudDrafts.ANY:
        raise InvalidArgument("cloud_drafts", "does not say which")
    return {
        "eos_token_ids": frozenset(model.eos_token_ids),
        "model_name": cleaned(model.model_name),  # it is shown, and the cloud chose it
        "row_share": opened.row_share if opened.HasField("row_share") else None,
        "cloud_drafts": cloud_drafts,
    }


def _read_prompt_logprobs(told: pb.PromptLogprobs) -> dict[str, Any]:
    return {"logprobs": logprobs_from_proto(told, PROMPT_LOGPROBS_AT_ONCE)}


def _write_prompt_logprobs(proto: pb.PromptLogprobs, message: PromptLogprobs) -> None:
    fill_logprobs(proto, message.logprobs)


def _write_full(proto: pb.Distribution, message: FullDistribution) -> None:
    proto.probabilities = probs_to_bytes(message.target_probs, "float32")
