"""`generate --rag` and the embedded suite with documents on both sides."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tandem.cli import main
from tandem.commands.ask_suite import answer_object, ask, figures
from tandem.core.probs import SamplingParams
from tandem.generation.request import GenerationRequest
from tandem.netem.link_model import shape_from
from tandem.specdec.messages import GenerationParams
from tandem.suite.embedded import EmbeddedSuite
from tandem.suite.suite_documents import SuiteDocuments
from tests.unit.cli.scripted_pair import scripted_pair


def generate(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["generate", "--prompt", "heron", *arguments])


@pytest.fixture
def documents(tmp_path: Path) -> SuiteDocuments:
    (tmp_path / "note.md").write_text("a heron of my own")
    (tmp_path / "public.txt").write_text("what a heron is")
    sides = (tmp_path / "note.md",), (tmp_path / "public.txt",)
    return SuiteDocuments(*sides, tmp_path / "index", "lexical")


@pytest.mark.parametrize("preset", ["dragon", "dragon-coupled", "crcg-device", "drdg-tw"])
async def test_an_answer_from_both_sides(preset: str, documents: SuiteDocuments) -> None:
    request = GenerationRequest(
        "a heron",
        preset,
        GenerationParams(sampling=SamplingParams(temperature=1.0), max_tokens=6, ignore_eos=True),
    )
    async with EmbeddedSuite(scripted_pair(), documents=documents) as suite:
        result = await ask(suite.target, request, 60.0)
    answer = answer_object(request, result)
    assert (answer["tokens"], answer["preset"]) == (6, preset)
    assert answer["device"]["documents"] == 1
    assert answer["cloud"]["documents"] == (0 if preset == "crcg-device" else 1)
    assert "documents: 1 from the device" in figures(result)
    assert "documents 1 (device)" in figures(result, verbose=True)
    assert "side moves" in figures(result, verbose=True)


async def test_the_link_lies_between_the_two_sides(documents: SuiteDocuments) -> None:
    """The first token needs the cloud's h, so a round trip at least; texts do not change."""
    request = GenerationRequest(
        "a heron", "dragon-coupled", GenerationParams(max_tokens=4, ignore_eos=True)
    )
    answers = []
    for link in (None, shape_from(0.1)):
        async with EmbeddedSuite(scripted_pair(), link=link, documents=documents) as suite:
            answers.append(await ask(suite.target, request, 60.0))
    near, far = answers
    assert far.text == near.text
    assert far.ttft_s is not None
    assert far.ttft_s >= 0.1


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--rag", "--preset", "coupled"), "rag: coupled has no documents"),
        (("--query", "x"), "query: auto has no documents"),
        (("--cloud-documents", "."), "rag: is required"),
        (("--rag", "--documents", "-1"), "documents: must be 0…32, is -1"),
        (("--rag", "--documents", "33"), "documents: must be 0…32, is 33"),
        (("--rag", "--device-documents", "/nowhere"), "/nowhere does not exist"),
        (
            ("--rag", "--endpoint", "127.0.0.1:1", "--index-folder", "x"),
            "--index-folder: the suite at --endpoint has its own",
        ),
    ],
)
def test_flags_that_do_not_fit_are_refused(flags: tuple[str, ...], words: str) -> None:
    ended = generate(*flags)
    assert ended.exit_code != 0
    assert words in ended.stderr
