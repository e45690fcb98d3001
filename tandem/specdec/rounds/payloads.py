"""What drafts carry besides their ids: probabilities, distributions, the shape of a tree."""

from __future__ import annotations

import math

from tandem.core.errors import InvalidArgument
from tandem.core.probs import check_probs
from tandem.core.tree import check_parents, children, depths
from tandem.specdec.choices import Uplink
from tandem.specdec.messages import Drafts
from tandem.specdec.presets import VerifySettings
from tandem.specdec.rules import Proposal


def check_payload(draft: Drafts, settings: VerifySettings, vocabulary_size: int) -> None:
    """Check that the payload of a draft is what the settings name, and that probabilities are
    probabilities. Raises InvalidArgument naming the field."""
    if (draft.parents is not None) != bool(settings.expansion):
        raise InvalidArgument("parents", "do not match the opened draft shape")
    if draft.parents is not None:
        _check_tree(draft.token_ids, draft.parents, settings)
    wants_probabilities = settings.uplink is Uplink.PROBABILITIES
    if (draft.probabilities is not None) != wants_probabilities:
        raise InvalidArgument("probabilities", "do not match the opened uplink payload")
    if (draft.distributions is not None) != settings.uplink.carries_probs:
        raise InvalidArgument("distributions", "do not match the opened uplink payload")
    if draft.probabilities is not None:
        _check_probabilities(draft.probabilities, len(draft.token_ids))
    if draft.distributions is not None:
        _check_distributions(draft, vocabulary_size)


def proposals_of(draft: Drafts) -> list[Proposal]:
    """Return the draft's tokens, each with what the uplink carried for it."""
    nothing = (None,) * len(draft.token_ids)
    probabilities = nothing if draft.probabilities is None else draft.probabilities
    distributions = nothing if draft.distributions is None else draft.distributions
    carried = zip(draft.token_ids, probabilities, distributions, strict=True)
    return [Proposal((token_id,), prob, probs) for token_id, prob, probs in carried]


def _check_probabilities(probabilities: tuple[float, ...], count: int) -> None:
    if len(probabilities) != count:
        raise InvalidArgument("probabilities", f"{len(probabilities)} for {count} tokens")
    for probability in probabilities:
        if not (math.isfinite(probability) and 0.0 < probability <= 1.0):
            raise InvalidArgument("probabilities", f"{probability} is not in (0, 1]")


def _check_distributions(draft: Drafts, vocabulary_size: int) -> None:
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
                "distributions", f"token {token_id} has probability 0 in its distribution"
            )


def _distributions_of_tokens(draft: Drafts) -> list[int]:
    """Return which of the draft's distributions each token was drawn from; in a tree, its
    parent's."""
    if draft.parents is None:
        return list(range(len(draft.token_ids)))
    order = {node: index for index, node in enumerate(children(draft.parents))}
    return [order[parent] for parent in draft.parents]


def _check_tree(
    token_ids: tuple[int, ...], parents: tuple[int, ...], settings: VerifySettings
) -> None:
    """Check that parents come before their children, and that the tree is no deeper and has no more
    candidates than the settings allow. Raises InvalidArgument."""
    check_parents(parents, len(token_ids))
    depth = depths(parents)
    if max(depth) >= len(settings.expansion):
        raise InvalidArgument(
            "parents", f"{max(depth) + 1} layers; {settings.expansion} are opened"
        )
    for parent, nodes in children(parents).items():
        layer = depth[parent] + 1 if parent >= 0 else 0
        if len(nodes) > settings.expansion[layer]:
            raise InvalidArgument("parents", f"{len(nodes)} candidates follow node {parent}")
        distinct = {token_ids[node] for node in nodes}
        if not settings.with_replacement and len(distinct) < len(nodes):
            raise InvalidArgument("token_ids", f"candidates after node {parent} repeat a token")
