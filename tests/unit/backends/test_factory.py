"""Back ends by name, and what a service's settings make of them."""

import pytest

from tandem.backends.factory import engine_of, load_model
from tandem.backends.model_source import ModelChoice, Parallelism
from tandem.core.errors import InvalidArgument
from tandem.demo import demo_folder
from tandem.testing.scripted import load


def test_an_unknown_back_end_is_refused_by_the_setting_s_name() -> None:
    with pytest.raises(
        InvalidArgument, match="'tensor'; known: auto, torch, llamacpp, lookup, vllm"
    ) as caught:
        load_model(ModelChoice("model", engine="tensor"))
    assert caught.value.field == "engine"


def test_the_model_says_which_back_end_it_needs() -> None:
    for source, engine in (("m.gguf", "llamacpp"), ("M.GGUF", "llamacpp"), ("folder", "torch")):
        assert engine_of(ModelChoice(source)) == engine
    assert engine_of(ModelChoice("m.gguf", engine="torch")) == "torch"


def test_scripted_models_of_one_seed_are_a_pair() -> None:
    draft = load(ModelChoice("4:0.2", drafts=True))
    target = load(ModelChoice("4"))
    assert draft.engine.vocabulary_hash == target.engine.vocabulary_hash
    assert draft.tokenizer is not None
    assert draft.tokenizer.encode("A") == [65]
    assert target.content_hash() == "scripted:4"
    for bad in ("demo", "x:0.2", "4:0.2:1"):
        with pytest.raises(InvalidArgument, match="SEED"):
            load(ModelChoice(bad))


def test_one_device_is_not_said_to_be_several() -> None:
    with pytest.raises(InvalidArgument, match="'torch' runs on one device") as caught:
        load_model(ModelChoice("4", engine="torch", parallel=Parallelism(tensor=2)))
    assert caught.value.field == "engine"


@pytest.mark.parametrize(
    ("found", "why"), [(None, "needs vllm 0.32 or later"), ("0.99.1", "0.99.1 is")]
)
def test_a_missing_or_untested_vllm_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, found: str | None, why: str
) -> None:
    monkeypatch.setattr("tandem.backends.vllm.installed_version", lambda: found)
    with pytest.raises(InvalidArgument, match=why) as caught:
        load_model(ModelChoice(str(demo_folder("demo-target")), engine="vllm"))
    assert caught.value.field == "engine"


def test_a_draft_model_is_not_given_to_vllm() -> None:
    with pytest.raises(InvalidArgument, match="use torch for drafters"):
        load_model(ModelChoice("anything", engine="vllm", drafts=True))


def test_vocabularies_that_cannot_be_compared_are_refused() -> None:
    from tandem.backends.cross_vocabulary.pairing import fit_draft

    draft = load(ModelChoice("4", drafts=True))
    with pytest.raises(InvalidArgument, match="can be compared"):
        fit_draft(draft.engine, draft.tokenizer, draft.tokenizer)
