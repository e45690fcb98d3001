"""The content of what a cloud commits, or predicts, to protobuf and back: payloads to draw from,
cost, how likely the tokens were. Invariant: decoding checks lengths before contents, and raises
InvalidArgument naming the field."""

from collections.abc import Sequence
from dataclasses import fields

import numpy as np

from tandem.core.codecs import probs_to_bytes
from tandem.core.errors import InvalidArgument, check_count
from tandem.core.sparse_payload import FullPayload, SparsePayload
from tandem.specdec.logprobs import MAX_TOP_LOGPROBS
from tandem.specdec.messages import Committed, TokenLogprob, Work
from tandem.specdec.presets import MAX_PAYLOAD_TAIL_DRAWS, MAX_PAYLOAD_TOP
from tandem.specdec.rounds.messages import EarlyVerdict
from tandem.wire.frame_codec import check_seconds
from tandem_api.verifier.v1 import verifier_pb2 as pb

_HasLogprobs = pb.Committed | pb.PromptLogprobs
_WORK = tuple(field.name for field in fields(Work))


def fill_committed(proto: pb.Committed, message: Committed) -> None:
    proto.accepted = message.accepted
    proto.token_ids.extend(message.token_ids)
    proto.path.extend(message.path)
    proto.cloud_accepted = message.cloud_accepted
    match message.draw_from:
        case SparsePayload() as payload:
            proto.sparse.CopyFrom(_sparse_to_proto(payload))
        case FullPayload(target_probs):
            proto.full_distribution.probabilities = probs_to_bytes(target_probs, "float32")
    fill_logprobs(proto, message.logprobs)
    fill_work(proto.work, message.work)


def fill_outcome(proto: pb.EarlyVerdict, verdict: EarlyVerdict) -> None:
    if isinstance(verdict.outcome, int):
        proto.token_id = verdict.outcome
    else:
        proto.sparse.CopyFrom(_sparse_to_proto(verdict.outcome))


def sparse_from_proto(proto: pb.SparsePayload) -> SparsePayload:
    check_count(len(proto.ids), MAX_PAYLOAD_TOP, "ids")
    check_count(len(proto.probabilities), MAX_PAYLOAD_TOP, "probabilities")
    check_count(len(proto.tail_ids), MAX_PAYLOAD_TAIL_DRAWS, "tail_ids")
    check_count(len(proto.tail_probabilities), MAX_PAYLOAD_TAIL_DRAWS, "tail_probabilities")
    return SparsePayload(
        ids=np.array(proto.ids, dtype=np.int64),
        probs=np.array(proto.probabilities, dtype=np.float32),
        tail_mass=proto.tail_mass,
        tail_ids=np.array(proto.tail_ids, dtype=np.int64),
        tail_probs=np.array(proto.tail_probabilities, dtype=np.float32),
    )


def fill_work(proto: pb.Work, work: Work) -> None:
    for name in _WORK:
        setattr(proto, name, getattr(work, name))


def work_from_proto(proto: pb.Work) -> Work:
    for name in ("verify_s", "queue_s"):
        check_seconds(getattr(proto, name), name)
    return Work(**{name: getattr(proto, name) for name in _WORK})


def fill_logprobs(proto: _HasLogprobs, logprobs: Sequence[TokenLogprob]) -> None:
    proto.logprobs.extend(entry.logprob for entry in logprobs)
    if any(entry.top for entry in logprobs):
        for entry in logprobs:
            top = proto.top_logprobs.add()
            top.token_ids.extend(token_id for token_id, _ in entry.top)
            top.logprobs.extend(logprob for _, logprob in entry.top)


def logprobs_from_proto(proto: _HasLogprobs, most: int) -> tuple[TokenLogprob, ...]:
    """Decode log-probabilities. How many there must be, and of which tokens, is the edge's to
    check."""
    tops = proto.top_logprobs
    check_count(len(proto.logprobs), most, "logprobs")
    check_count(len(tops), most, "top_logprobs")
    for top in tops:
        check_count(len(top.token_ids), MAX_TOP_LOGPROBS, "top_logprobs")
    if not tops:
        return tuple(map(TokenLogprob, proto.logprobs))
    if len(tops) != len(proto.logprobs):
        why = f"{len(tops)} beside {len(proto.logprobs)} logprobs"
        raise InvalidArgument("top_logprobs", why)
    if any(len(top.token_ids) != len(top.logprobs) for top in tops):
        raise InvalidArgument("top_logprobs", "must have one entry per token")
    pairs = [tuple(zip(top.token_ids, top.logprobs, strict=True)) for top in tops]
    return tuple(map(TokenLogprob, proto.logprobs, pairs))


def _sparse_to_proto(payload: SparsePayload) -> pb.SparsePayload:
    return pb.SparsePayload(
        ids=payload.ids.tolist(),
        probabilities=payload.probs.tolist(),
        tail_mass=float(payload.tail_mass),
        tail_ids=payload.tail_ids.tolist(),
        tail_probabilities=payload.tail_probs.tolist(),
    )
