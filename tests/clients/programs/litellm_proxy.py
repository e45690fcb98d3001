"""LiteLLM's proxy before this server: what it is asked reaches us, and our answer comes back."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from asked import KEY, MAX_TOKENS, MODEL, QUESTION, V1, tell
from openai import OpenAI

START_S = 80.0
MASTER_KEY = "sk-" + "0123456789abcdef" * 4


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


def wait_for(url: str, proxy: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except OSError:  # refused, or not answered yet
            assert proxy.poll() is None, "the proxy ended"
            assert time.monotonic() < deadline, "the proxy does not answer"
            time.sleep(0.2)


port = free_port()
served = {"model": f"openai/{MODEL}", "api_base": V1, "api_key": KEY}
models = [{"model_name": "tandem", "litellm_params": served}]
Path("config.yaml").write_text(json.dumps({"model_list": models}))  # JSON is YAML
program = Path(sys.executable).with_name("litellm")
command = [program, "--config", "config.yaml", "--host", "127.0.0.1", "--port", str(port)]
environment = os.environ | {"LITELLM_MASTER_KEY": MASTER_KEY}
with subprocess.Popen(command, stdout=sys.stderr, env=environment) as proxy:
    try:
        wait_for(f"http://127.0.0.1:{port}/health/liveliness", proxy)
        client = OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=MASTER_KEY)
        asked = {
            "model": "tandem",
            "messages": [{"role": "user", "content": QUESTION}],
            "temperature": 0,
            "max_tokens": MAX_TOKENS,
        }
        text = client.chat.completions.create(**asked).choices[0].message.content
        parts = [
            chunk.choices[0].delta.content or ""
            for chunk in client.chat.completions.create(**asked, stream=True)
            if chunk.choices
        ]
    finally:
        proxy.terminate()
tell(text=text, streamed="".join(parts))
