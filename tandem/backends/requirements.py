"""The capabilities that presets need of the two models' back ends. Invariant: a need follows from a
preset's choices, never from its name. Chains of drafts need nothing that a back end declares, and
what a preset may choose it does without."""

from dataclasses import replace

from tandem.backends.interface import Capabilities, Engine, KnowsLargestLogits
from tandem.core.errors import FailedPrecondition, InvalidArgument
from tandem.core.known_logits import check_decidable
from tandem.specdec.choices import Control, Predraft
from tandem.specdec.messages import GenerationParams
from tandem.specdec.presets import Preset, VerifySettings


def draft_requirements(preset: Preset) -> Capabilities:
    """Return what the draft model's back end must have."""
    forks = preset.predraft is not Predraft.OFF and preset.control is not Control.LEAST_COST
    return Capabilities(trees=bool(preset.expansion), forks=forks)


def fitted_to(preset: Preset, draft: Capabilities) -> Preset:
    """Return the preset without what it may choose and the draft model's back end cannot do."""
    chooses = preset.control is Control.LEAST_COST
    return replace(preset, predraft=Predraft.OFF) if chooses and not draft.forks else preset


def target_requirements(settings: VerifySettings) -> Capabilities:
    """Return what the target model's back end must have. Early exits are optional: they change no
    text."""
    return Capabilities(trees=bool(settings.expansion), splits=settings.split_layers > 0)


def missing_capabilities(
    preset: Preset, *, draft: Capabilities | None = None, target: Capabilities | None = None
) -> tuple[str, ...]:
    """Return what the preset needs and a given side lacks, like "trees of the draft model"."""
    settings = preset.verify_settings
    return (
        *_lacking("draft", draft_requirements(preset), draft),
        *_lacking("target", target_requirements(settings), target),
    )


def check_preset(preset: Preset, *, draft: Engine) -> None:
    """Raise FailedPrecondition naming the preset and what the draft model's back end lacks."""
    _refuse(preset.name, missing_capabilities(preset, draft=draft.capabilities))


def check_verify_settings(settings: VerifySettings, *, target: Engine) -> None:
    """Raise FailedPrecondition naming the preset and what the target model's back end lacks."""
    _refuse(
        settings.preset_name,
        _lacking("target", target_requirements(settings), target.capabilities),
    )


def check_params(params: GenerationParams, *, target: Engine) -> None:
    """Raise InvalidArgument naming what the target cannot decide or tell: one that knows the
    largest logits of a row alone is exact only where these decide."""
    if not isinstance(target, KnowsLargestLogits):
        return
    known = target.known_tokens
    if known >= target.vocabulary_size:
        return
    check_decidable(params.sampling, params.processors, known=known, remedy=target.more_logprobs)
    if params.prompt_logprobs:
        why = "the target does not tell of every token of a prompt"
        raise InvalidArgument("prompt_logprobs", why)


def _lacking(side: str, needed: Capabilities, has: Capabilities | None) -> tuple[str, ...]:
    """Return what is needed and not there; nothing where it is not known what is there."""
    names = () if has is None else needed.names
    return tuple(f"{name} of the {side} model" for name in names if not getattr(has, name))


def _refuse(preset_name: str, missing: tuple[str, ...]) -> None:
    if missing:
        raise FailedPrecondition(
            f"preset {preset_name!r} needs {' and '.join(missing)}, which the back end does not"
            " have; 'tandem doctor' lists the presets that two models can run"
        )
