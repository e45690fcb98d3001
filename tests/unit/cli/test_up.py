"""What `tandem up` says of what it keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.commands.up import kept_words
from tandem.suite.suite_documents import SuiteDocuments


@pytest.mark.parametrize(
    ("documents", "words"),
    [
        (None, "nothing on disk"),
        (SuiteDocuments((), ()), "the documents' texts in temporary files until then"),
        (
            SuiteDocuments((), (), Path("index")),
            "the documents' texts, with index, keys and values, in index",
        ),
    ],
)
def test_what_is_kept_is_named_with_its_place(documents: SuiteDocuments | None, words: str) -> None:
    assert kept_words(documents) == f"prompts and answers in memory until Ctrl-C; {words}"
