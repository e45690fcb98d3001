"""Frames of the verifier conversation: plain values to protobuf and back. Invariant: decoding
bounds-checks everything a peer could get wrong, lengths before contents, and raises InvalidArgument
naming the field; what it returns is safe to hand to the state machines."""

import math
from typing import Protocol

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
from tandem.specdec.choices import Uplink
from tandem.specdec.cloud_checks import CloudModel
from tandem.specdec.logprobs import PROMPT_LOGPROBS_AT_ONCE
from tandem.specdec.messages import (
    Cancel,
    CloudMessage,
    Committed,
    Drafts,
    EdgeMessage,
    FrameHeader,
    GoingAway,
    Open,
    Opened,
    Ping,
    Pong,
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
    fill_early_verdict,
    fill_logprobs,
    logprobs_from_proto,
    sparse_from_proto,
    work_from_proto,
)
from tandem.wire.common_codec import MAX_EOS_TOKEN_IDS, default_sampling_to_proto
from tandem.wire.open_codec import (
    cloud_drafts_from_proto,
    cloud_drafts_to_proto,
    open_from_proto,
    open_to_proto,
)
from tandem_api.common.v1.sampling_pb2 import ModelDescription
from tandem_api.verifier.v1 import verifier_pb2 as pb


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


class EdgeCodec:
    """The edge's end of one stream: encodes its frames, decodes the cloud's."""

    def __init__(self, vocabulary_size: int, settings: VerifySettings) -> None:
        self._vocabulary_size = vocabulary_size
        self._settings = settings

    def encode(self, message: EdgeMessage) -> pb.VerifyRequest:
        frame = pb.VerifyRequest(
            session=message.session,
            base=message.base,
            prefix=message.prefix_hash,
        )
        match message:
            case Open():
                frame.open.CopyFrom(open_to_proto(message))
            case Drafts():
                _fill_drafts(frame.drafts, message, self._settings)
            case Recovered():
                frame.recovered.token_id = message.token_id
            case NeedFullDistribution():
                frame.need_full_distribution.SetInParent()
            case HiddenStates():
                precision = self._settings.uplink_precision
                frame.hidden_states.states = hidden_to_bytes(message.states, precision)
            case Cancel():
                frame.cancel.SetInParent()
            case Ping():
                frame.ping.nonce = message.nonce
        return frame

    def decode(self, frame: pb.VerifyResponse) -> CloudMessage:
        """Decode a frame from the cloud. Raises InvalidArgument naming the field for anything that
        no honest cloud would send."""
        header = _header_of(frame)
        match frame.WhichOneof("message"):
            case "opened":
                return self._opened(header, frame.opened)
            case "committed":
                return self._committed(header, frame.committed)
            case "prompt_logprobs":
                return PromptLogprobs(
                    **header,
                    first=frame.prompt_logprobs.first,
                    logprobs=logprobs_from_proto(frame.prompt_logprobs, PROMPT_LOGPROBS_AT_ONCE),
                )
            case "early_verdict":
                return self._early_verdict(header, frame.early_verdict)
            case "full_distribution":
                return FullDistribution(**header, target_probs=self._probs(frame.full_distribution))
            case "going_away":
                grace_s = frame.going_away.grace_s
                if not 0 <= grace_s < math.inf:  # False for NaN as well
                    raise InvalidArgument("grace_s", f"{grace_s} is not a duration")
                return GoingAway(**header, grace_s=grace_s)
            case "pong":
                return Pong(**header, nonce=frame.pong.nonce)
        raise InvalidArgument("message", "the frame carries none")

    def _opened(self, header: FrameHeader, opened: pb.Opened) -> Opened:
        check_count(len(opened.model.eos_token_ids), MAX_EOS_TOKEN_IDS, "eos_token_ids")
        return Opened(
            **header,
            max_draft_length=opened.max_draft_length,
            context_length=opened.model.context_length,
            eos_token_ids=frozenset(opened.model.eos_token_ids),
            model_name=cleaned(opened.model.model_name),  # it is shown, and the cloud chose it
            exits=opened.exits,
            processes=opened.processes,
            processes_thinking=opened.processes_thinking,
            cached_tokens=opened.cached_tokens,
            same_bits=opened.same_bits,
            batch_invariant=opened.batch_invariant,
            row_share=_row_share(opened),
            drafts_never_pay=opened.drafts_never_pay,
            tells_prompt_logprobs=opened.tells_prompt_logprobs,
            cloud_drafts=cloud_drafts_from_proto(opened.cloud_drafts),
        )

    def _committed(self, header: FrameHeader, committed: pb.Committed) -> Committed:
        check_count(len(committed.token_ids), MAX_PROMPT_IDS, "token_ids")
        token_ids = tuple(committed.token_ids)
        check_token_ids(token_ids, self._vocabulary_size, "token_ids")
        check_count(len(committed.path), MAX_DRAFT_LENGTH, "path")
        return Committed(
            **header,
            accepted=committed.accepted,
            token_ids=token_ids,
            work=work_from_proto(committed.work),
            logprobs=logprobs_from_proto(committed, MAX_DRAFT_LENGTH + len(token_ids)),
            cloud_accepted=committed.cloud_accepted,
            draw_from=self._draw_from(committed),
            path=tuple(committed.path),
        )

    def _draw_from(self, committed: pb.Committed) -> FullPayload | SparsePayload | None:
        match committed.WhichOneof("draw_from"):
            case "full_distribution":
                return FullPayload(self._probs(committed.full_distribution))
            case "sparse":
                return self._sparse(committed.sparse)
        return None

    def _early_verdict(self, header: FrameHeader, verdict: pb.EarlyVerdict) -> EarlyVerdict:
        if not 0 <= verdict.confidence <= 1:  # False for NaN as well
            raise InvalidArgument("confidence", f"{verdict.confidence} is not in [0, 1]")
        outcome: int | SparsePayload
        match verdict.WhichOneof("outcome"):
            case "token_id":
                check_token_ids((verdict.token_id,), self._vocabulary_size, "token_id")
                outcome = verdict.token_id
            case "sparse":
                outcome = self._sparse(verdict.sparse)
            case _:
                raise InvalidArgument("outcome", "is missing")
        return EarlyVerdict(
            **header,
            exit_index=verdict.exit_index,
            accepted=verdict.accepted,
            rejected=verdict.rejected,
            outcome=outcome,
            confidence=verdict.confidence,
        )

    def _sparse(self, sparse: pb.SparsePayload) -> SparsePayload:
        payload = sparse_from_proto(sparse)
        payload.validate(self._vocabulary_size)
        return payload

    def _probs(self, probs: pb.Distribution) -> Array:
        return probs_from_bytes(
            probs.probabilities, self._vocabulary_size, "float32", "probabilities"
        )


class CloudCodec:
    """The cloud's end of one stream: decodes the edge's frames, encodes its own."""

    def __init__(self, model: CloudModel, device: str = "", dtype: str = "") -> None:
        self._model = model
        self._device = device
        self._dtype = dtype
        self._settings: VerifySettings | None = None

    def decode(self, frame: pb.VerifyRequest) -> EdgeMessage:
        """Decode a frame from the edge. Raises InvalidArgument naming the field."""
        header = _header_of(frame)
        match frame.WhichOneof("message"):
            case "open":
                if self._settings is not None:
                    raise InvalidArgument("open", "the stream is open already")
                opening = open_from_proto(header, frame.open, self._model.context_length)
                self._settings = opening.settings
                return opening
            case "drafts":
                return self._drafts(header, frame.drafts)
            case "recovered":
                return Recovered(**header, token_id=frame.recovered.token_id)
            case "need_full_distribution":
                return NeedFullDistribution(**header)
            case "hidden_states":
                return HiddenStates(**header, states=self._states(frame.hidden_states.states))
            case "cancel":
                return Cancel(**header)
            case "ping":
                return Ping(**header, nonce=frame.ping.nonce)
        raise InvalidArgument("message", "the frame carries none")

    def encode(self, message: CloudMessage) -> pb.VerifyResponse:
        frame = pb.VerifyResponse(
            session=message.session,
            base=message.base,
            prefix=message.prefix_hash,
        )
        match message:
            case Opened():
                frame.opened.max_draft_length = message.max_draft_length
                frame.opened.exits = message.exits
                frame.opened.processes = message.processes
                frame.opened.processes_thinking = message.processes_thinking
                frame.opened.cached_tokens = message.cached_tokens
                frame.opened.same_bits = message.same_bits
                frame.opened.batch_invariant = message.batch_invariant
                if message.row_share is not None:
                    frame.opened.row_share = message.row_share
                frame.opened.drafts_never_pay = message.drafts_never_pay
                frame.opened.tells_prompt_logprobs = message.tells_prompt_logprobs
                frame.opened.cloud_drafts = cloud_drafts_to_proto(message.cloud_drafts)
                frame.opened.model.CopyFrom(describe_model(self._model, self._device, self._dtype))
            case PromptLogprobs():
                frame.prompt_logprobs.first = message.first
                fill_logprobs(frame.prompt_logprobs, message.logprobs)
            case Committed():
                fill_committed(frame.committed, message)
            case EarlyVerdict():
                fill_early_verdict(frame.early_verdict, message)
            case FullDistribution():
                raw = probs_to_bytes(message.target_probs, "float32")
                frame.full_distribution.probabilities = raw
            case GoingAway():
                frame.going_away.grace_s = message.grace_s
            case Pong():
                frame.pong.nonce = message.nonce
        return frame

    def _drafts(self, header: FrameHeader, draft: pb.Drafts) -> Drafts:
        settings = self._settings
        if settings is None:
            raise InvalidArgument("open", "must be the first message of a stream")
        limit = min(self._model.max_draft_length, settings.most_drafts)
        check_count(len(draft.token_ids), limit, "draft_length")
        check_count(len(draft.probabilities), limit, "probabilities")
        check_count(len(draft.parents), limit, "parents")
        return Drafts(
            **header,
            token_ids=tuple(draft.token_ids),
            end_of_chunk=draft.end_of_chunk,
            probabilities=tuple(draft.probabilities) if draft.probabilities else None,
            distributions=self._distributions(draft, settings),
            parents=tuple(draft.parents) if draft.parents else None,
        )

    def _states(self, raw: bytes) -> Array:
        settings = self._settings
        if settings is None:
            raise InvalidArgument("open", "must be the first message of a stream")
        if not settings.split_layers:
            raise InvalidArgument("hidden_states", "the session is not split")
        size = self._model.hidden_size
        return hidden_from_bytes(raw, size, settings.uplink_precision, "hidden_states")

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


def _header_of(frame: pb.VerifyRequest | pb.VerifyResponse) -> FrameHeader:
    return {
        "session": frame.session,
        "base": frame.base,
        "prefix_hash": frame.prefix,
    }


def _row_share(opened: pb.Opened) -> float | None:
    if not opened.HasField("row_share"):
        return None
    if not 0 <= opened.row_share <= 1:  # False for NaN as well
        raise InvalidArgument("row_share", f"{opened.row_share} is not in [0, 1]")
    return opened.row_share


def _fill_drafts(proto: pb.Drafts, draft: Drafts, settings: VerifySettings) -> None:
    proto.token_ids.extend(draft.token_ids)
    proto.end_of_chunk = draft.end_of_chunk
    proto.probabilities.extend(draft.probabilities or ())
    proto.parents.extend(draft.parents or ())
    if draft.distributions is None:
        return
    sparse = settings.uplink is Uplink.SPARSE_DISTRIBUTIONS
    encode = sparse_probs_to_bytes if sparse else probs_to_bytes
    raw = [encode(probs, settings.uplink_precision) for probs in draft.distributions]
    if sparse:
        proto.sparse_probs.extend(raw)
    else:
        proto.distributions = b"".join(raw)
