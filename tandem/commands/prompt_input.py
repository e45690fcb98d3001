"""The prompt of `tandem generate`: from its argument, its flags and standard input.

A text is a question, the only turn of a conversation, unless `--raw` says that it is to be
continued, or `--suffix` how it goes on.

Standard input is read where the argument or a flag is `-`, and where something is piped in beside
the argument or instead of any prompt. `--prompt` and `--prompt-ids` alone leave it to others, such
as a loop of the shell that reads lines from it.
"""

import os
import stat
import sys
from contextlib import suppress
from typing import Any

from tandem.core.errors import InvalidArgument
from tandem.core.prompt import Prompt, Turn
from tandem.core.tokens import check_token_ids

STANDARD_INPUT = "-"
_FLAGS = ("prompt", "prompt_ids")


def prompt_of(options: dict[str, Any]) -> Prompt:
    """Return the prompt that the argument `text`, the flags and standard input make. Raises
    InvalidArgument naming the flag."""
    given = [name for name in _FLAGS if options.get(name) is not None]
    text = options["text"]
    beside = text == STANDARD_INPUT and given == ["prompt"]
    if len(given) > 1 or (given and text is not None and not beside):
        raise InvalidArgument("prompt", "give exactly one of TEXT, --prompt, --prompt-ids")
    if given == ["prompt_ids"]:
        return _ids(options["prompt_ids"])
    asked = options["prompt"] if given else text
    if beside:
        asked = _joined(_standard_input(), asked)
    elif asked == STANDARD_INPUT:
        asked = _standard_input()
    elif not given:
        asked = _joined(_piped(), asked)
        if not asked and text is None:
            flags = ", --prompt, --prompt-ids" if "prompt" in options else ""
            raise InvalidArgument("prompt", f"give TEXT{flags}, or pipe a text")
    if not _is_utf_8(asked):
        raise InvalidArgument("prompt", "is not UTF-8")
    continued = options["raw"] or options.get("suffix")
    return asked if continued else (Turn("user", asked),)


def _joined(piped: str, asked: str | None) -> str:
    """Join what is piped in with the question about it, which comes second, after an empty line."""
    return f"{piped}\n\n{asked}" if piped and asked else piped or asked or ""


def _is_utf_8(text: str) -> bool:
    """Return whether a text of the command line is one: Python reads other bytes as surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _standard_input() -> str:
    """Return what stands there, up to its end; a terminal's user types it."""
    if not (text := _read()):
        raise InvalidArgument("prompt", "standard input is empty")
    return text


def _piped() -> str:
    """Return what a pipe or a file brings, or nothing; a terminal is not waited for."""
    if sys.stdin is None or sys.stdin.isatty():
        return ""
    with suppress(OSError, ValueError):  # no file: a text that a program put in the place of one
        if stat.S_ISCHR(os.fstat(sys.stdin.fileno()).st_mode):  # /dev/null
            return ""
    return _read()


def _read() -> str:
    """Return all of standard input without the end of its last line."""
    try:
        return sys.stdin.read().rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise InvalidArgument("prompt", f"standard input is not text: {error}") from error


def _ids(text: str) -> Prompt:
    try:
        token_ids = tuple(int(word) for word in text.split(",") if word.strip())
    except ValueError:
        raise InvalidArgument("prompt_ids", "must be whole numbers, for example 1,2,3") from None
    if not token_ids:
        raise InvalidArgument("prompt_ids", "is empty")
    check_token_ids(token_ids, 2**32, "prompt_ids")
    return token_ids
