r"""Names of documents that come from tenants, and names as they are shown.

The operator's own names are paths, URLs or numbers in a file, and are taken as they are. A tenant's
name is shown to others, in citations and on terminals, and meets file systems when it is exported,
so it may be one file name that looks like what it is.

    clean_name(" Re\u0301sume\u0301.md ")   # "Résumé.md": trimmed, in NFC
    clean_name("../notes.md")               # InvalidArgument: name: contains a path separator, …
    shown("a\x1b[31mb")                     # "a�[31mb"
"""

import unicodedata

from tandem.core.errors import InvalidArgument

MAX_NAME_BYTES = 200

_NO_TEXT = {
    "Cc": "a control character",
    "Cf": "an invisible or bidirectional mark",
    "Co": "a character of private use",
    "Cs": "half a surrogate pair",
    "Zl": "a line separator",
    "Zp": "a line separator",
}
"""Categories of Unicode that change how what is around them is shown, or are not shown."""

_INVISIBLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0")
"""Letters and marks that look like nothing."""

_SEPARATORS = "/\\"
REPLACEMENT = "\ufffd"
_AS_SPACES = str.maketrans("\t\n\r", "   ")


def clean_name(name: str) -> str:
    """Return `name` trimmed and in NFC. Raises InvalidArgument("name") for one that is empty,
    longer than MAX_NAME_BYTES in UTF-8, a path, or holds what is not shown as itself."""
    for character in name:
        if (why := _fault_of(character)) is not None:
            raise InvalidArgument("name", f"contains {why}, U+{ord(character):04X}")
    cleaned = unicodedata.normalize("NFC", name).strip()
    if not cleaned:
        raise InvalidArgument("name", "must not be empty")
    if (size := len(cleaned.encode())) > MAX_NAME_BYTES:
        raise InvalidArgument("name", f"has {size} bytes; the maximum is {MAX_NAME_BYTES}")
    # Full-width forms and the like: what a program that folds them would take for a path.
    folded = unicodedata.normalize("NFKC", cleaned)
    if any(separator in folded for separator in _SEPARATORS):
        raise InvalidArgument("name", f"contains a path separator, one of {_SEPARATORS}")
    if folded.strip() in (".", ".."):
        raise InvalidArgument("name", "must not be . or ..")
    return cleaned


def shown(text: str) -> str:
    """Return `text` on one line, safe for a terminal: what is not shown as itself is replaced."""
    text = text.translate(_AS_SPACES)
    return "".join(REPLACEMENT if _fault_of(character) else character for character in text)


def _fault_of(character: str) -> str | None:
    if " " <= character <= "~":
        return None
    if character in _INVISIBLE:
        return "an invisible character"
    return _NO_TEXT.get(unicodedata.category(character))
