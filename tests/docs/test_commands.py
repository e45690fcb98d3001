"""Every command block of the documentation is run, or says why not and names only what exists."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.blocks import PAGES, SHELLS, Block, blocks_of, commands_of
from tests.docs.flags import complaints
from tests.docs.runner import UP, Addresses, run_block, working_folder
from tests.process.running_suite import running_up

BLOCKS = [block for page in PAGES for block in blocks_of(page)]
COMMANDS = [block for block in BLOCKS if block.is_shell or block.language == "python"]
TO_RUN = {
    page: [block for block in COMMANDS if block.page == page and block.reason is None]
    for page in PAGES
}
LANGUAGES = {
    *SHELLS,
    "diff",
    "python",
    "text",
    "toml",
    "yaml",
    "json",
    "promql",
    "protobuf",
    "javascript",
}

every_block = pytest.mark.parametrize("block", COMMANDS, ids=str)


@pytest.fixture(scope="module")
def addresses() -> Iterator[Addresses]:
    """The suite that pages ask, started as the documentation starts it."""
    with running_up(*UP[1:]) as up:
        yield Addresses(up.endpoint, up.places["http"].removeprefix("http://"))


def test_every_block_has_a_language() -> None:
    assert [str(block) for block in BLOCKS if block.language not in LANGUAGES] == []


def test_the_blocks_were_found() -> None:
    """At least those that the overviews cannot do without."""
    assert len([block for block in COMMANDS if str(block.page) == "README.md"]) >= 5
    assert sum(map(len, TO_RUN.values())) >= 15


@every_block
def test_commands_flags_targets_and_paths_exist(block: Block) -> None:
    if block.is_shell:
        for command in commands_of(block):
            assert list(complaints(command)) == [], block
    else:
        compile(block.text, str(block), "exec")


@pytest.mark.parametrize("page", [page for page, blocks in TO_RUN.items() if blocks], ids=str)
def test_blocks_run(page: Path, addresses: Addresses, tmp_path: Path) -> None:
    with working_folder(tmp_path), contextlib.redirect_stdout(io.StringIO()):
        for block in TO_RUN[page]:
            run_block(block, addresses)
