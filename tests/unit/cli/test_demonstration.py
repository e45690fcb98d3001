"""What `tandem up --try` asks of whom, and how it compares, without starting anything."""

import asyncio
from dataclasses import replace

import pytest
from click.testing import CliRunner

from tandem.backends.model_source import ModelChoice
from tandem.cli import main
from tandem.commands import demonstration
from tandem.commands import up as up_command
from tandem.commands.demonstration import Part, demonstrate, parts_of
from tandem.demo import demo_folder
from tandem.generation.client import Generated
from tandem.generation.request import GenerationRequest
from tandem.suite.local_processes import LocalSuiteSettings
from tandem_api.common.v1.generation_pb2 import Summary

SETTINGS = LocalSuiteSettings(ModelChoice("small"), ModelChoice("large"))
DEMO = replace(SETTINGS, target=ModelChoice(str(demo_folder("demo-target"))))


def test_one_suite_answers_by_the_demo_pair() -> None:
    (part,) = parts_of(DEMO)
    together, of_documents = part.questions
    assert part.settings == DEMO
    assert together.request.preset == "auto"
    assert together.beside_alone
    assert of_documents.request.from_two_sides
    assert not of_documents.beside_alone
    for question in part.questions:
        question.request.validate()


def test_the_target_s_own_model_answers_for_the_device_s_documents_where_the_draft_cannot() -> None:
    looked_up = replace(SETTINGS, draft=ModelChoice("large", engine="lookup"))
    together, of_documents = parts_of(looked_up)
    assert together.settings.draft.engine == "lookup"
    assert together.settings.documents is None
    assert of_documents.settings.draft == ModelChoice("large", dtype="int8")
    assert of_documents.settings.target == ModelChoice("large")
    for question in (*together.questions, *of_documents.questions):
        question.request.validate()
        assert not isinstance(question.request.prompt, str)
    assert [question.key for question in of_documents.questions] == ["rag", "rag_public"]


def test_a_draft_model_that_can_answer_does_so_itself() -> None:
    (part,) = parts_of(SETTINGS)
    assert part.settings == SETTINGS
    assert [question.key for question in part.questions] == ["", "rag", "rag_public"]


@pytest.mark.parametrize(
    ("flags", "chosen"), [((), "auto"), (("--embedding", "lexical"), "lexical")]
)
def test_the_demo_s_documents_are_searched_as_all_are(
    flags: tuple[str, ...], chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By embeddings, wherever a model is installed."""
    seen: list[str] = []

    def parts(settings: LocalSuiteSettings) -> tuple[Part, ...]:
        assert settings.documents is not None
        seen.append(settings.documents.embedding)
        return ()

    monkeypatch.setattr(up_command, "parts_of", parts)
    monkeypatch.setattr(up_command, "run_loop", lambda run: run.close() or 0)
    assert CliRunner().invoke(main, ["up", "--try", *flags]).exit_code == 0
    assert seen == [chosen]


@pytest.mark.parametrize("chosen", ["auto", "none"])
def test_the_suite_is_told_whose_sampling_settings_count(
    chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[LocalSuiteSettings] = []

    def parts(settings: LocalSuiteSettings) -> tuple[Part, ...]:
        seen.append(settings)
        return ()

    monkeypatch.setattr(up_command, "parts_of", parts)
    monkeypatch.setattr(up_command, "run_loop", lambda run: run.close() or 0)
    arguments = ["up", "--try", "--generation-config", chosen]
    assert CliRunner().invoke(main, arguments).exit_code == 0
    assert [settings.generation_config for settings in seen] == [chosen]


@pytest.mark.parametrize(
    ("own", "alone", "same_bits", "told"),
    [
        ("eight", "eight", True, "the large model alone: the same text\n"),
        ("eight", "nine", True, "the large model alone: A DIFFERENT TEXT\n"),
        ("eight", "nine", False, "another text; this model's texts are equal up to rounding"),
    ],
)
def test_the_cloud_alone_is_asked_the_same(
    own: str,
    alone: str,
    same_bits: bool,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def asked(endpoint: str, request: GenerationRequest, *_: object) -> Generated:
        is_alone = request.preset == "ar"
        summary = Summary(preset=request.preset, tokens=5, drafted=0 if is_alone else 4, accepted=2)
        summary.same_bits = same_bits
        text, tpot_s = (alone, 0.03) if is_alone else (own, 0.02)
        return Generated(text=text, tpot_s=tpot_s, summary=summary)

    monkeypatch.setattr(demonstration, "ask", asked)
    monkeypatch.setattr(demonstration, "show", asked)
    (part,) = parts_of(DEMO)
    found = asyncio.run(demonstrate("", part.questions, shown=True))
    shown = capsys.readouterr().out
    assert told in shown
    assert (
        "50 tokens/s, 40% by the small model, 1.5 times as fast as the large model alone\n" in shown
    )
    assert "TTFT" not in shown
    assert "TPOT 20 ms" not in shown
    asyncio.run(demonstrate("", part.questions, shown=True, verbose=True))
    assert "TPOT 20 ms" in capsys.readouterr().out
    assert asyncio.run(demonstrate("", part.questions, shown=False)) == found
    assert not capsys.readouterr().out
    assert (found["text"], found["alone"]["text"]) == (own, alone)
    assert found["rag"]["preset"] == "dragon-coupled"
