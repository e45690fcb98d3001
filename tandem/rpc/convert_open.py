"""The opening of a verifier stream: settings and a preset's choices to protobuf and back.

Invariant: a choice that is unknown raises InvalidArgument naming the field; ranges are checked
where session and vocabulary are known. Must not import torch.
"""

from __future__ import annotations

from tandem.core.codecs import Precision
from tandem.core.laws import Sampling
from tandem.core.truncation import Truncation
from tandem.policy.choices import Acceptance, Answer, PredraftOrder, Schedule, Uplink
from tandem.policy.presets import Preset
from tandem.protocol.messages import Open
from tandem.rpc.choices import choice_of
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


def open_to_proto(opening: Open) -> pb.Open:
    """What the cloud must know of a session; how the edge drafts and sends is its own business."""
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
        logprobs=opening.logprobs,
        top_logprobs=opening.top_logprobs,
        draft_top_k=preset.truncation.top_k,
        draft_top_p=preset.truncation.top_p,
        idle_weight=preset.idle_weight,
        exits=preset.exits,
        exit_order=_EARLY_ORDER[preset.exit_order],
        expansion=preset.expansion,
        with_replacement=preset.with_replacement,
    )


def open_from_proto(head: tuple[int, int, int, int], opening: pb.Open) -> Open:
    """`head` is the frame's own. Raises InvalidArgument naming the field."""
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
        acceptance=choice_of(_ACCEPTANCE, opening.acceptance, "acceptance"),
        uplink=choice_of(_UPLINK, opening.uplink, "uplink"),
        answer=choice_of(_ANSWER, opening.answer, "answer"),
        uplink_precision=choice_of(_PRECISION, opening.uplink_precision, "uplink_precision"),
        answer_top=opening.answer_top,
        answer_tail_draws=opening.answer_tail_draws,
        truncation=Truncation(opening.draft_top_k, opening.draft_top_p),
        idle_weight=opening.idle_weight,
        exits=opening.exits,
        exit_order=choice_of(
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
        logprobs=opening.logprobs,
        top_logprobs=opening.top_logprobs,
    )


def sampling_to_proto(sampling: Sampling) -> sampling_pb2.Sampling:
    return sampling_pb2.Sampling(
        temperature=sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p
    )


def sampling_from_proto(message: sampling_pb2.Sampling) -> Sampling:
    """Range checks follow where the vocabulary is known (`Sampling.validate`)."""
    return Sampling(message.temperature, message.top_k, message.top_p)
