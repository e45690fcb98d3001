"""Text of an HTML page: what a reader sees, one line per block, and cells apart from each other.

Invariant: time grows no faster than the page. Nothing of a page is run or fetched.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tandem.core.errors import InvalidArgument
from tandem.index.tables import table_lines

MAX_DEPTH = 1000
"""An end tag is sought among all elements that are open: their number is what keeps time linear.
Browsers stop at 512."""
PIECE_LENGTH = 2**14
"""What is parsed before the depth is looked at again."""
MOST_COLUMNS = 50
"""Of a cell that spans several."""

_HIDDEN = frozenset(("script", "style", "template", "noscript"))
_BLOCKS = frozenset(
    (
        *("address", "article", "aside", "blockquote", "br", "caption", "center", "dd", "details"),
        *("dialog", "div", "dl", "dt", "fieldset", "figcaption", "figure", "footer", "form", "h1"),
        *("h2", "h3", "h4", "h5", "h6", "header", "hr", "legend", "li", "main", "nav", "ol"),
        *("optgroup", "option", "p", "pre", "section", "select", "summary", "table", "textarea"),
        *("tr", "ul"),
    )
)
_APART = frozenset(("button", "iframe", "img", "input", "label", "object", "td", "th", "video"))
"""Beside each other on a line, but not one word."""


def page_text(page: str) -> tuple[str, str]:
    """Return (title, text). Raises InvalidArgument for a page that is nested too deep."""
    from lxml import etree

    if "\0" in page:
        raise InvalidArgument("content", f"is not HTML: a zero byte at {page.index(chr(0))}")
    if not page:  # which the parser calls an error
        return "", ""
    reader = _Reader()
    parser = etree.HTMLParser(
        target=reader,
        encoding="utf-8",
        huge_tree=True,  # no tree is built: the limits of one would only cut long texts off
        no_network=True,
        remove_comments=True,
        remove_pis=True,
    )
    try:
        for start in range(0, len(page), PIECE_LENGTH):
            parser.feed(page[start : start + PIECE_LENGTH].encode())
        parser.close()
    except etree.LxmlError as error:
        raise InvalidArgument("content", f"is not readable HTML: {error}") from error
    return " ".join(reader.title), re.sub(r"[^\S\n]+", " ", "".join(reader.text))


@dataclass(slots=True)
class _Cell:
    """Where a cell stands among the pieces of text; `columns` that it spans."""

    begin: int
    end: int
    is_name: bool
    columns: int


class _Table:
    """The cells of a table that is being read."""

    def __init__(self) -> None:
        self.holds_table = False
        """Whether there is another one in a cell, as where tables arrange a page."""
        self._rows: list[list[_Cell]] = []

    def begin(self, tag: str, attributes: Mapping[str, str], place: int) -> None:
        if tag == "tr" or not self._rows:
            self._rows.append([])
        if tag != "tr":
            span = attributes.get("colspan", "")
            columns = min(int(span), MOST_COLUMNS) if span.isdecimal() else 1
            self._rows[-1].append(_Cell(place, place, tag == "th", columns))

    def end_cell(self, place: int) -> None:
        if self._rows and self._rows[-1]:
            self._rows[-1][-1].end = place

    @property
    def begins(self) -> int:
        return self._rows[0][0].begin

    @property
    def has_names(self) -> bool:
        """Whether its first row names its columns."""
        first = self._rows[0] if self._rows else []
        return not self.holds_table and len(first) > 1 and all(c.is_name for c in first[1:])

    def rows(self, text: Sequence[str]) -> Iterator[list[str]]:
        """Yield the texts of each row, with nothing in the columns that a cell spans besides its
        first."""
        for row in self._rows:
            cells = (["".join(text[c.begin : c.end]), *[""] * (c.columns - 1)] for c in row)
            yield [cell for spanned in cells for cell in spanned]


class _Reader:
    """Target of the parser, which closes what a page leaves open."""

    def __init__(self) -> None:
        self.title: list[str] = []
        """Words of the first title."""
        self.text: list[str] = []
        self._depth = 0
        self._hidden_below: int | None = None
        """The depth of the outermost element whose text is not shown."""
        self._in_title = self._had_title = False
        self._tables: list[_Table] = []

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise InvalidArgument("content", f"more than {MAX_DEPTH} HTML elements are nested")
        if self._hidden_below is not None:
            return
        if tag == "title" and not self._had_title:
            self._in_title = self._had_title = True
            self._hidden_below = self._depth
        elif tag in _HIDDEN:
            self._hidden_below = self._depth
        self._separate(tag)
        if tag == "table":
            self._tables.append(_Table())
        elif self._tables and tag in ("tr", "td", "th"):
            self._tables[-1].begin(tag, attributes, len(self.text))

    def end(self, tag: str) -> None:
        if self._hidden_below == self._depth:
            self._hidden_below = None
            self._in_title = False
        elif self._hidden_below is None:
            if self._tables and tag in ("td", "th"):
                self._tables[-1].end_cell(len(self.text))
            elif self._tables and tag == "table":
                self._end_table()
            self._separate(tag)
        self._depth -= 1

    def data(self, text: str) -> None:
        if self._hidden_below is None:
            self.text.append(text)
        elif self._in_title and (words := text.strip()):
            self.title.append(words)

    def close(self) -> None:
        """Do nothing: the parser requires this method."""

    def _end_table(self) -> None:
        table = self._tables.pop()
        if self._tables:
            self._tables[-1].holds_table = True
        if table.has_names:
            rows = table.rows(self.text)
            self.text[table.begins :] = ["\n".join(table_lines(rows))]

    def _separate(self, tag: str) -> None:
        if tag in _BLOCKS and (not self.text or self.text[-1] != "\n\n"):
            self.text.append("\n\n")
        elif tag in _APART and self.text and not self.text[-1].isspace():
            self.text.append(" ")
