"""What `tandem doctor --memory` says of running services."""

from __future__ import annotations

import json
import mmap
import os
import re
import sys

import pytest

from tandem.commands.measure_memory import proportional_set_bytes
from tandem.core.errors import TandemError
from tests.process.running_suite import TESTING, TIMEOUT_S, tandem
from tests.process.test_cli import SCRIPTED

pytestmark = [
    pytest.mark.timeout(TIMEOUT_S),
    pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel"),
]


def test_the_services_of_a_pair_are_started_asked_and_measured() -> None:
    ended = tandem("doctor", "--memory", "--json", *SCRIPTED, command=TESTING)
    checks = {one["name"]: one for one in json.loads(ended.stdout)["checks"]}
    words = checks["memory"]["found"]
    assert checks["memory"]["ok"], words
    sizes = dict(re.findall(r"(aggregator|drafter|verifier) (\d+) MB", words))
    assert sizes.keys() == {"aggregator", "drafter", "verifier"}
    assert all(int(size) > 20 for size in sizes.values()), words
    (together,) = re.findall(r"^(\d+) MB together", words)
    assert abs(int(together) - sum(map(int, sizes.values()))) <= 2


def test_a_process_s_memory_grows_by_what_it_touches() -> None:
    size = 64 * 2**20
    before = proportional_set_bytes(os.getpid())
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as area:
        untouched = proportional_set_bytes(os.getpid())
        area.write(b"x" * size)
        touched = proportional_set_bytes(os.getpid())
    assert untouched - before < size / 4
    assert touched - untouched > size / 2


def test_a_process_that_is_not_there_is_named() -> None:
    with pytest.raises(TandemError, match="/proc/0/smaps_rollup does not exist"):
        proportional_set_bytes(0)
