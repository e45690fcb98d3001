"""Words of another party, made fit to be shown: a status, a reason, a name. Whoever runs a cloud
chooses these words, and they reach logs, terminals and HTTP bodies. Invariants: what comes out is
one line of printable characters, of bounded length; what is quoted says whose words it has."""

from __future__ import annotations

import re

MOST_CHARACTERS = 200
"""Of what is quoted: enough for a reason, and too little to hide anything else in."""
MOST_READ = 8192
"""Characters that are looked at, whatever was sent."""

_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"  # of a terminal: colours, the cursor
    r"|(?:\x1b\]|\x9d)[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"  # its title, links
    r"|\x1b[ -/]*[0-~]?"
)
_HOST = r"(?:\[[\w:.%]+\]|[\w.-]+):\d{1,5}(?!\w|\.\w)"
_AT = re.compile(rf" at (?:dns:///)?{_HOST}")
_UNREACHABLE = re.compile(rf"(?<![\w.:/\[-])(?:dns:///)?{_HOST}(?= cannot be reached)")
_OF_GRPC = re.compile(rf"(?:dns:///|ipv[46]:){_HOST}")


def cleaned(words: str, most: int = MOST_CHARACTERS) -> str:
    """Return `words` as one line of at most `most` printable characters, an ellipsis included where
    more were said. Escape sequences go; anything else that is not printable, such as line ends and
    what turns the direction of writing, becomes a space, however many there are of it."""
    shown: list[str] = []
    for letter in _ESCAPES.sub("", words[:MOST_READ]):
        if letter.isprintable():
            shown.append(letter)
        elif shown and shown[-1] != " ":
            shown.append(" ")
    line = "".join(shown).strip()  # only now: what was not printable may have stood before a space
    return line if len(line) <= most else f"{line[: most - 1].rstrip()}…"


def quoted(speaker: str, words: str) -> str:
    """Return `words` of `speaker`, cleaned: `the cloud at 192.0.2.1:50051 says: "no room"`."""
    line = in_quotes(words)
    return f"{speaker} says: {line}" if line else f"{speaker} gives no reason"


def without_addresses(words: str) -> str:
    """Return `words` of this software for whoever has no business with where its services are:
    `the cloud says: "no room"`."""
    words = _UNREACHABLE.sub("a service behind this one", _AT.sub("", words))
    return _OF_GRPC.sub("an address", words)


def in_quotes(words: str) -> str:
    """Return `words`, cleaned, in quotation marks that they cannot end; empty where they say
    nothing."""
    line = cleaned(words).replace('"', "'")
    return f'"{line}"' if line else ""
