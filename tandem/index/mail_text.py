"""Text of a mail as its reader sees it: its heads, its parts decoded, names of what is attached."""

from __future__ import annotations

from collections.abc import Iterator
from email import message_from_bytes, policy
from email.message import EmailMessage, MIMEPart

from tandem.core.errors import InvalidArgument
from tandem.index.decoding import by_label, decoded_page, is_utf8
from tandem.index.page_text import page_text

SHOWN_HEADS = ("Subject", "From", "To", "Cc", "Date")
_PLAINEST_FIRST = ("text/plain", "text/html")


def mail_text(content: bytes) -> tuple[str, str]:
    """Return (subject, text). Raises InvalidArgument for what is no mail."""
    message = message_from_bytes(content, EmailMessage, policy=policy.default)
    if not message.keys():
        raise InvalidArgument("content", "is not a mail: it has no heads")
    return _head(message, "Subject"), "\n\n".join(_whole(message))


def _whole(message: MIMEPart) -> Iterator[str]:
    heads = ((name, _head(message, name)) for name in SHOWN_HEADS)
    yield "\n".join(f"{name}: {head}" for name, head in heads if head)
    yield from _shown(message)


def _head(message: MIMEPart, name: str) -> str:
    try:
        return str(message[name] or "")
    except Exception:  # the library raises errors of many kinds for heads that are broken
        return ""


def _shown(part: MIMEPart) -> Iterator[str]:
    """Yield what a reader is shown of a part."""
    kind = part.get_content_type()
    inner = [one for one in part.iter_parts() if isinstance(one, MIMEPart)]
    if kind == "message/rfc822":
        for forwarded in inner:
            yield from _whole(forwarded)
    elif kind == "multipart/alternative":
        texts = {one.get_content_type(): "\n\n".join(_shown(one)) for one in inner}
        plainest = (texts.pop(kind, "") for kind in _PLAINEST_FIRST)
        yield next(filter(str.strip, (*plainest, *texts.values())), "")
    elif inner:
        for one in inner:
            yield from _shown(one)
    elif part.is_attachment() or part.get_content_maintype() != "text":
        if name := part.get_filename():
            yield f"Attachment: {name}"
    else:
        yield _decoded(part, is_page=kind == "text/html")


def _decoded(part: MIMEPart, *, is_page: bool) -> str:
    """Return the text of a part: UTF-8, or in the encoding that its head names."""
    content = part.get_payload(decode=True)
    if not isinstance(content, bytes):  # of a part that says that it has parts
        return ""
    content = content.replace(b"\0", b"")  # one odd part costs no other
    label = part.get_content_charset()
    text = None
    if label and (content.isascii() or not is_utf8(content)):
        text = by_label(content, label)
    if text is None:
        text = decoded_page(content)
    return page_text(text)[1] if is_page else text
