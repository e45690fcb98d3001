"""`tandem up` with models of 13 billion parameters on a laptop: two tokens a second, forty of a
prompt, no sign of life within a pass, and real processes."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tandem.net.probe import ask
from tests.process.running_suite import TESTING, running_up

SILENT = Path(__file__).with_name("silent_passes")
PACE = {"PACE_FIRST_S": "0.5", "PACE_FURTHER_S": "0.025"}
MODELS = (
    *("--draft", "1", "--engine-draft", "scripted"),
    *("--target", "1", "--engine-target", "scripted"),
)
PROMPT = "what does the heron wait for? " * 7


def test_up_answers_and_is_serving_all_along() -> None:
    path = os.pathsep.join((str(SILENT), os.environ.get("PYTHONPATH", "")))
    environment = {**PACE, "PYTHONPATH": path}
    asked = ("--prompt", PROMPT, "--max-tokens", "4", "--ignore-eos")
    with (
        running_up(*MODELS, environment=environment, command=TESTING) as up,
        ThreadPoolExecutor() as threads,
    ):
        answering = threads.submit(up.generate, *asked)
        probed = set[str]()
        while not answering.done():
            probed.add(ask(up.verifier))
        answer = answering.result()
    assert (answer["tokens"], answer["unverified"]) == (4, [])
    assert (answer["resumes"], answer["links_lost"]) == (0, 0)
    assert answer["ttft_s"] > len(PROMPT) * 0.025 / 2, "the passes are slow"
    assert probed == {"SERVING"}
