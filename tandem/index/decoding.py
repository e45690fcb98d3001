"""Letters out of bytes, as browsers read them: by a byte order mark, by the encoding that the bytes
declare, as UTF-8, or by what they look like. Labels are those of the WHATWG Encoding standard
(`gb2312` means GB18030, `iso-8859-1` windows-1252).

Invariant: a letter at fault costs itself alone, and becomes U+FFFD. Linear in the length.
"""

from __future__ import annotations

import codecs
import re
from contextlib import suppress

from tandem.core.errors import InvalidArgument

GUESSED_BYTES = 2**14
"""Around the first byte that is not UTF-8: where an encoding is looked for, which takes time."""
MOST_BROKEN_SHARE = 0.1
"""Of the letters beyond ASCII, up to which a text with broken letters is UTF-8 all the same."""
LEAST_GUESSED = 8
"""Bytes beyond ASCII, below which a page says too little for a guess."""
REPLACING = "tandem.replacing"

_ASCII = bytes(range(128))
_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32-le",  # before UTF-16's, with which it begins
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
_XML_DECLARATION = re.compile(rb"""\s*<\?xml[^<>]*?\bencoding\s*=[\s"']*([\w.:-]+)""")
_META = re.compile(rb"""<meta[^<>]*?\bcharset\s*=[\s"']*([\w.:-]+)""", re.IGNORECASE)
_WIDER = {
    "gbk": "gb18030",
    "euc-jp": "euc_jis_2004",
    # Who was able to read the declaration cannot have read UTF-16.
    "utf-16be": "utf-8",
    "utf-16le": "utf-8",
}
"""Codecs of Python that know more letters than the one of the encoding's name, as the standard
does."""
_READS_NOTHING = frozenset(("replacement", "x-user-defined"))


def decoded_text(content: bytes) -> str:
    """Decode a text. Raises InvalidArgument for what is no text, or in no known encoding."""
    text = _by_mark(content)
    if text is None:
        _refuse_zeros(content)
        if is_utf8(content):
            return content.decode()
        text = _by_declaration(content, _XML_DECLARATION) or _as_utf8(content) or _guessed(content)
    if text is None:
        raise InvalidArgument("content", "is text of no known encoding")
    return text


def decoded_page(content: bytes) -> str:
    """Decode an HTML page. Raises InvalidArgument for what is none."""
    text = _by_mark(content)
    if text is not None:
        return text
    _refuse_zeros(content)
    if is_utf8(content) and not content.isascii():
        return content.decode()  # whatever it declares
    text = _by_declaration(content, _META) or _by_declaration(content, _XML_DECLARATION)
    text = text or _as_utf8(content)
    if text is None and len(content.translate(None, _ASCII)) >= LEAST_GUESSED:
        text = _guessed(content)
    return content.decode("cp1252", REPLACING) if text is None else text


def by_label(content: bytes, label: str) -> str | None:
    """Decode `content` by an encoding's label; return None for a label that is not known."""
    import webencodings

    encoding = webencodings.lookup(label)
    if encoding is None or encoding.name in _READS_NOTHING:
        return None
    name = _WIDER.get(encoding.name, encoding.codec_info.name)
    return content.decode(name, REPLACING)


def is_utf8(content: bytes) -> bool:
    """Return whether `content` is UTF-8, so that no other encoding need be looked for."""
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def _by_mark(content: bytes) -> str | None:
    for mark, encoding in _MARKS.items():
        if content.startswith(mark):
            return content[len(mark) :].decode(encoding, "replace")
    return None


def _refuse_zeros(content: bytes) -> None:
    if b"\0" in content:
        raise InvalidArgument("content", f"is not text: a zero byte at {content.index(0)}")


def _by_declaration(content: bytes, declaration: re.Pattern[bytes]) -> str | None:
    search = declaration.match if declaration is _XML_DECLARATION else declaration.search
    declared = search(content)
    return by_label(content, declared[1].decode("latin-1")) if declared else None


def _as_utf8(content: bytes) -> str | None:
    """Decode UTF-8, a few letters of which may be broken."""
    text = content.decode(errors="replace")
    beyond_ascii = len(text) - len(text.encode("ascii", "ignore"))
    broken = text.count("\ufffd")
    return text if broken <= MOST_BROKEN_SHARE * beyond_ascii else None


def _guessed(content: bytes) -> str | None:
    """Decode text in the encoding that its bytes suggest; return None for bytes that look like no
    text."""
    from charset_normalizer import from_bytes

    try:
        return content.decode()
    except UnicodeDecodeError as error:
        sample = content[max(0, error.start - GUESSED_BYTES // 2) :][:GUESSED_BYTES]
    matches = list(from_bytes(sample))
    if not matches:
        return None
    # The likeliest first; of those that are as likely, as is common for a few words, the encoding
    # that most such files have.
    best = matches[0]
    as_likely = [m for m in matches if (m.chaos, m.coherence) == (best.chaos, best.coherence)]
    common = any("cp1252" in (match.encoding, *match.could_be_from_charset) for match in as_likely)
    with suppress(UnicodeDecodeError):
        return content.decode("cp1252" if common else best.encoding)
    return None


def _replaced(error: UnicodeError) -> tuple[str, int]:
    """Stand in for bytes that an encoding lacks. Encodings of one byte have controls where Windows
    left places free."""
    assert isinstance(error, UnicodeDecodeError)
    odd = error.object[error.start]
    if error.encoding == "charmap" and 0x80 <= odd < 0xA0:
        return chr(odd), error.start + 1
    return "\ufffd", error.end


codecs.register_error(REPLACING, _replaced)
