"""How the services of this room load their models: scripted ones as well, and paced."""

from dataclasses import replace

from tandem.backends.factory import Loader, load_model
from tandem.backends.model_source import LoadedModel, ModelChoice
from tandem.testing import scripted
from tandem.testing.paced import PacedDevice, PacedEngine
from tandem.testing.settings import PacedDrafterSettings, PacedVerifierSettings, PaceSettings

SCRIPTED = "scripted"
"""The engine of scripted models, whose source is SEED or SEED:NOISE."""


def drafter_loader(settings: PacedDrafterSettings) -> Loader:
    """Return how a drafter's models are loaded. The first layers of a target are scripted where its
    draft model is."""

    def load(choice: ModelChoice) -> LoadedModel:
        if choice.first_layers and settings.engine == SCRIPTED:
            choice = replace(choice, engine=SCRIPTED)
        return _paced(_load(choice), settings)

    return load


def verifier_loader(settings: PacedVerifierSettings) -> Loader:
    """Return how a verifier's models are loaded: its target, and its own draft model. Their paced
    passes take turns on one device, on which those of the draft model go first."""
    device = PacedDevice()

    def load(choice: ModelChoice) -> LoadedModel:
        loaded = _load(choice)
        if not choice.drafts:
            return _paced(loaded, settings, device)
        if not settings.pace_cloud_draft_s:
            return loaded
        pace_s = settings.pace_cloud_draft_s
        paced = PacedEngine(loaded.engine, pace_s, 0.0, device=device, goes_first=True)
        return replace(loaded, engine=paced)

    return load


def _load(choice: ModelChoice) -> LoadedModel:
    return scripted.load(choice) if choice.engine == SCRIPTED else load_model(choice)


def _paced(
    loaded: LoadedModel, settings: PaceSettings, device: PacedDevice | None = None
) -> LoadedModel:
    """Return the model with the passes that its service's settings declare; as it is where they
    declare none."""
    if not (settings.pace_first_s or settings.pace_further_s or settings.pace_batch_s):
        return loaded
    paced = PacedEngine(
        loaded.engine,
        settings.pace_first_s,
        settings.pace_further_s,
        settings.pace_batch_s,
        device=device,
    )
    return replace(loaded, engine=paced)
