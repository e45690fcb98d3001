"""One suite in Docker for all tests of this folder, and the tables they fill."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.deploy.composed import Composed

Row = tuple[str, ...]
TABLES = pytest.StashKey[dict[str, list[Row]]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[TABLES] = {}


@pytest.fixture(scope="session")
def composed() -> Composed:
    """Docker, with all images built. Fails, and does not skip, where no engine answers."""
    composed = Composed()
    composed.build()
    return composed


@pytest.fixture(scope="session")
def suite(composed: Composed) -> Iterator[Composed]:
    """From nothing to all healthy; gone again at the end, volumes included."""
    composed.down()
    try:
        composed.up()
        yield composed
    finally:
        composed.down()


@pytest.fixture(scope="session")
def documents(suite: Composed, tmp_path_factory: pytest.TempPathFactory) -> None:
    """One document at each side."""
    for service, text in (
        ("edge-retriever", "The harbour of Brimmond freezes in January, says the captain's diary."),
        ("cloud-retriever", "Brimmond is a town with a harbour that freezes every winter."),
    ):
        folder = tmp_path_factory.mktemp(service)
        folder.chmod(0o755)
        (folder / "brimmond.md").write_text(text)
        suite.ingest(service, folder)


@pytest.fixture(scope="session")
def tables(pytestconfig: pytest.Config) -> dict[str, list[Row]]:
    """Title to rows, the first of them the heads; printed when all tests have run."""
    return pytestconfig.stash[TABLES]


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    for title, rows in config.stash[TABLES].items():
        terminalreporter.section(title)
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        for row in rows:
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            terminalreporter.write_line("  ".join(cells).rstrip())
