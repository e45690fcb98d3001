"""Frames of the verifier conversation: plain values to protobuf and back.

Invariant: decoding bounds-checks everything a peer could get wrong and raises InvalidArgument
naming the field; what it returns is safe to hand to the state machines. Must not import torch.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np

from tandem.core.codecs import Precision, law_from_bytes, law_to_bytes
from tandem.core.errors import InvalidArgument
from tandem.core.laws import Array, Sampling
from tandem.core.sparse_answer import SparseAnswer
from tandem.core.sparse_laws import sparse_law_from_bytes, sparse_law_to_bytes
from tandem.core.tokens import check_token_ids
from tandem.core.truncation import Truncation
from tandem.policy.presets import Acceptance, Answer, PredraftOrder, Preset, Schedule, Uplink
from tandem.protocol.cloud import CloudModel
from tandem.protocol.messages import (
    Cancel,
    CloudMessage,
    Draft,
    EarlyVerdict,
    EdgeMessage,
    FullAnswer,
    FullLaw,
    GoingAway,
    NeedFullLaw,
    Open,
    Opened,
    Outcome,
    Ping,
    Pong,
    Recovered,
    Tokens,
    Verdict,
    Work,
)
from tandem_api.common.v1 import sampling_pb2
from tandem_api.verifier.v1 import verifier_pb2 as pb

_ACCEPTANCE = {
    Acceptance.REJECTION: pb.ACCEPTANCE_RULE_REJECTION,
    Acceptance.SHARED_NOISE: pb.ACCEPTANCE_RULE_SHARED_NOISE,
}
_UPLINK = {
    Uplink.FULL_LAWS: pb.UPLINK_PAYLOAD_FULL_LAWS,
    Uplink.SPARSE_LAWS: pb.UPLINK_PAYLOAD_SPARSE_LAWS,
    Uplink.PROBABILITIES: pb.UPLINK_PAYLOAD_PROBABILITIES,
    Uplink.IDS: pb.UPLINK_PAYLOAD_IDS,
}
_ANSWER = {
    Answer.TOKEN: pb.REJECTION_ANSWER_TOKEN,
    Answer.FULL_LAW: pb.REJECTION_ANSWER_FULL_LAW,
    Answer.LOSSLESS_SPARSE: pb.REJECTION_ANSWER_LOSSLESS_SPARSE,
    Answer.TOP_K: pb.REJECTION_ANSWER_TOP_K,
}
_EARLY_ORDER = {
    PredraftOrder.CONFIDENCE: pb.EARLY_ORDER_CONFIDENCE,
    PredraftOrder.FIFO: pb.EARLY_ORDER_FIFO,
    PredraftOrder.RANDOM: pb.EARLY_ORDER_RANDOM,
}
_PRECISION: dict[Precision, pb.Precision.ValueType] = {
    "float32": pb.PRECISION_FLOAT32,
    "float16": pb.PRECISION_FLOAT16,
}


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
    model: _Model, device: str = "", dtype: str = ""
) -> sampling_pb2.ModelDescription:
    """What an engine serves, for `Describe` and `opened`."""
    return sampling_pb2.ModelDescription(
        model_name=model.model_name,
        vocabulary_hash=model.vocabulary_hash,
        vocabulary_size=model.vocabulary_size,
        context_length=model.context_length,
        eos_token_ids=sorted(model.eos_token_ids),
        device=device,
        dtype=dtype,
    )


def sampling_to_proto(sampling: Sampling) -> sampling_pb2.Sampling:
    return sampling_pb2.Sampling(
        temperature=sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p
    )


def sampling_from_proto(message: sampling_pb2.Sampling) -> Sampling:
    """Range checks follow where the vocabulary is known (`Sampling.validate`)."""
    return Sampling(message.temperature, message.top_k, message.top_p)


class EdgeCodec:
    """The edge's end of one stream: encodes its frames, decodes the cloud's."""

    def __init__(self, vocabulary_size: int, preset: Preset) -> None:
        self._vocabulary_size = vocabulary_size
        self._preset = preset

    def encode(self, message: EdgeMessage) -> pb.VerifyRequest:
        frame = pb.VerifyRequest(
            session=message.session, epoch=message.epoch, base=message.base, prefix=message.prefix
        )
        match message:
            case Open():
                frame.open.CopyFrom(_open_to_proto(message))
            case Draft():
                _fill_draft(frame.draft, message, self._preset)
            case Recovered():
                frame.recovered.token_id = message.token_id
            case NeedFullLaw():
                frame.need_full_law.SetInParent()
            case Cancel():
                frame.cancel.SetInParent()
            case Ping():
                frame.ping.nonce = message.nonce
        return frame

    def decode(self, frame: pb.VerifyResponse) -> CloudMessage:
        """Raises InvalidArgument naming the field for anything no honest cloud would send."""
        head = (frame.session, frame.epoch, frame.base, frame.prefix)
        match frame.WhichOneof("message"):
            case "opened":
                return self._opened(head, frame.opened)
            case "verdict":
                return self._verdict(head, frame.verdict)
            case "early_verdict":
                return self._early_verdict(head, frame.early_verdict)
            case "tokens":
                token_ids = tuple(frame.tokens.token_ids)
                check_token_ids(token_ids, self._vocabulary_size, "token_ids")
                return Tokens(*head, token_ids=token_ids, work=_work(frame.tokens.work))
            case "full_law":
                return FullLaw(*head, target_probs=self._law(frame.full_law))
            case "going_away":
                return GoingAway(*head, grace_s=frame.going_away.grace_s)
            case "pong":
                return Pong(*head, nonce=frame.pong.nonce)
        raise InvalidArgument("message", "the frame carries none")

    def _opened(self, head: tuple[int, int, int, int], opened: pb.Opened) -> Opened:
        return Opened(
            *head,
            max_draft_length=opened.max_draft_length,
            context_length=opened.model.context_length,
            eos_token_ids=frozenset(opened.model.eos_token_ids),
            model_name=opened.model.model_name,
            exits=opened.exits,
        )

    def _early_verdict(
        self, head: tuple[int, int, int, int], verdict: pb.EarlyVerdict
    ) -> EarlyVerdict:
        if not 0 <= verdict.confidence <= 1:  # False for NaN as well
            raise InvalidArgument("confidence", f"{verdict.confidence} is not in [0, 1]")
        if (outcome := self._drawable(verdict)) is None:
            raise InvalidArgument("outcome", "an early verdict without one")
        return EarlyVerdict(
            *head,
            exit_index=verdict.exit_index,
            accepted=verdict.accepted,
            rejected=verdict.rejected,
            outcome=outcome,
            confidence=verdict.confidence,
        )

    def _verdict(self, head: tuple[int, int, int, int], verdict: pb.Verdict) -> Verdict:
        return Verdict(
            *head,
            accepted=verdict.accepted,
            rejected=verdict.rejected,
            outcome=self._outcome(verdict),
            work=_work(verdict.work),
            path=tuple(verdict.path),
        )

    def _outcome(self, verdict: pb.Verdict) -> Outcome:
        if verdict.WhichOneof("outcome") == "full_law":
            return FullAnswer(self._law(verdict.full_law))
        return self._drawable(verdict)

    def _drawable(self, verdict: pb.Verdict | pb.EarlyVerdict) -> int | SparseAnswer | None:
        match verdict.WhichOneof("outcome"):
            case "token_id":
                check_token_ids((verdict.token_id,), self._vocabulary_size, "token_id")
                return int(verdict.token_id)
            case "sparse":
                answer = _sparse_from_proto(verdict.sparse)
                answer.validate(self._vocabulary_size)
                return answer
        return None

    def _law(self, law: pb.Law) -> Array:
        return law_from_bytes(law.probabilities, self._vocabulary_size, "float32", "probabilities")


class CloudCodec:
    """The cloud's end of one stream: decodes the edge's frames, encodes its own."""

    def __init__(self, model: CloudModel, device: str = "", dtype: str = "") -> None:
        self._model = model
        self._device = device
        self._dtype = dtype
        self._precision: Precision = "float32"

    def decode(self, frame: pb.VerifyRequest) -> EdgeMessage:
        """Raises InvalidArgument naming the field."""
        head = (frame.session, frame.epoch, frame.base, frame.prefix)
        match frame.WhichOneof("message"):
            case "open":
                opening = _open_from_proto(head, frame.open)
                self._precision = opening.preset.uplink_precision
                return opening
            case "draft":
                return self._draft(head, frame.draft)
            case "recovered":
                return Recovered(*head, token_id=frame.recovered.token_id)
            case "need_full_law":
                return NeedFullLaw(*head)
            case "cancel":
                return Cancel(*head)
            case "ping":
                return Ping(*head, nonce=frame.ping.nonce)
        raise InvalidArgument("message", "the frame carries none")

    def encode(self, message: CloudMessage) -> pb.VerifyResponse:
        frame = pb.VerifyResponse(
            session=message.session, epoch=message.epoch, base=message.base, prefix=message.prefix
        )
        match message:
            case Opened():
                frame.opened.max_draft_length = message.max_draft_length
                frame.opened.exits = message.exits
                frame.opened.model.CopyFrom(describe_model(self._model, self._device, self._dtype))
            case Verdict():
                _fill_verdict(frame.verdict, message)
            case EarlyVerdict():
                _fill_early_verdict(frame.early_verdict, message)
            case Tokens():
                frame.tokens.token_ids.extend(message.token_ids)
                _fill_work(frame.tokens.work, message.work)
            case FullLaw():
                frame.full_law.probabilities = law_to_bytes(message.target_probs, "float32")
            case GoingAway():
                frame.going_away.grace_s = message.grace_s
            case Pong():
                frame.pong.nonce = message.nonce
        return frame

    def _draft(self, head: tuple[int, int, int, int], draft: pb.Draft) -> Draft:
        return Draft(
            *head,
            token_ids=tuple(draft.token_ids),
            end_of_chunk=draft.end_of_chunk,
            probabilities=tuple(draft.probabilities) if draft.probabilities else None,
            laws=self._laws(draft),
            parents=tuple(draft.parents) if draft.parents else None,
            hold=draft.hold,
        )

    def _laws(self, draft: pb.Draft) -> Array | None:
        if draft.sparse_laws:
            return self._sparse_laws(draft)
        return self._full_laws(draft) if draft.laws else None

    def _sparse_laws(self, draft: pb.Draft) -> Array:
        if draft.laws:
            raise InvalidArgument("laws", "come beside sparse ones")
        limit = min(len(draft.token_ids), self._model.max_draft_length)
        if len(draft.sparse_laws) > limit:  # each one becomes a whole law in memory
            count = len(draft.sparse_laws)
            raise InvalidArgument("sparse_laws", f"{count} laws; at most {limit} fit the draft")
        size = self._model.vocabulary_size
        return np.stack(
            [
                sparse_law_from_bytes(raw, size, self._precision, "sparse_laws")
                for raw in draft.sparse_laws
            ]
        )

    def _full_laws(self, draft: pb.Draft) -> Array:
        size = self._model.vocabulary_size * (4 if self._precision == "float32" else 2)
        if len(draft.laws) % size or len(draft.laws) > size * len(draft.token_ids):
            raise InvalidArgument("laws", f"{len(draft.laws)} bytes do not fit the draft")
        return np.stack(
            [
                law_from_bytes(
                    draft.laws[start : start + size],
                    self._model.vocabulary_size,
                    self._precision,
                    "laws",
                )
                for start in range(0, len(draft.laws), size)
            ]
        )


def _fill_draft(proto: pb.Draft, draft: Draft, preset: Preset) -> None:
    proto.token_ids.extend(draft.token_ids)
    proto.end_of_chunk = draft.end_of_chunk
    proto.hold = draft.hold
    if draft.probabilities is not None:
        proto.probabilities.extend(draft.probabilities)
    proto.parents.extend(draft.parents or ())
    if draft.laws is None:
        return
    precision = preset.uplink_precision
    if preset.uplink is Uplink.SPARSE_LAWS:
        proto.sparse_laws.extend(sparse_law_to_bytes(law, precision) for law in draft.laws)
    else:
        proto.laws = b"".join(law_to_bytes(law, precision) for law in draft.laws)


def _fill_verdict(proto: pb.Verdict, verdict: Verdict) -> None:
    proto.accepted = verdict.accepted
    proto.rejected = verdict.rejected
    proto.path.extend(verdict.path)
    _fill_work(proto.work, verdict.work)
    match verdict.outcome:
        case None:
            pass
        case FullAnswer(target_probs):
            proto.full_law.probabilities = law_to_bytes(target_probs, "float32")
        case SparseAnswer():
            proto.sparse.CopyFrom(_sparse_to_proto(verdict.outcome))
        case token:
            proto.token_id = token


def _fill_early_verdict(proto: pb.EarlyVerdict, verdict: EarlyVerdict) -> None:
    proto.exit_index = verdict.exit_index
    proto.accepted = verdict.accepted
    proto.rejected = verdict.rejected
    proto.confidence = verdict.confidence
    if isinstance(verdict.outcome, SparseAnswer):
        proto.sparse.CopyFrom(_sparse_to_proto(verdict.outcome))
    else:
        proto.token_id = verdict.outcome


def _fill_work(proto: pb.Work, work: Work) -> None:
    proto.verify_s = work.verify_s
    proto.queue_s = work.queue_s
    proto.batch_size = work.batch_size
    proto.target_passes = work.target_passes
    proto.drafts = work.drafts


def _work(proto: pb.Work) -> Work:
    for name, seconds in (("verify_s", proto.verify_s), ("queue_s", proto.queue_s)):
        if not 0 <= seconds < math.inf:  # False for NaN as well
            raise InvalidArgument(name, f"{seconds} is not a duration")
    return Work(proto.verify_s, proto.queue_s, proto.batch_size, proto.target_passes, proto.drafts)


def _sparse_to_proto(answer: SparseAnswer) -> pb.SparseAnswer:
    return pb.SparseAnswer(
        ids=answer.ids.tolist(),
        probabilities=answer.probs.tolist(),
        tail_mass=float(answer.tail_mass),
        tail_ids=answer.tail_ids.tolist(),
        tail_probabilities=answer.tail_probs.tolist(),
    )


def _sparse_from_proto(proto: pb.SparseAnswer) -> SparseAnswer:
    return SparseAnswer(
        np.array(proto.ids, dtype=np.int64),
        np.array(proto.probabilities, dtype=np.float32),
        proto.tail_mass,
        np.array(proto.tail_ids, dtype=np.int64),
        np.array(proto.tail_probabilities, dtype=np.float32),
    )


def _open_to_proto(opening: Open) -> pb.Open:
    preset, schedule = opening.preset, opening.preset.schedule
    return pb.Open(
        vocabulary_hash=opening.vocabulary_hash,
        vocabulary_size=opening.vocabulary_size,
        prompt_ids=opening.prompt_ids,
        committed_ids=opening.committed_ids,
        sampling=sampling_to_proto(opening.sampling),
        seed=opening.seed,
        max_tokens=opening.max_tokens,
        ignore_eos=opening.ignore_eos,
        preset=preset.name,
        acceptance=_ACCEPTANCE[preset.acceptance],
        uplink=_UPLINK[preset.uplink],
        uplink_precision=_PRECISION[preset.uplink_precision],
        answer=_ANSWER[preset.answer],
        answer_top=preset.answer_top,
        answer_tail_draws=preset.answer_tail_draws,
        window=schedule.window,
        verify_on_arrival=schedule.verify_on_arrival,
        decode_when_idle=schedule.decode_when_idle,
        bonus=schedule.bonus,
        images=opening.images,
        draft_top_k=preset.truncation.top_k,
        draft_top_p=preset.truncation.top_p,
        idle_weight=preset.idle_weight,
        exits=preset.exits,
        exit_order=_EARLY_ORDER[preset.exit_order],
        expansion=preset.expansion,
        with_replacement=preset.with_replacement,
    )


def _open_from_proto(head: tuple[int, int, int, int], opening: pb.Open) -> Open:
    schedule = Schedule(
        window=opening.window,
        chunk=opening.window,
        verify_on_arrival=opening.verify_on_arrival,
        bonus=opening.bonus,
        decode_when_idle=opening.decode_when_idle,
    )
    preset = Preset(
        name=opening.preset,
        schedule=schedule,
        acceptance=_choice(_ACCEPTANCE, opening.acceptance, "acceptance"),
        uplink=_choice(_UPLINK, opening.uplink, "uplink"),
        answer=_choice(_ANSWER, opening.answer, "answer"),
        uplink_precision=_choice(_PRECISION, opening.uplink_precision, "uplink_precision"),
        answer_top=opening.answer_top,
        answer_tail_draws=opening.answer_tail_draws,
        truncation=Truncation(opening.draft_top_k, opening.draft_top_p),
        idle_weight=opening.idle_weight,
        exits=opening.exits,
        exit_order=_choice(
            _EARLY_ORDER, opening.exit_order or pb.EARLY_ORDER_CONFIDENCE, "exit_order"
        ),
        expansion=tuple(opening.expansion),
        with_replacement=opening.with_replacement,
    )
    return Open(
        *head,
        vocabulary_hash=opening.vocabulary_hash,
        vocabulary_size=opening.vocabulary_size,
        prompt_ids=tuple(opening.prompt_ids),
        committed_ids=tuple(opening.committed_ids),
        sampling=sampling_from_proto(opening.sampling),
        seed=opening.seed,
        max_tokens=opening.max_tokens,
        ignore_eos=opening.ignore_eos,
        preset=preset,
        images=tuple(opening.images),
    )


def _choice(table: dict[Any, Any], number: int, field: str) -> Any:
    for choice, value in table.items():
        if value == number:
            return choice
    raise InvalidArgument(field, f"unknown value {number}")
