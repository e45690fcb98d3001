"""What `tandem up --try` asks of whom, and how it compares, without starting anything."""

from dataclasses import replace

import pytest
from click.testing import CliRunner

from tandem.backends.model_source import ModelChoice
from tandem.cli import main
from tandem.commands import up as up_command
from tandem.commands.demonstration import Part, parts_of
from tandem.suite.local_processes import LocalSuiteSettings

SETTINGS = LocalSuiteSettings(ModelChoice("small"), ModelChoice("large"))


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
