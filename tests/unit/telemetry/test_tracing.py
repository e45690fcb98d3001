"""Tracing that is off, and tracing that cannot be on."""

from __future__ import annotations

import subprocess
import sys

from tandem.telemetry.tracing import NO_TRACING, open_tracing


def test_it_is_off_without_an_endpoint() -> None:
    assert open_tracing(None, 1.0, "drafter") is NO_TRACING
    with NO_TRACING.span("generate", (("traceparent", "x"),), preset="dsd") as span:
        span.record("draft round", 0.1, accepted=3)
        span.note(tokens=4)
        assert span.headers() is None
        with NO_TRACING.span("another") as other:
            assert other is span
    NO_TRACING.close()


PROGRAM = """
import sys
sys.modules["opentelemetry"] = None
from tandem.telemetry.tracing import TracingUnavailable, open_tracing
import tandem.services.drafter.session
try:
    open_tracing("http://127.0.0.1:1", 1.0, "drafter")
except TracingUnavailable as error:
    print(error)
"""


def test_without_the_extra_all_works_until_it_is_wanted() -> None:
    program = [sys.executable, "-c", PROGRAM]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=60)
    said = "TANDEM_TRACE_ENDPOINT: needs opentelemetry: pip install 'tandem-edge[tracing]'\n"
    assert (ended.returncode, ended.stdout) == (0, said), ended.stderr
