"""What the drafter and the verifier of tests load: scripted models, and any at a declared pace."""

import time
from typing import Any

import pytest

from tandem.backends.interface import Engine, ForwardRequest
from tandem.backends.model_source import ModelChoice
from tandem.settings import load_settings
from tandem.testing.loading import SCRIPTED, drafter_loader, verifier_loader
from tandem.testing.paced import PacedEngine
from tandem.testing.scripted import ScriptedEngine, ScriptedLayers
from tandem.testing.settings import PacedDrafterSettings, PacedVerifierSettings

MODEL = ModelChoice("4", engine=SCRIPTED)
DRAFT = ModelChoice("4", engine=SCRIPTED, drafts=True)


def drafter(**given: Any) -> Any:
    return drafter_loader(load_settings(PacedDrafterSettings, {"insecure": True, **given}))


def verifier(**given: Any) -> Any:
    return verifier_loader(load_settings(PacedVerifierSettings, {"insecure": True, **given}))


def pass_s(engine: Engine) -> float:
    session = engine.open(4)
    began_s = time.perf_counter()
    engine.forward([ForwardRequest(session, (1,), 1)])
    lasted_s = time.perf_counter() - began_s
    session.close()
    return lasted_s


@pytest.mark.parametrize("pace", ["pace_first_s", "pace_further_s", "pace_batch_s"])
def test_a_model_is_paced_where_a_pace_is_declared(pace: str) -> None:
    for loader in (drafter, verifier):
        assert isinstance(loader()(MODEL).engine, ScriptedEngine)
        assert isinstance(loader(**{pace: 0.01})(MODEL).engine, PacedEngine)


def test_a_verifier_s_own_draft_model_has_a_pace_of_its_own() -> None:
    load = verifier(pace_first_s=0.06, pace_cloud_draft_s=0.02)
    assert pass_s(load(DRAFT).engine) >= 0.02
    assert pass_s(load(MODEL).engine) >= 0.06
    assert isinstance(verifier(pace_first_s=0.06)(DRAFT).engine, ScriptedEngine)


def test_first_layers_are_scripted_where_the_draft_model_is() -> None:
    first = ModelChoice("4", engine="torch", first_layers=2)
    assert isinstance(drafter(engine=SCRIPTED)(first).engine, ScriptedLayers)
