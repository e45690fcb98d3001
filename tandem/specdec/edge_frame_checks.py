"""Checks of what the other end sent, before any state changes. Invariant: a failure is
InvalidArgument naming the field, VocabularyMismatch or PrefixMismatch, and changes nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tandem.core.errors import FailedPrecondition, InvalidArgument
from tandem.core.probs import check_probs
from tandem.core.prompt import check_image_bytes
from tandem.core.tokens import PrefixedTokens, check_token_ids
from tandem.core.tree import check_parents, children, depths
from tandem.specdec.choices import Uplink
from tandem.specdec.logprobs import check_logprobs_available, check_top_logprobs
from tandem.specdec.messages import Draft, EdgeMessage, Open
from tandem.specdec.presets import Preset
from tandem.specdec.rules import Proposal


class VocabularyMismatch(FailedPrecondition):
    """The two models do not share a vocabulary (FAILED_PRECONDITION)."""


def check_frame(message: EdgeMessage, session: int) -> None:
    """A frame must name the stream's own session."""
    if message.session != session:
        raise InvalidArgument("session", f"{message.session} is not this stream's session")


def check_open(
    opening: Open, vocabulary_hash: str, vocabulary_size: int, context_length: int
) -> None:
    """Everything a session needs before it may cost anything."""
    if (opening.vocabulary_hash, opening.vocabulary_size) != (vocabulary_hash, vocabulary_size):
        raise VocabularyMismatch(
            "vocabulary_hash: draft and target do not share a vocabulary "
            f"({opening.vocabulary_size} and {vocabulary_size} entries); give the drafter"
            " --target-tokenizer"
        )
    params = opening.params
    check_image_bytes(params.images)
    opening.preset.validate()
    if params.logprobs:
        check_logprobs_available(opening.preset, opening.params.top_logprobs)
    check_top_logprobs(params.logprobs, params.top_logprobs)
    opening.preset.truncation.validate(vocabulary_size)
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
    """Prompt and resume point, if they are the text whose end and hash the frame names."""
    committed = PrefixedTokens((*opening.prompt_ids, *opening.committed_ids))
    if opening.base != len(committed):
        raise InvalidArgument("base", f"{opening.base} is not the resume point {len(committed)}")
    committed.check(opening.base, opening.prefix)
    return committed


def check_draft(draft: Draft, preset: Preset, vocabulary_size: int, max_length: int) -> None:
    """Ids in range, the payload the preset names, probabilities that are probabilities."""
    count = len(draft.token_ids)
    limit = min(max_length, preset.tree_nodes or preset.schedule.window)
    if not 1 <= count <= limit:
        raise InvalidArgument("draft_length", f"{count} tokens in a draft; allowed are 1…{limit}")
    check_token_ids(draft.token_ids, vocabulary_size, "token_ids")
    if (draft.parents is not None) != bool(preset.expansion):
        raise InvalidArgument("parents", "do not match the opened draft shape")
    if draft.parents is not None:
        _check_tree(draft.token_ids, draft.parents, preset)
    wants_probabilities = preset.uplink is Uplink.PROBABILITIES
    if (draft.probabilities is not None) != wants_probabilities:
        raise InvalidArgument("probabilities", "do not match the opened uplink payload")
    if (draft.distributions is not None) != preset.carries_probs:
        raise InvalidArgument("distributions", "do not match the opened uplink payload")
    if draft.probabilities is not None:
        _check_probabilities(draft.probabilities, count)
    if draft.distributions is not None:
        _check_distributions(draft, vocabulary_size)


def _check_probabilities(probabilities: tuple[float, ...], count: int) -> None:
    if len(probabilities) != count:
        raise InvalidArgument("probabilities", f"{len(probabilities)} for {count} tokens")
    for probability in probabilities:
        if not (math.isfinite(probability) and 0.0 < probability <= 1.0):
            raise InvalidArgument("probabilities", f"{probability} is not in (0, 1]")


def _check_distributions(draft: Draft, vocabulary_size: int) -> None:
    assert draft.distributions is not None
    drawn_from = _distributions_of_tokens(draft)
    if draft.distributions.shape != (max(drawn_from) + 1, vocabulary_size):
        raise InvalidArgument(
            "distributions", f"shape {draft.distributions.shape} does not fit the draft"
        )
    for probs in draft.distributions:
        check_probs(probs, vocabulary_size, "distributions")
    for token_id, index in zip(draft.token_ids, drawn_from, strict=True):
        if not draft.distributions[index][token_id] > 0:
            raise InvalidArgument(
                "distributions", f"token {token_id} cannot come from its own distribution"
            )


def _distributions_of_tokens(draft: Draft) -> list[int]:
    """Which of the draft's distributions each token was drawn from; in a tree, its parent's."""
    if draft.parents is None:
        return list(range(len(draft.token_ids)))
    order = {node: index for index, node in enumerate(children(draft.parents))}
    return [order[parent] for parent in draft.parents]


def _check_tree(token_ids: tuple[int, ...], parents: tuple[int, ...], preset: Preset) -> None:
    """Parents before their children, no deeper and no more candidates than the preset has."""
    check_parents(parents, len(token_ids))
    depth = depths(parents)
    if max(depth) >= len(preset.expansion):
        raise InvalidArgument("parents", f"{max(depth) + 1} layers; {preset.expansion} are opened")
    for parent, nodes in children(parents).items():
        layer = depth[parent] + 1 if parent >= 0 else 0
        if len(nodes) > preset.expansion[layer]:
            raise InvalidArgument("parents", f"{len(nodes)} candidates follow node {parent}")
        distinct = {token_ids[node] for node in nodes}
        if not preset.with_replacement and len(distinct) < len(nodes):
            raise InvalidArgument("token_ids", f"candidates after node {parent} repeat a token")


def proposals(draft: Draft) -> Iterator[Proposal]:
    """The draft's tokens, each with what the uplink carried for it."""
    for index, token_id in enumerate(draft.token_ids):
        yield Proposal(
            (token_id,),
            draft.probabilities[index] if draft.probabilities is not None else None,
            draft.distributions[index] if draft.distributions is not None else None,
        )
