"""llm-comply, a suite that knows the published specifications, in each dialect that we speak."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from asked import KEY, MODEL, V1, tell

LLM_COMPLY = [sys.executable, "-m", "llm_comply.cli", "--json", "--timeout", "100"]
SERVER = ["--base-url", V1, "--api-key", KEY, "--model", MODEL]


def results(dialect: str) -> list[dict[str, Any]]:
    """Run all tests of a dialect; each has an id, a status and the errors that were found."""
    command = [*LLM_COMPLY, *SERVER, "--format", dialect]
    written = subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout
    return [
        {name: each.get(name) for name in ("id", "status", "errors")}
        for each in json.loads(written)["results"]
    ]


tell(**{each: results(each) for each in ("openai-chat", "open-responses", "anthropic")})
