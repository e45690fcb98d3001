"""Who made a token, as the wire says it. Must not import torch."""

from __future__ import annotations

from collections.abc import Iterable

from tandem.protocol.outputs import Maker
from tandem_api.common.v1 import generation_pb2

_TO_WIRE = {
    Maker.DRAFT: generation_pb2.TOKEN_MAKER_DRAFT,
    Maker.TARGET: generation_pb2.TOKEN_MAKER_TARGET,
    Maker.EDGE: generation_pb2.TOKEN_MAKER_EDGE,
    Maker.DEVICE: generation_pb2.TOKEN_MAKER_DEVICE,
    Maker.CLOUD: generation_pb2.TOKEN_MAKER_CLOUD,
    Maker.BOTH: generation_pb2.TOKEN_MAKER_BOTH,
    Maker.RECOVERED: generation_pb2.TOKEN_MAKER_RECOVERED,
}
_FROM_WIRE = {number: maker for maker, number in _TO_WIRE.items()}


def makers_to_proto(makers: Iterable[Maker]) -> list[generation_pb2.TokenMaker.ValueType]:
    """In their order."""
    return [_TO_WIRE[maker] for maker in makers]


def makers_from_proto(
    numbers: Iterable[generation_pb2.TokenMaker.ValueType],
) -> list[Maker | None]:
    """In their order; None for what this version does not know."""
    return [_FROM_WIRE.get(number) for number in numbers]
