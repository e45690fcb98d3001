"""How well text is predicted from documents on two sides (DRAGON Figure 5): perplexity of text
after its query, with k documents of 64 tokens a side and one model at both sides.

One row per method that gives another distribution: placement and schedule change times, not
distributions. `context-*` are CRCG and DRCG, which put documents one after another into one
context; `crcg-*` are their other form, with one sequence per document, like DRAGON's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lab.bench.harness.report import counted
from lab.bench.two_sided.dragon_corpus import QUERY_TOKENS, RankedDocument, Window
from tandem.backends.interface import Engine, ForwardRequest
from tandem.core.probs import SamplingParams, batch_probs_from_logits
from tandem.two_sided.protocol.mixture import Side, document_weights, log_mass, side_weights

Probabilities = NDArray[np.float64]


CONTEXT_DOCUMENT_TOKENS = 256
"""Of documents in one context, at most; the paper's contexts hold as much (§7.3)."""
BEGIN = (0,)
"""The demo tokenizer's begin-of-text token, before every document."""


@dataclass(slots=True)
class Predictor:
    """One model's probabilities of a window's tokens after the query; every one computed once."""

    engine: Engine
    window: Window
    document_room: int = CONTEXT_DOCUMENT_TOKENS
    """Tokens of documents in one context, at most."""
    _known: dict[tuple[int, ...], Probabilities] = field(default_factory=dict)

    def after(self, context: tuple[int, ...]) -> Probabilities:
        """Return the probability of each token after the query [T], with `context` before the
        window."""
        if context not in self._known:
            self._known[context] = _probabilities(self.engine, context, self.window.token_ids)
        return self._known[context]

    def mixed(self, documents: Sequence[RankedDocument]) -> Probabilities:
        """Return the probability of each token [T] by a side's local distribution; without
        documents the window stands alone."""
        if not documents:
            return self.after(())
        weights = document_weights([one.score for one in documents])
        distributions = np.stack([self.after(one.token_ids) for one in documents])
        mixed: Probabilities = weights @ distributions
        return mixed


def nats_of_windows(
    engine: Engine, windows: Sequence[Window], counts: Sequence[int], document_room: int
) -> dict[tuple[str, int], list[float]]:
    """Return nats per token of every window, by method and number of documents a side.
    `document_room`: see `Predictor`."""
    nats: dict[tuple[str, int], list[float]] = {}
    for window in counted(windows, lambda window: "a window of text"):
        at_both = Predictor(engine, window, document_room)
        for count in counts:
            for method, predicted in _methods(at_both, count):
                nats.setdefault((method, count), []).append(float(-np.log(predicted).mean()))
    return nats


def _methods(at: Predictor, count: int) -> Iterator[tuple[str, Probabilities]]:
    """Yield each method with its probabilities [T] of one window, with `count` documents a side."""
    device, cloud = at.window.of(Side.DEVICE, count), at.window.of(Side.CLOUD, count)
    from_device, from_cloud = at.mixed(device), at.mixed(cloud)
    yield "crcg-device", from_device
    yield "crcg-cloud", from_cloud
    masses = [log_mass([one.score for one in side]) for side in (device, cloud)]
    shares = side_weights(*masses) if count else side_weights(0.0, 0.0)
    yield "dragon", shares.device * from_device + shares.cloud * from_cloud
    yield "context-device", at.after(_joined(at, device))
    yield "context-cloud", at.after(_joined(at, cloud))
    yield "context-all", at.after(_joined(at, [*cloud, *device]))


def _joined(at: Predictor, documents: Sequence[RankedDocument]) -> tuple[int, ...]:
    """Return the tokens of the documents one after another, the best last and next to the text; the
    worst are left out where there is no more room for them."""
    room = at.engine.context_length - len(at.window.token_ids) - len(BEGIN)
    room = min(room, at.document_room)
    chosen: list[RankedDocument] = []
    for one in documents:
        room -= len(one.token_ids)
        if room < 0:
            break
        chosen.append(one)
    return tuple(token for one in reversed(chosen) for token in one.token_ids)


def _probabilities(
    engine: Engine, context: tuple[int, ...], window: tuple[int, ...]
) -> Probabilities:
    fed = (*BEGIN, *context, *window[:-1])
    predicted = np.array(window[QUERY_TOKENS:])
    session = engine.open(len(fed))
    try:
        (logits,) = engine.forward([ForwardRequest(session, fed, logits_to_keep=len(predicted))])
    finally:
        session.close()
    distributions = batch_probs_from_logits(logits, SamplingParams())
    probabilities: Probabilities = distributions[np.arange(len(predicted)), predicted].astype(
        np.float64
    )
    return probabilities
