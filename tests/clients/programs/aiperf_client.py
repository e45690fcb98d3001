"""The load generator aiperf: a few streamed chats, two at a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

# Not from `asked`: its environment is another one.
URL, MODEL, _ = sys.argv[1:]
TOKENIZER = Path(__file__).resolve().parents[3] / "models" / "demo-target"
command = [
    *(Path(sys.executable).with_name("aiperf"), "profile", "--model", MODEL, "--url", URL),
    *("--endpoint-type", "chat", "--streaming", "--tokenizer", TOKENIZER, "--ui", "none"),
    *("--request-count", "4", "--concurrency", "2"),
    *("--synthetic-input-tokens-mean", "16", "--output-tokens-mean", "8"),
    *("--extra-inputs", "ignore_eos:true"),
]
# Told that it is offline, it looks for a folder's tokenizer in the cache of a hub.
environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
subprocess.run(list(map(str, command)), env=environment, stdout=sys.stderr, check=True)
(path,) = Path("artifacts").glob("*/profile_export_aiperf.json")
report = json.loads(path.read_text())
print(
    json.dumps(
        {
            "requests": report["request_count"]["avg"],
            "tokens": report["total_usage_completion_tokens"]["avg"],
            "errors": report["error_summary"],
        }
    )
)
