"""Office documents as other programs write them and Python's writers do not: raw XML in a zip."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Mapping

WORD_NAMES = (
    'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
    ' xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships"'
    ' xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006"'
    ' xmlns:wps="http://schemas.microsoft.com/office/word/2010/wordprocessingShape"'
    ' xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main"'
    ' xmlns:v="urn:schemas-microsoft-com:vml"'
    ' xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math"'
)
RELATIONS = "http://schemas.openxmlformats.org/package/2006/relationships"
KINDS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
ROOTS = {"header": "hdr", "footer": "ftr"}


def archive(parts: Mapping[str, str | bytes]) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as target:
        for name, content in parts.items():
            target.writestr(name, content)
    return written.getvalue()


def relations(*targets: tuple[str, str]) -> str:
    listed = "".join(
        f'<Relationship Id="r{number}" Type="{KINDS}/{kind}" Target="{target}"/>'
        for number, (kind, target) in enumerate(targets)
    )
    return f'<Relationships xmlns="{RELATIONS}">{listed}</Relationships>'


def docx(body: str, **beside: str) -> bytes:
    """A Word document of this XML, with these parts beside it, by their kind."""
    parts = {
        f"word/{kind}1.xml": f"<w:{ROOTS.get(kind, kind)} {WORD_NAMES}>{content}"
        f"</w:{ROOTS.get(kind, kind)}>"
        for kind, content in beside.items()
    }
    return archive(
        {
            "_rels/.rels": relations(("officeDocument", "word/document.xml")),
            "word/_rels/document.xml.rels": relations(*((kind, f"{kind}1.xml") for kind in beside)),
            "word/document.xml": f'<?xml version="1.0"?><w:document {WORD_NAMES}>'
            f"<w:body>{body}<w:sectPr/></w:body></w:document>",
            **parts,
        }
    )


def paragraph(*runs: str) -> str:
    return f"<w:p><w:pPr><w:tabs><w:tab/></w:tabs></w:pPr>{''.join(runs)}</w:p>"


def run(text: str) -> str:
    return f'<w:r><w:t xml:space="preserve">{text}</w:t></w:r>'


def table(*rows: tuple[str, ...]) -> str:
    """Cells are paragraphs, or XML."""
    cells = (
        "".join(f"<w:tc>{c if c.startswith('<') else paragraph(run(c))}</w:tc>" for c in row)
        for row in rows
    )
    return f"<w:tbl><w:tblPr/>{''.join(f'<w:tr>{row}</w:tr>' for row in cells)}</w:tbl>"


def changed(content: bytes, part: str, pattern: bytes, by: bytes) -> bytes:
    """The archive with what matches in a part replaced; it must match."""
    parts = {}
    with zipfile.ZipFile(io.BytesIO(content)) as source:
        for name in source.namelist():
            parts[name] = source.read(name)
    parts[part], count = re.subn(pattern, by, parts[part])
    assert count
    return archive(parts)
