"""A line on the terminal while models load, gone once they are there. Invariant: what is no
terminal gets nothing."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tandem.backends.model_source import ModelChoice

_ERASE = "\r\x1b[K"


@contextmanager
def loading_line(*choices: ModelChoice) -> Iterator[Callable[[], None]]:
    """Say on standard error that these models are being loaded, until the context ends or the
    function is called that it gives."""
    terminal = sys.stderr
    if not terminal.isatty():
        yield lambda: None
        return
    names = dict.fromkeys(_name(choice.source) for choice in choices)
    terminal.write(f"loading {', '.join(names)} ...")
    terminal.flush()
    shown = True

    def end() -> None:
        nonlocal shown
        if shown:
            shown = False
            terminal.write("\n" if os.environ.get("TERM") == "dumb" else _ERASE)
            terminal.flush()

    try:
        yield end
    finally:
        end()


def _name(source: str) -> str:
    """Return the last part of a path; a model of the hub keeps the owner in its name."""
    return Path(source).name if Path(source).exists() else source
