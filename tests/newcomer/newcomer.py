"""A person who has nothing yet and follows a page: its blocks in their order, by bash, each with
what it showed and how long it took."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

from tests.docs.blocks import Block, blocks_of
from tests.process.service_process import free_port

MAKES_ENVIRONMENT = "creates the environment that runs this test"
"""The reason of blocks that the tests of commands cannot run, and a newcomer begins with."""
LOCAL_ADDRESS = "127.0.0.1:8000"
TOY = "demo-target"
"""The model that pages name in requests, and for which they say to write one's own."""
TIMEOUT_S = 900.0


@dataclass(frozen=True, slots=True)
class Shown:
    """What a block wrote, and the seconds that it took."""

    out: str
    err: str
    seconds: float


@dataclass
class Newcomer:
    """Works in `folder`, with `home` as home, and finds programs in `programs` first."""

    folder: Path
    home: Path
    programs: Path
    times: dict[str, float]
    """Seconds of what was done, by what it was."""
    variables: dict[str, str] = field(default_factory=dict)
    _up: subprocess.Popen[str] | None = None
    _address: str = LOCAL_ADDRESS
    _model: str = TOY

    def follow(self, block: Block) -> Shown:
        """Do what a block says. `tandem up` goes on until the next one, or until `leave`."""
        text = block.text.replace(LOCAL_ADDRESS, self._address).replace(TOY, self._model)
        if text.startswith("tandem up"):
            return self._serve(str(block), text)
        words = ["python", "-"] if block.language == "python" else _bash(text)
        return self.run(str(block), *words, typed=text if block.language == "python" else "")

    def run(self, done: str, *words: str, typed: str = "") -> Shown:
        """Run a command to its end, which must be a good one; `done` names it among the times."""
        began_s = time.monotonic()
        ended = subprocess.run(
            words,
            input=typed,
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=self.environment,
            timeout=TIMEOUT_S,
        )
        self.times[done] = time.monotonic() - began_s
        assert ended.returncode == 0, f"{done}: {words}\n{ended.stdout}\n{ended.stderr}"
        return Shown(ended.stdout, ended.stderr, self.times[done])

    @property
    def environment(self) -> dict[str, str]:
        """Nothing of the tests' own: neither their models and settings, nor their programs."""
        foreign = ("TANDEM_", "PYTHON", "XDG_", "HF_", "VIRTUAL_ENV", "OMP_", "MAKE", "MFLAGS")
        kept = {name: text for name, text in os.environ.items() if not name.startswith(foreign)}
        own = str(Path(sys.executable).parent)
        path = [part for part in kept["PATH"].split(":") if part != own]
        cache = os.environ.get("PIP_CACHE_DIR", str(Path.home() / ".cache" / "pip"))
        # What was downloaded once is not downloaded again: the index is other people's.
        return {
            **kept,
            "HOME": str(self.home),
            "PATH": ":".join([str(self.programs), *path]),
            "PIP_CACHE_DIR": cache,
            **self.variables,
        }

    def leave(self) -> None:
        """Press Ctrl-C where the suite runs, which must end well."""
        if self._up is not None:
            self._up.send_signal(signal.SIGINT)
            _, err = self._up.communicate(timeout=TIMEOUT_S)
            assert self._up.returncode == 0, err
            self._up = None

    def kill(self) -> None:
        """End what still runs, however that ends."""
        if self._up is not None:
            self._up.kill()
            self._up.communicate()

    def texts_kept(self) -> list[str]:
        """Files that Tandem keeps in the home, but for models."""
        places = (".local/state/tandem", ".cache/tandem", ".config/tandem")
        return sorted(
            str(path.relative_to(self.home))
            for place in places
            for path in (self.home / place).rglob("*")
            if path.is_file()
        )

    def _serve(self, done: str, text: str) -> Shown:
        self.leave()
        ports = f" --port {free_port()} --http-port {free_port()}"
        began_s = time.monotonic()
        self._up = subprocess.Popen(
            _bash(f"exec {text}{ports}"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=self.environment,
        )
        assert self._up.stdout is not None
        lines = []
        for line in self._up.stdout:
            lines.append(line)
            if line.startswith("stop:"):
                break
        else:
            raise AssertionError(f"{done}: {self._up.communicate()[1]}")
        self.times[done] = time.monotonic() - began_s
        said = "".join(lines)
        found = re.search(r"serving at http://(\S+)", said)
        assert found is not None, said
        self._address = found[1]
        with urllib.request.urlopen(f"http://{self._address}/v1/models") as answer:
            self._model = json.load(answer)["data"][0]["id"]
        return Shown(said, "", self.times[done])

    def page(self) -> str:
        """Open the web page of the suite that runs."""
        with urllib.request.urlopen(f"http://{self._address}/") as answer:
            text: str = answer.read().decode()
        return text


def blocks_to_follow(page: str) -> list[Block]:
    """Blocks of a page that one person can follow on one machine. What stands before the one that
    installs comes after the rest: there is nothing yet to run it with."""
    blocks = [block for block in blocks_of(Path(page)) if _is_followed(block)]
    installs = [index for index, block in enumerate(blocks) if "make run" in block.text]
    first = installs[0]
    return blocks[first:] + blocks[:first]


def _is_followed(block: Block) -> bool:
    runs = block.is_shell or block.language == "python"
    return runs and block.reason in (None, MAKES_ENVIRONMENT)


def _bash(text: str) -> list[str]:
    return ["bash", "-euo", "pipefail", "-c", text]
