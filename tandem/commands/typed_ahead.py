"""What a person types while a chat answers: not shown in the text, and kept for the next turn."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def typing_kept() -> Iterator[None]:
    """Until the context ends, have the terminal of standard input show nothing of what is typed,
    and keep it for whoever reads next, after Ctrl-C too."""
    try:
        import termios
    except ImportError:  # Windows
        yield
        return
    if not sys.stdin.isatty():
        yield
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    local_flags = 3
    quiet = [*before]
    quiet[local_flags] = (before[local_flags] & ~termios.ECHO) | termios.NOFLSH
    termios.tcsetattr(terminal, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSANOW, before)
