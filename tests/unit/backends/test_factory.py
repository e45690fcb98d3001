"""Back ends by name, and what a service's settings make of them."""

from typing import Any

import pytest

from tandem.backends.factory import load_model, load_served
from tandem.backends.model_source import ModelChoice
from tandem.backends.paced import PacedEngine
from tandem.backends.scripted import ScriptedEngine
from tandem.core.errors import InvalidArgument
from tandem.settings import ModelSettings


def settings(**given: Any) -> ModelSettings:
    """Without what the environment says."""
    return ModelSettings.model_construct(**{"engine": "scripted", **given})


def test_an_unknown_back_end_is_refused_by_the_setting_s_name() -> None:
    with pytest.raises(
        InvalidArgument, match="'tensor'; there are torch, lookup, scripted"
    ) as caught:
        load_model(ModelChoice("model", engine="tensor"))
    assert caught.value.field == "engine"


def test_scripted_models_of_one_seed_are_a_pair() -> None:
    draft = load_model(ModelChoice("4:0.2", engine="scripted", drafts=True))
    target = load_model(ModelChoice("4", engine="scripted"))
    assert draft.engine.vocabulary_hash == target.engine.vocabulary_hash
    assert draft.tokenizer is not None
    assert draft.tokenizer.encode("A") == [65]
    assert target.content_hash() == "scripted:4"
    for bad in ("demo", "x:0.2", "4:0.2:1"):
        with pytest.raises(InvalidArgument, match="SEED"):
            load_model(ModelChoice(bad, engine="scripted"))


def test_a_pace_is_kept_around_the_engine() -> None:
    assert isinstance(load_served(settings(), "4").engine, ScriptedEngine)
    for pace in ({"pace_first_s": 0.01}, {"pace_further_s": 0.01}):
        paced = load_served(settings(**pace), "4").engine
        assert isinstance(paced, PacedEngine)


def test_vocabularies_that_cannot_be_compared_are_refused() -> None:
    from tandem.backends.cross_vocabulary.pairing import fit_draft

    draft = load_model(ModelChoice("4", engine="scripted", drafts=True))
    with pytest.raises(InvalidArgument, match="can be compared"):
        fit_draft(draft.engine, draft.tokenizer, draft.tokenizer)
