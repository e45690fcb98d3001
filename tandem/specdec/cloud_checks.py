"""What a cloud knows of its target, and checks of an edge's frames before they cost or change
anything."""

from __future__ import annotations

from dataclasses import dataclass

from tandem.core.errors import FailedPrecondition, InvalidArgument
from tandem.core.prompt import check_image_bytes
from tandem.core.tokens import PrefixedTokens, check_token_ids
from tandem.specdec.logprobs import check_logprob_params, check_logprobs_available
from tandem.specdec.messages import Drafts, Open
from tandem.specdec.presets import VerifySettings
from tandem.specdec.rounds.payloads import check_payload


@dataclass(frozen=True, slots=True)
class CloudModel:
    """Properties of the target model and limits of the server that the machine needs."""

    model_name: str
    vocabulary_hash: str
    vocabulary_size: int
    context_length: int
    eos_token_ids: frozenset[int]
    max_draft_length: int = 64
    exits: int = 0
    exit_temperatures: tuple[float, ...] = ()
    same_bits: bool = False
    batch_invariant: bool = False
    row_share: float | None = None
    drafts_never_pay: bool = False
    layer_count: int = 0
    hidden_size: int = 0
    """Of a hidden state between two layers; 0 where no session can be split."""


def check_open(opening: Open, model: CloudModel) -> None:
    """Check everything that a session needs before it may cost anything.

    Raises InvalidArgument naming the field, or FailedPrecondition."""
    vocabulary_size = model.vocabulary_size
    context_length = model.context_length
    if (opening.vocabulary_hash, opening.vocabulary_size) != (
        model.vocabulary_hash,
        vocabulary_size,
    ):
        raise FailedPrecondition(
            "vocabulary_hash: draft and target do not share a vocabulary "
            f"({opening.vocabulary_size} and {vocabulary_size} entries); give the drafter"
            " --target-tokenizer"
        )
    params = opening.params
    check_image_bytes(params.images)
    opening.settings.validate()
    if params.logprobs:
        check_logprobs_available(opening.settings, opening.params.top_logprobs)
    check_logprob_params(params)
    layers = opening.settings.split_layers
    if layers and model.layer_count:  # 0: the engine cannot split at all, which is another error
        if layers >= model.layer_count:
            why = f"{layers} of the target's {model.layer_count} layers cannot run at the edge"
            raise InvalidArgument("split_layers", why)
        if params.images:
            raise InvalidArgument("images", "cannot be combined with split layers")
    opening.settings.truncation.validate(vocabulary_size)
    params.sampling.validate(vocabulary_size)
    params.processors.validate(vocabulary_size, params.ignore_eos)
    if not opening.prompt_ids:
        raise InvalidArgument("prompt_ids", "the prompt is empty")
    if params.max_tokens < 1:
        raise InvalidArgument("max_tokens", f"must be at least 1, is {params.max_tokens}")
    if len(opening.committed_ids) >= params.max_tokens:
        raise InvalidArgument("committed_ids", "the answer is complete already")
    if len(opening.prompt_ids) >= context_length:
        why = f"{len(opening.prompt_ids)} tokens; the context holds {context_length}"
        raise InvalidArgument("prompt_ids", why)
    if len(opening.prompt_ids) + params.max_tokens > context_length:
        why = f"prompt and answer exceed the context of {context_length}"
        raise InvalidArgument("max_tokens", why)
    check_token_ids(opening.prompt_ids, vocabulary_size, "prompt_ids")
    check_token_ids(opening.committed_ids, vocabulary_size, "committed_ids")


def opened_text(opening: Open) -> PrefixedTokens:
    """Return the prompt and the tokens committed before, checked against the end and the hash that
    the frame names."""
    committed = PrefixedTokens((*opening.prompt_ids, *opening.committed_ids))
    if opening.base != len(committed):
        raise InvalidArgument("base", f"{opening.base} is not the resume point {len(committed)}")
    committed.check(opening.base, opening.prefix_hash)
    return committed


def check_draft(draft: Drafts, settings: VerifySettings, model: CloudModel) -> None:
    """Check that ids are in range, that the payload is what the settings name, and that
    probabilities are probabilities. Raises InvalidArgument naming the field."""
    vocabulary_size = model.vocabulary_size
    count = len(draft.token_ids)
    limit = min(model.max_draft_length, settings.most_drafts)
    if not 1 <= count <= limit:
        raise InvalidArgument("draft_length", f"{count} tokens in a draft; allowed are 1…{limit}")
    check_token_ids(draft.token_ids, vocabulary_size, "token_ids")
    check_payload(draft, settings, vocabulary_size)
