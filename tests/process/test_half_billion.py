"""A model of real size, by its shape: half a billion random weights in 4 bits with a vocabulary of
151,936 tokens. What it writes is noise; that it starts, answers and stops in time is not."""

from __future__ import annotations

import json
import signal
import time
import urllib.request
from pathlib import Path

import pytest

from tests.process.running_suite import running_up, tandem
from tests.unit.backends.gguf_files import random_q4_gguf

STARTS_S = 40.0
"""Five on a quiet machine; other tests run beside this one."""
ANSWERS_S = 40.0
STOPS_S = 10.0
QUESTION = "Why is the sky blue, and why is it red in the evening? " * 5


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_q4_gguf(
        tmp_path_factory.mktemp("half") / "half-billion.gguf",
        layers=24,
        hidden_size=896,
        intermediate_size=4864,
        heads=14,
        kv_heads=2,
        vocabulary_size=151_936,
    )


def test_a_command_starts_and_answers_in_time(model: Path) -> None:
    began_s = time.monotonic()
    ended = tandem(
        *("generate", "--target", str(model), "--raw", QUESTION, "--max-tokens", "8"),
        *("--ignore-eos", "--seed", "1", "--json"),
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["tokens"] == 8
    assert time.monotonic() - began_s < STARTS_S + ANSWERS_S


def test_a_suite_starts_answers_each_request_and_stops_in_time(model: Path) -> None:
    began_s = time.monotonic()
    with running_up("--target", str(model), "--http-port", "0") as up:
        assert time.monotonic() - began_s < STARTS_S
        for preset in ("ar", "auto", "coupled"):
            asked_s = time.monotonic()
            body = {
                "model": "half-billion",
                "prompt": QUESTION,
                "max_tokens": 8,
                "ignore_eos": True,
                "tandem": {"preset": preset},
            }
            request = urllib.request.Request(
                f"{up.places['http']}/v1/completions",
                json.dumps(body).encode(),
                {"content-type": "application/json"},
            )
            with urllib.request.urlopen(request, timeout=ANSWERS_S) as answer:
                usage = json.load(answer)["usage"]
            assert usage["completion_tokens"] == 8
            assert time.monotonic() - asked_s < ANSWERS_S
        stopped_s = time.monotonic()
        up.process.send_signal(signal.SIGINT)
        assert up.process.wait(STOPS_S) == 0
        assert time.monotonic() - stopped_s < STOPS_S
