"""How long a cloud says that it stays: a duration, and nothing else."""

from __future__ import annotations

import math

import pytest

from tandem.core.errors import InvalidArgument
from tandem.specdec.messages import GoingAway
from tandem.specdec.presets import PRESETS
from tandem.wire.verifier_codec import EdgeCodec
from tandem_api.verifier.v1 import verifier_pb2 as pb


@pytest.mark.parametrize("grace_s", [math.nan, math.inf, -1.0])
def test_what_is_no_duration_is_refused(grace_s: float) -> None:
    frame = pb.VerifyResponse(session=1, going_away=pb.GoingAway(grace_s=grace_s))
    codec = EdgeCodec(64, PRESETS["coupled"].verify_settings)
    with pytest.raises(InvalidArgument) as refused:
        codec.decode(frame)
    assert refused.value.field == "grace_s"
    frame.going_away.grace_s = 2.5
    assert codec.decode(frame) == GoingAway(1, 0, 0, grace_s=2.5)
