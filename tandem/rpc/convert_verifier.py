"""Frames of the verifier conversation: plain values to protobuf and back.

Invariant: decoding bounds-checks everything a peer could get wrong and raises InvalidArgument
naming the field; what it returns is safe to hand to the state machines. Must not import torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from tandem.core.codecs import Precision, law_from_bytes, law_to_bytes
from tandem.core.errors import InvalidArgument
from tandem.core.laws import Array
from tandem.core.sparse_answer import SparseAnswer
from tandem.core.sparse_laws import sparse_law_from_bytes, sparse_law_to_bytes
from tandem.core.tokens import check_token_ids
from tandem.policy.choices import Uplink
from tandem.policy.presets import Preset
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
    TokenLogprob,
    Tokens,
    Verdict,
    Work,
)
from tandem.rpc.convert_open import open_from_proto, open_to_proto
from tandem_api.common.v1 import sampling_pb2
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
                frame.open.CopyFrom(open_to_proto(message))
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
                told = _logprobs(frame.tokens)
                return Tokens(*head, token_ids, _work(frame.tokens.work), told)
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
            logprobs=_logprobs(verdict),
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
                opening = open_from_proto(head, frame.open)
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
                _fill_logprobs(frame.tokens, message.logprobs)
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


def _logprobs(proto: pb.Verdict | pb.Tokens) -> tuple[TokenLogprob, ...]:
    """How many there must be, and of which tokens, is the edge's to check."""
    if not proto.top_logprobs:
        return tuple(map(TokenLogprob, proto.logprobs))
    if len(proto.top_logprobs) != len(proto.logprobs):
        why = f"{len(proto.top_logprobs)} beside {len(proto.logprobs)} logprobs"
        raise InvalidArgument("top_logprobs", why)
    if any(len(top.token_ids) != len(top.logprobs) for top in proto.top_logprobs):
        raise InvalidArgument("top_logprobs", "not as many tokens as logprobs")
    return tuple(
        TokenLogprob(logprob, tuple(zip(top.token_ids, top.logprobs, strict=True)))
        for logprob, top in zip(proto.logprobs, proto.top_logprobs, strict=True)
    )


def _fill_logprobs(proto: pb.Verdict | pb.Tokens, told: Sequence[TokenLogprob]) -> None:
    proto.logprobs.extend(each.logprob for each in told)
    if any(each.top for each in told):
        for each in told:
            top = proto.top_logprobs.add()
            top.token_ids.extend(token_id for token_id, _ in each.top)
            top.logprobs.extend(logprob for _, logprob in each.top)


def _fill_verdict(proto: pb.Verdict, verdict: Verdict) -> None:
    proto.accepted = verdict.accepted
    proto.rejected = verdict.rejected
    proto.path.extend(verdict.path)
    _fill_logprobs(proto, verdict.logprobs)
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
