"""A chat model for a machine that has none: `python -m tools.first_model`, for `make run`.

Asks once, on a terminal alone, whether to download one from the Hugging Face hub, and says its
size. The exit code is 0 where a chat model is there at the end, else 1: no terminal, no hub, or no
wish.
"""

from __future__ import annotations

import sys

import click

from tandem.backends.llamacpp import library
from tandem.commands.pull import pull
from tandem.suite.chat_models import chat_models
from tandem.suite.default_model import MEMORY_SHARE, memory_bytes
from tandem.suite.hub_models import CannotPull, Hub, ModelName, chosen_files, shown_size
from tandem.suite.local_models import local_models

MODELS = (
    "Qwen/Qwen2.5-1.5B-Instruct-GGUF:Q4_K_M@91cad51170dc346986eccefdc2dd33a9da36ead9",
    "Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q4_K_M@9217f5db79a29953eb74d5343926648285ec7e67",
)
"""Instruct models under the Apache licence at one commit each, the better first."""


def main() -> int:
    if any(chat_models(local_models())):
        return 0
    if not (library.is_installed() and sys.stdin.isatty() and sys.stdout.isatty()):
        return 1
    try:
        name, size = _fitting()
        called = f"{name.partition('@')[0]} ({shown_size(size)})"
        question = f"No chat model is on this machine. Download {called}?"
        if not click.confirm(question, default=True):
            return 1
        pull.main([name], standalone_mode=False)
    except (CannotPull, click.Abort) as error:
        click.echo(str(error) or "no download", err=True)
        return 1
    return 0


def _fitting() -> tuple[str, int]:
    """Return the best model that fits into this machine's memory, and its size in bytes. Raises
    CannotPull where the hub does not have it, or cannot be reached."""
    hub = Hub()
    for name in MODELS:
        wanted = ModelName.parse(name)
        files = chosen_files(hub.find(wanted.name, wanted.revision), wanted.gguf)
        size = sum(file.size for file in files)
        if size <= MEMORY_SHARE * memory_bytes():
            break
    return name, size


if __name__ == "__main__":
    sys.exit(main())
