"""The command `llm`, which knows this server by a file of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from asked import MAX_TOKENS, MODEL, QUESTION, V1, tell

folder = Path("llm").absolute()
folder.mkdir()
entry = [{"model_id": "tandem", "model_name": MODEL, "api_base": V1}]
(folder / "extra-openai-models.yaml").write_text(json.dumps(entry))  # JSON is YAML


def llm(*arguments: str) -> str:
    program = Path(sys.executable).with_name("llm")
    ended = subprocess.run(
        [program, *arguments],
        env={"LLM_USER_PATH": str(folder), "HOME": str(folder)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


prompt = ("prompt", "-m", "tandem", QUESTION, "-o", "temperature", "0")
limit = ("-o", "max_tokens", str(MAX_TOKENS))
tell(
    text=llm(*prompt, *limit, "--no-stream").removesuffix("\n"),
    streamed=llm(*prompt, *limit).removesuffix("\n"),
)
