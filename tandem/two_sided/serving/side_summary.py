"""The messages of an answer from two sides to its caller."""

from collections.abc import Sequence

from tandem.core.stopping import FinishReason
from tandem.net.frame_stream import Traffic
from tandem.two_sided.protocol.decoder_messages import DecodingOpened
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.presets import AggregationPreset
from tandem.two_sided.serving.device_session import DeviceSession, TextPiece
from tandem.wire.common_codec import token_sources_to_proto
from tandem_api.common.v1 import generation_pb2 as pb

SIDE_NAMES = ("device", "cloud")
"""In the order of their numbers, before those that settings name."""


def started_of(
    session: int, preset: AggregationPreset, opened: DecodingOpened, more_sides: Sequence[str]
) -> pb.GenerateResponse:
    """`more_sides`: names of the sides beyond the cloud that take part."""
    return pb.GenerateResponse(
        started=pb.Started(
            session=f"{session:08x}",
            preset=preset.name,
            prompt_tokens=len(opened.prompt_ids),
            max_tokens=opened.max_tokens,
            sides=(*SIDE_NAMES, *more_sides) if more_sides else (),
        )
    )


def committed_of(position: int, piece: TextPiece) -> pb.GenerateResponse:
    return pb.GenerateResponse(
        committed=pb.Committed(
            position=position,
            token_ids=piece.token_ids,
            text=piece.text,
            unverified=piece.unverified,
            token_sources=token_sources_to_proto(piece.token_sources),
            token_texts=piece.token_texts,
            token_sides=[sum(1 << number for number in sides) for sides in piece.token_sides],
        )
    )


def summary_of(
    session: DeviceSession,
    preset: AggregationPreset,
    tokens: int,
    traffics: Sequence[Traffic],
    more_sides: Sequence[str] = (),
) -> pb.GenerateResponse:
    """`tokens`: how many the caller got; `traffics`: with each other side, the cloud first;
    `more_sides`: names of those beyond the cloud."""
    opened, stats = session.opened, session.machine.stats
    assert opened is not None, "a summary follows an answer"
    summary = pb.Summary(
        finish_reason=session.finish_reason or FinishReason.ERROR,
        preset=preset.name,
        prompt_tokens=len(opened.prompt_ids),
        tokens=tokens,
        rounds=stats.tokens,
        drafted=sum(stats.drafted.values()),
        accepted=sum(stats.accepted.values()),
        uplink_bytes=sum(traffic.uplink_bytes for traffic in traffics),
        downlink_bytes=sum(traffic.downlink_bytes for traffic in traffics),
        resumes=stats.resumes,
        unverified_tokens=min(stats.unverified_tokens, tokens),
        draft_s=stats.decode_s[Side.DEVICE],
        verify_s=stats.decode_s[Side.CLOUD],
        links_lost=stats.links_lost,
        loss_noticed_s=stats.loss_noticed_s,
        lossy=preset.lossy,
        side_moves=stats.side_moves,
        fetches=stats.fetches,
    )
    further = [summary.more_sides.add(name=name) for name in more_sides]
    for number, into in enumerate((summary.device, summary.cloud, *further)):
        into.drafted, into.accepted = stats.drafted[number], stats.accepted[number]
        into.decode_s, into.made = stats.decode_s[number], stats.made[number]
        if (other := session.others.get(number - Side.CLOUD)) is not None:
            into.documents, into.document_tokens = other.documents, other.document_tokens
            into.log_mass = other.log_mass
        if (trip_s := stats.round_trip_s(number)) is not None:
            into.round_trip_s = trip_s
    for into, traffic in zip((summary.cloud, *further), traffics, strict=False):
        into.uplink_bytes, into.downlink_bytes = traffic.uplink_bytes, traffic.downlink_bytes
    summary.device.documents = len(opened.documents)
    summary.device.document_tokens = sum(use.tokens for use in opened.documents)
    summary.device.log_mass = opened.log_mass
    return pb.GenerateResponse(summary=summary)
