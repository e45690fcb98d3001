"""What a line of a keys file says of limits."""

from __future__ import annotations

import pytest

from tandem.core.errors import InvalidArgument
from tandem.net.quotas import Quota


def test_fields_of_a_keys_file() -> None:
    own = Quota.parse({"scopes": "verify", "sessions": "8", "tokens_per_minute": "1000"})
    assert own == Quota(sessions=8, tokens_per_minute=1000)
    assert own.over(Quota(sessions=2, kv_bytes=5)) == Quota(8, 5, 0, 1000)
    for bad in ("-1", "1.5", "", "many", "٣"):
        with pytest.raises(InvalidArgument, match="sessions: must be a whole number"):
            Quota.parse({"sessions": bad})
