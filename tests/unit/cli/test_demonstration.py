"""What `tandem up --demo` asks of whom, and how it compares, without starting anything."""

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner

from tandem.backends.model_source import ModelChoice
from tandem.cli import main
from tandem.commands import demonstration
from tandem.commands import up as up_command
from tandem.commands.demonstration import Part, demonstrate, parts_of, real_pair
from tandem.core.errors import InvalidArgument
from tandem.generation.client import Generated
from tandem.generation.request import GenerationRequest
from tandem.suite.local_processes import LocalSuiteSettings
from tandem_api.common.v1.generation_pb2 import Summary

SETTINGS = LocalSuiteSettings(ModelChoice("small"), ModelChoice("large"))


def test_one_suite_answers_by_the_demo_pair() -> None:
    (part,) = parts_of(SETTINGS, real=False)
    together, of_documents = part.questions
    assert part.settings == SETTINGS
    assert together.request.preset == "auto"
    assert together.beside_alone
    assert of_documents.request.from_two_sides
    assert not of_documents.beside_alone
    for question in part.questions:
        question.request.validate()


def test_the_whole_real_model_answers_for_the_device_s_documents() -> None:
    """Its draft is quick, and says nothing sensible by itself."""
    together, of_documents = parts_of(SETTINGS, real=True)
    assert together.settings.draft.source == "small"
    assert together.settings.documents is None
    assert of_documents.settings.draft == ModelChoice("large", dtype="int8")
    assert of_documents.settings.target == ModelChoice("large")
    for question in (*together.questions, *of_documents.questions):
        question.request.validate()
        assert not isinstance(question.request.prompt, str)
    assert [question.key for question in of_documents.questions] == ["rag", "rag_public"]


def test_the_real_pair_is_where_make_puts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demonstration, "demo_folder", tmp_path.joinpath)
    for name in ("smollm2", "smollm2-draft"):
        with pytest.raises(InvalidArgument, match="make real-pair"):
            real_pair(ModelChoice("", device="cuda"), ModelChoice("", dtype="bfloat16"))
        (tmp_path / "real" / name).mkdir(parents=True)
    draft, target = real_pair(ModelChoice("", device="cuda"), ModelChoice("", dtype="bfloat16"))
    assert draft == ModelChoice(str(tmp_path / "real" / "smollm2-draft"), device="cuda")
    assert target == ModelChoice(str(tmp_path / "real" / "smollm2"), dtype="bfloat16")


@pytest.mark.parametrize(
    ("flags", "why"),
    [((), "requires --demo"), (("--demo", "--target", "."), "leave out --target")],
)
def test_real_models_are_the_demo_s_alone(flags: tuple[str, ...], why: str) -> None:
    shown = CliRunner().invoke(main, ["up", "--real", *flags])
    assert isinstance(shown.exception, SystemExit)
    assert "--real: " in shown.stderr
    assert why in shown.stderr


@pytest.mark.parametrize(
    ("flags", "dtype"), [((), "int8"), (("--dtype-draft", "float32"), "float32")]
)
def test_the_real_draft_computes_in_8_bits_unless_told(
    flags: tuple[str, ...], dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[ModelChoice] = []

    def parts(settings: LocalSuiteSettings, real: bool) -> tuple[Part, ...]:
        chosen.append(settings.draft)
        return ()

    for name in ("smollm2", "smollm2-draft"):
        (tmp_path / "real" / name).mkdir(parents=True)
    monkeypatch.setattr(demonstration, "demo_folder", tmp_path.joinpath)
    monkeypatch.setattr(up_command, "parts_of", parts)
    monkeypatch.setattr(up_command, "run_loop", lambda run: run.close() or 0)
    assert CliRunner().invoke(main, ["up", "--demo", "--real", *flags]).exit_code == 0
    assert [draft.dtype for draft in chosen] == [dtype]


@pytest.mark.parametrize(
    ("flags", "chosen"), [((), "auto"), (("--embedding", "lexical"), "lexical")]
)
def test_the_demo_s_documents_are_searched_as_all_are(
    flags: tuple[str, ...], chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By embeddings, wherever a model is installed."""
    seen: list[str] = []

    def parts(settings: LocalSuiteSettings, real: bool) -> tuple[Part, ...]:
        assert settings.documents is not None
        seen.append(settings.documents.embedding)
        return ()

    monkeypatch.setattr(up_command, "parts_of", parts)
    monkeypatch.setattr(up_command, "run_loop", lambda run: run.close() or 0)
    assert CliRunner().invoke(main, ["up", "--demo", *flags]).exit_code == 0
    assert seen == [chosen]


@pytest.mark.parametrize("chosen", ["auto", "none"])
def test_the_suite_is_told_whose_sampling_settings_count(
    chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[LocalSuiteSettings] = []

    def parts(settings: LocalSuiteSettings, real: bool) -> tuple[Part, ...]:
        seen.append(settings)
        return ()

    monkeypatch.setattr(up_command, "parts_of", parts)
    monkeypatch.setattr(up_command, "run_loop", lambda run: run.close() or 0)
    arguments = ["up", "--demo", "--generation-config", chosen]
    assert CliRunner().invoke(main, arguments).exit_code == 0
    assert [settings.generation_config for settings in seen] == [chosen]


@pytest.mark.parametrize(
    ("own", "alone", "told"),
    [
        ("eight", "eight", "the cloud alone: the same text\n"),
        ("eight", "nine", "the cloud alone: A DIFFERENT TEXT\n"),
    ],
)
def test_the_cloud_alone_is_asked_the_same(
    own: str,
    alone: str,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def asked(endpoint: str, request: GenerationRequest, *_: object) -> Generated:
        is_alone = request.preset == "ar"
        summary = Summary(preset=request.preset, tokens=5, drafted=0 if is_alone else 4, accepted=2)
        text, tpot_s = (alone, 0.03) if is_alone else (own, 0.02)
        return Generated(text=text, tpot_s=tpot_s, summary=summary)

    monkeypatch.setattr(demonstration, "ask", asked)
    monkeypatch.setattr(demonstration, "show", asked)
    (part,) = parts_of(SETTINGS, real=False)
    found = asyncio.run(demonstrate("", part.questions, shown=True))
    shown = capsys.readouterr().out
    assert told in shown
    assert "50 tokens/s, 40% by the small model, 1.5 times as fast as the cloud alone\n" in shown
    assert "TTFT" not in shown
    assert "TPOT 20 ms" not in shown
    asyncio.run(demonstrate("", part.questions, shown=True, verbose=True))
    assert "TPOT 20 ms" in capsys.readouterr().out
    assert asyncio.run(demonstrate("", part.questions, shown=False)) == found
    assert not capsys.readouterr().out
    assert (found["text"], found["alone"]["text"]) == (own, alone)
    assert found["rag"]["preset"] == "dragon-coupled"
