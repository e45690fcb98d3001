"""Which kinds of standard input are read beside a prompt."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tandem.commands.prompt_input import prompt_of
from tandem.core.prompt import Prompt

OPTIONS = {"text": None, "prompt": None, "raw": True, "prompt_ids": None}


def prompt(text: str | None) -> Prompt:
    return prompt_of({**OPTIONS, "text": text})


@contextmanager
def standard_input(monkeypatch: pytest.MonkeyPatch, descriptor: int) -> Iterator[None]:
    with os.fdopen(descriptor, encoding="utf-8") as stream, monkeypatch.context() as patched:
        patched.setattr(sys, "stdin", stream)
        yield


def test_a_pipe_and_a_file_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("from afar\n")
    for expected, text in (("from afar", None), ("from afar\n\nwhat?", "what?")):
        read, write = os.pipe()
        os.write(write, b"from afar\n")
        os.close(write)
        with standard_input(monkeypatch, read):
            assert prompt(text) == expected
        with standard_input(monkeypatch, os.open(path, os.O_RDONLY)):
            assert prompt(text) == expected
