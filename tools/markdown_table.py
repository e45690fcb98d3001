"""A table in Markdown."""

from collections.abc import Iterable


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Rows under their head; bars in cells are escaped."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in lines
    )
