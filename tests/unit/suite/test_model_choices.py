"""What is decided about models that nobody asked for: lookup without a draft model, and the back
end of a GGUF file. Each decision is said in one line."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import tandem
from tandem.backends.llamacpp import library
from tandem.backends.model_source import HEAD_TOKENS, ModelChoice
from tandem.cli import main
from tandem.core.errors import InvalidArgument
from tandem.demo import demo_folder
from tandem.suite.models import CannotLoad, choose_pair, notes_on, with_documents
from tools.write_gguf import write_gguf

LOOKED_UP = "no draft model: drafts are looked up in the text"
TEXT = "one two three four. one two three four. one two three"


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A target that is not the demo's."""
    return Path(shutil.copytree(demo_folder("demo-draft"), tmp_path / "mine"))


def flags(**given: Any) -> dict[str, Any]:
    sides = {
        f"{field}_{side}": value
        for field, value in (("engine", "auto"), ("device", "cpu"), ("dtype", None))
        for side in ("draft", "target")
    }
    return {
        "draft": None,
        "target": None,
        "demo": False,
        "threads": 0,
        "exits": "none",
        **sides,
        **given,
    }


def generate(*arguments: str) -> Result:
    asked = ["--raw", "--prompt", TEXT, "--max-tokens", "24", "--seed", "1", "--json"]
    return CliRunner().invoke(main, ["generate", *asked, *arguments])


def without(monkeypatch: pytest.MonkeyPatch, *missing: str) -> None:
    """Make packages look as if they were not installed."""
    monkeypatch.setattr(
        library, "find_spec", lambda name: None if name in missing else find_spec(name)
    )


def test_a_target_alone_has_its_drafts_looked_up(mine: Path) -> None:
    draft, target = choose_pair(flags(target=str(mine)))
    assert (draft.engine, draft.source, target.source) == ("lookup", str(mine), str(mine))
    (note,) = notes_on(draft, target)
    assert note.startswith(LOOKED_UP)
    assert f"'tandem pair {mine}'" in note


def test_the_target_alone_is_to_be_batch_invariant_and_refused_where_it_cannot() -> None:
    draft, target = choose_pair(flags(batch_invariant=True))
    assert (draft.batch_invariant, target.batch_invariant) == (False, True)
    ended = generate("--batch-invariant")
    assert ended.exit_code == 2
    assert "--batch-invariant: the engine 'torch' is not batch-invariant" in ended.stderr


def test_a_draft_that_was_trained_for_a_target_and_lies_beside_it_is_taken(mine: Path) -> None:
    beside = Path(shutil.copytree(mine, f"{mine}-draft"))
    assert choose_pair(flags(target=str(mine)))[0].engine == "lookup", "it may be any model"
    (beside / HEAD_TOKENS).write_text(json.dumps([*range(300)]))
    draft, target = choose_pair(flags(target=str(mine)))
    assert draft == ModelChoice(str(beside), dtype="int8"), "which it was trained in"
    assert (target.dtype, notes_on(draft, target)) == ("float32", [])
    assert choose_pair(flags(target=str(mine), dtype_draft="float32"))[0].dtype == "float32"
    assert choose_pair(flags(target=str(mine), engine_draft="lookup"))[0].engine == "lookup"


def test_where_the_draft_only_drafts_the_target_answers_from_the_device_s_documents(
    mine: Path,
) -> None:
    whole, draft = ModelChoice(str(demo_folder("demo-target"))), ModelChoice(str(mine))
    assert with_documents(draft, whole) is draft, "it can answer"
    (mine / HEAD_TOKENS).write_text(json.dumps([*range(300)]))
    for drafting, called in ((draft, "mine"), (replace(whole, engine="lookup"), "lookup")):
        device = with_documents(replace(drafting, device="cuda"), replace(whole, exits="auto"))
        assert device == ModelChoice(whole.source, device="cuda", dtype="int8")
        (note,) = notes_on(device, whole)
        assert note == (
            "draft: demo-target too, which answers from the device's documents;"
            f" {called} can only draft"
        )
    assert with_documents(draft, ModelChoice("x.gguf")).dtype == "float32"
    for target in (ModelChoice("m", engine="remote"), draft):
        with pytest.raises(InvalidArgument, match="mine can only draft, and not answer from docum"):
            with_documents(draft, target)


def test_a_suite_with_documents_has_it_and_one_without_has_not(
    mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By every door that starts a suite."""
    started: list[ModelChoice] = []

    def loaded(draft: ModelChoice, target: ModelChoice) -> None:
        started.append(draft)
        raise CannotLoad("enough")

    monkeypatch.setattr("tandem.commands.suite_choice.load_pair", loaded)
    monkeypatch.setattr("tandem.api.suites.load_pair", loaded)
    monkeypatch.setattr(
        "tandem.commands.up.LocalSuite",
        lambda settings: loaded(settings.draft, settings.target),
    )
    models = ("--target", str(mine))
    for words in (("generate", "a"), ("up", "--port", "0")):
        for flag in ((), ("--rag",)):
            assert CliRunner().invoke(main, [*words, *flag, *models]).exit_code == 1
    for documents in ((), (mine,)):
        suite = tandem.embedded(target=mine, device_documents=documents)
        with pytest.raises(CannotLoad, match="enough"), suite:
            pass
    assert [draft.engine for draft in started] == ["lookup", "auto"] * 3


def test_generate_says_so_and_gives_the_target_s_text(mine: Path) -> None:
    ended = generate("--target", str(mine), "--preset", "coupled")
    assert ended.exit_code == 0, ended.stderr
    assert [line for line in ended.stderr.splitlines() if line.startswith(LOOKED_UP)]
    looked_up = json.loads(ended.stdout)
    alone = json.loads(generate("--target", str(mine), "--preset", "ar").stdout)
    assert looked_up["token_ids"] == alone["token_ids"]
    assert looked_up["drafted"] > 0


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gguf")
    return write_gguf(demo_folder("demo-draft"), folder / "demo.gguf", kind="Q8_0")


@pytest.fixture
def short(tmp_path: Path) -> Path:
    """The demo's draft model, made to read 128 tokens at once."""
    folder = Path(shutil.copytree(demo_folder("demo-draft"), tmp_path / "short"))
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": 128}))
    return folder


def test_a_draft_with_a_short_context_answers_a_long_prompt_exactly(short: Path) -> None:
    prompt = ",".join(str(token % 4000) for token in range(300))
    asked = ["--prompt-ids", prompt, "--max-tokens", "16", "--seed", "1", "--json"]
    answers = {}
    for preset in ("ar", "coupled"):
        ended = CliRunner().invoke(
            main, ["generate", *asked, "--preset", preset, "--draft", str(short)]
        )
        assert ended.exit_code == 0, ended.stderr
        answers[preset] = json.loads(ended.stdout)
    assert answers["coupled"]["token_ids"] == answers["ar"]["token_ids"]
    assert answers["coupled"]["drafted"] > 0
    assert (answers["coupled"]["draft_context"], answers["ar"]["draft_context"]) == (128, 0)
