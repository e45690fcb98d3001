"""What `tandem up --try` asks: a question that the pair answers together, the same one of the large
model alone, and some about documents on both sides. Texts are compared; speeds need more than one
answer of each (`tandem compare`).

A draft model that only drafts is for the first alone: from the device's documents the target's own
model answers (`with_documents`). The demo pair is asked what it was trained to answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import click

from tandem.commands.ask_suite import answer_object, ask, figures
from tandem.commands.generate import show
from tandem.core.probs import SamplingParams
from tandem.core.prompt import Prompt, Turn
from tandem.demo import is_demo
from tandem.generation.client import Generated
from tandem.generation.request import LONGEST_ANSWER_S, RAG_PRESET, GenerationRequest
from tandem.specdec.messages import GenerationParams
from tandem.suite.local_processes import LocalSuiteSettings
from tandem.suite.models import with_documents

ALONE = "ar"
_APPLES = (
    "Question: Tom picks 12 apples in the morning and 8 apples in the afternoon. He gives half of"
    " them to his sister. How many apples does Tom have left?\nAnswer:"
)
_SUM = "Write a Python function that returns the sum of a list."
_MAINTAINED = "How long is a Python release maintained, and which ones does Heron support?"
"""The cloud's PEP 602 knows the one, a note on the device the other."""
_PYTHON_RELEASED = "How often is a new feature version of Python released?"
_HERON_MAINTAINED = "How long is each Heron release maintained?"
"""One question for each side, since a small model answers no two at once."""

_DOCUMENTS_HEADING = "From documents in the cloud and private notes on the device:"


@dataclass(frozen=True, slots=True)
class DemoQuestion:
    """A question of the demonstration, and the text shown before its answer. `key`: its place in
    the JSON object, at whose top the first answer stands; `beside_alone`: the large model alone is
    asked the same."""

    shown: str
    request: GenerationRequest
    heading: str = ""
    key: str = ""
    beside_alone: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """Questions to one suite."""

    settings: LocalSuiteSettings
    questions: tuple[DemoQuestion, ...]


def parts_of(settings: LocalSuiteSettings) -> tuple[Part, ...]:
    """Return the questions for a pair of models."""
    if is_demo(settings.target.source):
        together = DemoQuestion(_APPLES, _greedy(_APPLES, 160), beside_alone=True)
        shown = f"Question: {_MAINTAINED}\nAnswer:"
        sampled = GenerationRequest(shown, RAG_PRESET, GenerationParams(max_tokens=48, seed=1))
        return (Part(settings, (together, _of_documents(shown, sampled))),)
    together = DemoQuestion(_asked(_SUM), _greedy(_chat(_SUM), 120), beside_alone=True)
    of_documents = tuple(
        replace(
            _of_documents(_asked(said), replace(_greedy(_chat(said), 64), preset=RAG_PRESET)),
            heading=heading,
            key=key,
        )
        for said, heading, key in (
            (_HERON_MAINTAINED, _DOCUMENTS_HEADING, "rag"),
            (_PYTHON_RELEASED, "", "rag_public"),
        )
    )
    answering = with_documents(settings.draft, settings.target)
    if answering == settings.draft:
        return (Part(settings, (together, *of_documents)),)
    return (
        Part(replace(settings, documents=None), (together,)),
        Part(replace(settings, draft=answering), of_documents),
    )


async def demonstrate(
    endpoint: str, questions: Sequence[DemoQuestion], shown: bool, verbose: bool = False
) -> dict[str, Any]:
    """Ask one after another, each answer `shown` as it comes or not at all; `verbose`: with all
    figures. Returns them as one object, without the heading of each."""
    results: dict[str, Any] = {}
    for question in questions:
        answer = await (_show if shown else _ask)(endpoint, question)
        result = answer_object(question.request, answer)
        results |= {question.key: result} if question.key else result
        if question.beside_alone:
            request = replace(question.request, preset=ALONE)
            alone = await ask(endpoint, request, LONGEST_ANSWER_S)
            results["alone"] = answer_object(request, alone)
            if shown:
                click.echo(_compared(answer, alone))
        if shown:
            click.echo(figures(answer, verbose=verbose))
    return results


async def _ask(endpoint: str, question: DemoQuestion) -> Generated:
    return await ask(endpoint, question.request, LONGEST_ANSWER_S)


async def _show(endpoint: str, question: DemoQuestion) -> Generated:
    if question.heading:
        click.echo(f"\n{question.heading}\n")
    return await show(endpoint, question.request, LONGEST_ANSWER_S, question.shown)


def _compared(answer: Generated, alone: Generated) -> str:
    if answer.text == alone.text:
        return "the large model alone: the same text"
    if answer.summary is not None and not answer.summary.same_bits:
        return (
            "the large model alone: another text; this model's texts are equal up to rounding,"
            " and --batch-invariant makes them equal"
        )
    return "the large model alone: A DIFFERENT TEXT"


def _of_documents(shown: str, request: GenerationRequest) -> DemoQuestion:
    return DemoQuestion(shown, request, _DOCUMENTS_HEADING, "rag")


def _greedy(prompt: Prompt, max_tokens: int) -> GenerationRequest:
    return GenerationRequest(
        prompt,
        params=GenerationParams(sampling=SamplingParams(temperature=0.0), max_tokens=max_tokens),
    )


def _asked(said: str) -> str:
    return f"Question: {said}\nAnswer: "


def _chat(said: str) -> Prompt:
    return (Turn("user", said),)
