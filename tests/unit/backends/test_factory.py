"""Back ends by name, and what a service's settings make of them."""

import pytest

from tandem.backends.factory import engine_of, load_model
from tandem.backends.model_source import ModelChoice
from tandem.core.errors import InvalidArgument
from tandem.testing.scripted import load


def test_an_unknown_back_end_is_refused_by_the_setting_s_name() -> None:
    with pytest.raises(
        InvalidArgument, match="'tensor'; known: auto, torch, llamacpp, lookup, remote"
    ) as caught:
        load_model(ModelChoice("model", engine="tensor"))
    assert caught.value.field == "engine"


def test_the_model_says_which_back_end_it_needs() -> None:
    for source, engine in (("m.gguf", "llamacpp"), ("M.GGUF", "llamacpp"), ("folder", "torch")):
        assert engine_of(ModelChoice(source)) == engine
    with pytest.raises(InvalidArgument, match="'llamacpp' does"):
        load_model(ModelChoice("m.gguf", engine="torch"))


def test_vocabularies_that_cannot_be_compared_are_refused() -> None:
    from tandem.backends.cross_vocabulary.pairing import fit_draft

    draft = load(ModelChoice("4", drafts=True))
    with pytest.raises(InvalidArgument, match="can be compared"):
        fit_draft(draft.engine, draft.tokenizer, draft.tokenizer)
