"""Rows of tables as lines that each say what their cells are."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence

from tandem.core.errors import InvalidArgument

MAX_CELL_LENGTH = 2**24
"""As long as a whole document may be."""
DELIMITERS = ",;\t|"

_DELIMITER_ROW = re.compile(r"sep=(.)\n")
"""As Excel writes it above a table."""
_YEAR = re.compile(r"[12]\d{3}")


def csv_text(text: str) -> str:
    """Return the rows of comma-separated values, or of those that a semicolon, tab or bar
    separates. Raises InvalidArgument."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").lstrip("\n")
    if stated := _DELIMITER_ROW.match(text):
        text, delimiter = text[stated.end() :], stated[1]
    else:
        first = re.sub('"[^"\n]*"', "", text.partition("\n")[0])
        delimiter = max(DELIMITERS, key=first.count)
        if delimiter not in first:
            delimiter = "\0"  # one column, and what is in its texts separates nothing
    csv.field_size_limit(MAX_CELL_LENGTH)
    try:
        return "\n".join(table_lines(csv.reader(io.StringIO(text), delimiter=delimiter)))
    except csv.Error as error:
        raise InvalidArgument("content", f"is not a table of values: {error}") from error


def table_lines(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield a line for each row that holds something. With a header, every line repeats its names:
    a chunk from the middle of a table would be numbers without a meaning otherwise."""
    header: Sequence[str] | None = None
    first = True
    alone = False
    """Whether the header is all that there is so far."""
    for row in rows:
        cells = [" ".join(cell.split()) for cell in row]
        if not any(cells):
            continue
        if first and _is_header(cells):
            header, alone = cells, True
        elif header is not None and len(cells) <= len(header):
            alone = False
            named = zip(header, cells, strict=False)
            yield "; ".join(f"{name}: {cell}" if name else cell for name, cell in named if cell)
        else:
            yield "; ".join(filter(None, cells))
        first = False
    if header is not None and alone:
        yield "; ".join(filter(None, header))


def _is_header(cells: Sequence[str]) -> bool:
    """Return whether these look like names of columns that lie side by side: distinct, none missing
    between two others, and no numbers but rising years."""
    names = [cell for cell in cells if cell]
    first = cells.index(names[0])
    if len(names) < 2 or len({*names}) < len(names) or cells[first : first + len(names)] != names:
        return False
    years = [name for name in names if _YEAR.fullmatch(name)]
    if len(years) < 2 or years != sorted(years) or cells[0] in years:
        years = []
    return not any((name[0].isdigit() or name[0] in "+-.") and name not in years for name in names)
