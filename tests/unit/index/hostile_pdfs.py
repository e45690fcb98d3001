"""PDFs made to cost their reader far more than they weigh: some hundred bytes to some kilobytes."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence


def pdf_of(objects: Mapping[int, bytes], root: int = 1) -> bytes:
    """A file of these objects by number, with a table of where they are."""
    body, places = b"%PDF-1.7\n", {}
    for number, content in objects.items():
        places[number] = len(body)
        body += b"%d 0 obj\n%b\nendobj\n" % (number, content)
    size = max(objects) + 1
    table = b"xref\n0 %d\n0000000000 65535 f \n" % size
    for number in range(1, size):
        table += b"%010d 00000 %b \n" % (places.get(number, 0), b"n" if number in places else b"f")
    trailer = b"trailer\n<< /Size %d /Root %d 0 R >>\nstartxref\n%d\n%%%%EOF" % (
        size,
        root,
        len(body),
    )
    return body + table + trailer


def stream(content: bytes, fields: bytes = b"") -> bytes:
    packed = zlib.compress(content, 9)
    return b"<< /Length %d /Filter /FlateDecode %b >>\nstream\n%b\nendstream" % (
        len(packed),
        fields,
        packed,
    )


CATALOG = b"<< /Type /Catalog /Pages 2 0 R >>"
FONT = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"
PAGE = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] /Contents 4 0 R %b >>"


def pages(kids: Sequence[int], count: int) -> bytes:
    listed = b" ".join(b"%d 0 R" % kid for kid in kids)
    return b"<< /Type /Pages /Count %d /Kids [%b] >>" % (count, listed)


def one_page(content: bytes, resources: bytes = b"", **more: bytes) -> bytes:
    objects = {
        1: CATALOG,
        2: pages([3], 1),
        3: PAGE % (b"/Resources << /Font << /F1 5 0 R >> %b >>" % resources),
        4: stream(content),
        5: FONT,
    }
    objects.update({int(number[1:]): each for number, each in more.items()})
    return pdf_of(objects)


def many_operations() -> bytes:
    """50 MB of text operators in 100 kB."""
    return one_page(b"BT /F1 9 Tf " + b"(x) Tj " * 7_000_000 + b"ET")


def one_page_many_times() -> bytes:
    text = stream(b"BT /F1 9 Tf (x) Tj ET")
    resources = b"/Resources << /Font << /F1 5 0 R >> >>"
    return pdf_of(
        {1: CATALOG, 2: pages([3] * 300_000, 300_000), 3: PAGE % resources, 4: text, 5: FONT}
    )


def a_billion_pages() -> bytes:
    """Thirty tables of pages, each of which holds the next one twice."""
    depth, first = 30, 10
    objects = {1: CATALOG, 2: pages([first], 2**depth), 3: PAGE % b"", 4: stream(b"")}
    for level in range(depth):
        below = 3 if level == depth - 1 else first + level + 1
        objects[first + level] = pages([below, below], 2 ** (depth - level))
    return pdf_of(objects)


def pages_within_themselves() -> bytes:
    return pdf_of({1: CATALOG, 2: pages([2, 3], 2), 3: PAGE % b"", 4: stream(b"")})


def deep_tables_of_pages() -> bytes:
    depth, first = 20_000, 10
    objects = {1: CATALOG, 2: pages([first], 1), 3: PAGE % b"", 4: stream(b"")}
    for level in range(depth):
        objects[first + level] = pages([3 if level == depth - 1 else first + level + 1], 1)
    return pdf_of(objects)


def deep_arrays() -> bytes:
    return one_page(b"[" * 500_000)


def forms_that_draw_the_next_twice() -> bytes:
    """A picture of pictures, thirty deep."""
    depth, first = 30, 10
    forms = {}
    for level in range(depth):
        resources = b"" if level == depth - 1 else b"/XObject << /X %d 0 R >>" % (first + level + 1)
        fields = (
            b"/Type /XObject /Subtype /Form /BBox [0 0 9 9]"
            b" /Resources << /Font << /F1 5 0 R >> %b >>" % resources
        )
        content = b"BT /F1 9 Tf (x) Tj ET /X Do /X Do"
        forms[f"_{first + level}"] = stream(content, fields)
    return one_page(b"/X Do /X Do", b"/XObject << /X %d 0 R >>" % first, **forms)


def a_form_that_draws_itself() -> bytes:
    fields = (
        b"/Type /XObject /Subtype /Form /BBox [0 0 9 9] /Resources << /XObject << /X 10 0 R >> >>"
    )
    return one_page(b"/X Do", b"/XObject << /X 10 0 R >>", _10=stream(b"/X Do", fields))


def a_table_that_follows_itself() -> bytes:
    """Its `Prev` names itself."""
    content = pdf_of({1: CATALOG, 2: pages([3], 1), 3: PAGE % b"", 4: stream(b"")})
    place = int(content.split(b"startxref\n")[1].split()[0])
    return content.replace(b"/Root", b"/Prev %d /Root" % place)


def object_streams_within_each_other() -> bytes:
    """Object 2 is in the object stream 6, which says that it is in 7, which says it is in 6."""
    held = stream(b"2 0 " + pages([3], 1), b"/Type /ObjStm /N 1 /First 4")
    plain = {1: CATALOG, 3: PAGE % b"", 4: stream(b"")}
    body, rows = b"%PDF-1.7\n", {}
    for number, each in {**plain, 8: held}.items():
        rows[number] = (1, len(body), 0)
        body += b"%d 0 obj\n%b\nendobj\n" % (number, each)
    rows.update({2: (2, 6, 0), 6: (2, 7, 0), 7: (2, 6, 0), 9: (1, len(body), 0)})
    packed = b"".join(
        bytes([kind]) + where.to_bytes(4, "big") + bytes([place])
        for kind, where, place in (rows.get(number, (0, 0, 0)) for number in range(10))
    )
    table = stream(packed, b"/Type /XRef /Size 10 /W [1 4 1] /Root 1 0 R")
    place = len(body)
    return body + b"9 0 obj\n%b\nendobj\nstartxref\n%d\n%%%%EOF" % (table, place)


def much_of_nothing() -> bytes:
    """128 MB, packed three times over: less than one kilobyte."""
    packed = zlib.compress(zlib.compress(zlib.compress(b" " * 2**27, 9), 9), 9)
    fields = b"/Filter [/FlateDecode /FlateDecode /FlateDecode]"
    content = b"<< /Length %d %b >>\nstream\n%b\nendstream" % (len(packed), fields, packed)
    return pdf_of({1: CATALOG, 2: pages([3], 1), 3: PAGE % b"", 4: content})


HOSTILE_PDFS = (
    many_operations,
    one_page_many_times,
    a_billion_pages,
    pages_within_themselves,
    deep_tables_of_pages,
    deep_arrays,
    forms_that_draw_the_next_twice,
    a_form_that_draws_itself,
    a_table_that_follows_itself,
    object_streams_within_each_other,
    much_of_nothing,
)
