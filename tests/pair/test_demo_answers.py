"""What `tandem up --try` answers from the demo's documents is what these say."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import tandem
from tandem.api import Suite
from tandem.backends.model_source import ModelChoice
from tandem.commands.demonstration import DemoQuestion, parts_of
from tandem.core.prompt import Turn
from tandem.demo import demo_folder
from tandem.suite.local_processes import LocalSuiteSettings
from tandem.suite.suite_documents import demo_documents
from tests.long_runs import LONG

FACTS = {"rag": "eighteen months", "rag_public": "12 months"}
"""In `private/heron-releases.md`, which only the device has, and in PEP 602."""


def test_the_documents_say_so() -> None:
    documents = demo_documents()
    (private,), (public,) = documents.device, documents.cloud
    assert "maintained for eighteen" in (private / "heron-releases.md").read_text()
    assert "released predictably every twelve months" in (public / "pep-0602.txt").read_text()


@dataclass(frozen=True, slots=True)
class Demonstration:
    """The suite of the demonstration's questions about documents, and these."""

    suite: Suite
    questions: tuple[DemoQuestion, ...]


@pytest.fixture(scope="module")
def demonstration() -> Iterator[Demonstration]:
    model = Path(demo_folder("real")) / "smollm2"
    if not model.is_dir():
        pytest.skip("needs the weights: make real-pair")
    draft = model.with_name("smollm2-draft")
    settings = LocalSuiteSettings(ModelChoice(str(draft)), ModelChoice(str(model)))
    *_, of_documents = parts_of(settings)
    documents = demo_documents()
    with tandem.embedded(
        model,
        model,
        dtype_draft=of_documents.settings.draft.dtype,
        device_documents=documents.device,
        cloud_documents=documents.cloud,
    ) as suite:
        yield Demonstration(suite, of_documents.questions)


@LONG  # loading two real models takes seconds, and nothing but the demonstration changes them
@pytest.mark.timeout(600)  # on a busy machine minutes
@pytest.mark.parametrize("seed", range(1, 6))
def test_each_side_s_documents_are_answered_from(demonstration: Demonstration, seed: int) -> None:
    """Whatever the seed is: nothing is drawn at the temperature of the demonstration."""
    for question in demonstration.questions:
        asked = question.request
        turns = [turn for turn in asked.prompt if isinstance(turn, Turn)]
        answer = demonstration.suite.chat(
            [{"role": turn.role, "content": turn.content} for turn in turns],
            preset=asked.preset,
            temperature=asked.params.sampling.temperature,
            max_tokens=asked.params.max_tokens,
            seed=seed,
        )
        assert FACTS[question.key] in answer.text
