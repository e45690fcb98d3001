"""Log-probabilities of committed tokens and of a prompt's, from the cloud that knows their
distributions to the edge. Invariant: those of committed tokens are of the distribution that was
sampled from, those of a prompt are the target's own, and they decide nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from tandem.core.errors import InvalidArgument, ProtocolError
from tandem.core.probs import Array
from tandem.core.sparse_payload import FullPayload, SparsePayload
from tandem.specdec.choices import RejectionPayload
from tandem.specdec.events import Drafted
from tandem.specdec.messages import (
    Committed,
    GenerationParams,
    PromptLogprobs,
    TokenLogprob,
)
from tandem.specdec.observers import EdgeObserver, Settled
from tandem.specdec.presets import VerifySettings
from tandem.specdec.rules import TargetProbs, probs_of

MAX_TOP_LOGPROBS = 20
"""Likeliest tokens that go with a token; each is 8 bytes on the way to the edge."""

LEAST_LOGPROB = -9999.0
"""Stands for a token of a prompt that the target cannot say at all, as in vLLM: JSON has no
infinity."""

PROMPT_LOGPROBS_AT_ONCE = 1024
"""Prompt tokens of one message: with 20 likeliest tokens each, some 170 KB."""


def check_logprobs_available(settings: VerifySettings, top: int = 0) -> None:
    """Raise InvalidArgument for a preset whose edge draws tokens from what is not the target's
    distribution, or hears of fewer than `top` likeliest tokens where it draws one."""
    if settings.cloud_draws:
        return
    name = settings.preset_name
    if not settings.rejection_payload.exact:
        why = f"the preset '{name}' is lossy: the distribution of a drawn token is unknown"
        raise InvalidArgument("logprobs", why)
    sparse = settings.rejection_payload is RejectionPayload.LOSSLESS_SPARSE
    if sparse and top > settings.payload_top:
        why = f"at most payload_top of the preset '{name}', which is {settings.payload_top}"
        raise InvalidArgument("top_logprobs", why)


def check_logprob_params(params: GenerationParams) -> None:
    """Raise InvalidArgument for more likeliest tokens than are sent, for them or a prompt's
    log-probabilities without `logprobs`, and for those of a prompt with images."""
    if params.top_logprobs > MAX_TOP_LOGPROBS:
        why = f"at most {MAX_TOP_LOGPROBS}, is {params.top_logprobs}"
        raise InvalidArgument("top_logprobs", why)
    for field in ("top_logprobs", "prompt_logprobs"):
        if getattr(params, field) and not params.logprobs:
            raise InvalidArgument(field, "requires logprobs")
    if params.prompt_logprobs and params.images:
        raise InvalidArgument("prompt_logprobs", "cannot be combined with images")


class PromptReader:
    """Makes the log-probabilities of a prompt's tokens of its logits, as these are computed in
    parts: the distribution after each token is the next one's. Sampling settings and processors
    have no part in them."""

    def __init__(self, prompt_ids: Sequence[int], top: int) -> None:
        """Prepare to read a prompt's log-probabilities. `top`: how many of the likeliest tokens go
        with each."""
        self._next_ids = np.asarray(prompt_ids[1:], dtype=np.int64)
        self._top = top
        self._read: list[TokenLogprob] = []

    def read(self, first: int, logits: Array) -> None:
        """Take the logits [n, vocabulary] that follow the prompt's tokens from index `first` on.
        Rows that were read before, and those after the last token, are passed over."""
        begin = len(self._read)
        if begin == len(self._next_ids):
            return
        assert first <= begin, "logits come in order"
        next_ids = self._next_ids[begin : first + len(logits)]
        rows = logits[begin - first :]
        for next_id, row in zip(next_ids.tolist(), rows, strict=False):
            logprobs = _log_softmax(row)
            best = _best(logprobs, self._top, above=LEAST_LOGPROB)
            likeliest = tuple((token_id, float(logprobs[token_id])) for token_id in best)
            self._read.append(TokenLogprob(float(logprobs[next_id]), likeliest))

    def result(self) -> tuple[TokenLogprob, ...]:
        """Return the log-probabilities of the prompt's tokens from the second on."""
        return tuple(self._read)


def parts_of(logprobs: Sequence[TokenLogprob]) -> Iterator[tuple[int, tuple[TokenLogprob, ...]]]:
    """Yield those of a prompt's tokens from position 1 on as messages have them, each part with its
    first position."""
    for begin in range(0, len(logprobs), PROMPT_LOGPROBS_AT_ONCE):
        yield begin + 1, tuple(logprobs[begin : begin + PROMPT_LOGPROBS_AT_ONCE])


class PromptLogprobsBuffer:
    """The edge's side of a prompt's log-probabilities: complete before anything is committed."""

    def __init__(self, asked: bool, prompt_length: int) -> None:
        self.asked = asked
        self._prompt_length = prompt_length
        self._known: list[TokenLogprob] = []

    @property
    def wanted(self) -> bool:
        """True if a cloud is still to be asked for them."""
        return self.asked and len(self._known) < self._prompt_length - 1

    def begin_stream(self) -> None:
        """Drop an incomplete set when a stream begins: a cloud sends the whole set or nothing."""
        if self.wanted:
            self._known.clear()

    def take(self, message: PromptLogprobs) -> None:
        """Keep the log-probabilities in a message. Raises ProtocolError for those that do not
        follow what is known."""
        due = len(self._known) + 1
        end = message.first + len(message.logprobs)
        if not self.wanted or message.first != due or end > self._prompt_length:
            raise ProtocolError(f"position {due} of the prompt", f"logprobs from {message.first}")
        self._known += message.logprobs

    def check_complete(self) -> None:
        """Raise ProtocolError if a cloud commits tokens before it has sent what was asked for."""
        if self.wanted:
            raise ProtocolError("the prompt's logprobs are due", "tokens before them")

    def all(self) -> tuple[TokenLogprob, ...]:
        """Return one entry for each token of the prompt; NaN for the first, and where no cloud sent
        any."""
        unknown = TokenLogprob(math.nan)
        missing = self._prompt_length - 1 - len(self._known)
        return (unknown, *self._known, *[unknown] * missing)


class LogprobsRecorder:
    """Records, at the cloud and if `enabled`, each committed token and its `top` likeliest ones."""

    def __init__(self, enabled: bool, top: int = 0) -> None:
        self.enabled = enabled
        self._top = top
        self._noted: list[TokenLogprob] = []

    def note(self, distribution: TargetProbs, token_id: int) -> None:
        if self.enabled:
            probs = probs_of(distribution)
            likeliest = _likeliest(probs, self._top)
            self._noted.append(TokenLogprob(math.log(probs[token_id]), likeliest))

    def take(self) -> tuple[TokenLogprob, ...]:
        """Take those of the tokens committed since the last call, in order; they leave with one
        message."""
        noted, self._noted = tuple(self._noted), []
        return noted


class LogprobsBuffer(EdgeObserver):
    """The edge's side: what messages said of positions, until these are committed; of the tokens
    that the edge drew, what it drew them from."""

    def __init__(self, enabled: bool, top: int = 0) -> None:
        self._enabled = enabled
        self._top = top
        self._by_position: dict[int, TokenLogprob] = {}

    def on_committed(
        self, message: Committed, settled: Settled, drafts: Sequence[Drafted], now: float
    ) -> None:
        """Take those of the tokens that `message`, already checked, commits from its base on."""
        self._by_position.clear()  # what came before is committed, or past the end
        self._by_position.update(enumerate(message.logprobs, start=message.base))

    def on_drawn(
        self, position: int, token_id: int, payload: FullPayload | SparsePayload, rejected: Drafted
    ) -> None:
        if self._enabled:
            self._by_position[position] = _of_drawn(token_id, payload, self._top)

    def of(self, position: int, count: int) -> tuple[TokenLogprob, ...]:
        """Return those of `count` tokens from `position` on; NaN where no distribution of the cloud
        is known."""
        if not self._enabled:
            return ()
        unknown = TokenLogprob(math.nan)
        return tuple(self._by_position.get(position + step, unknown) for step in range(count))


def check_logprobs(
    logprobs: Sequence[TokenLogprob],
    tokens: int,
    params: GenerationParams,
    vocabulary_size: int,
    message: str,
) -> None:
    """Raise ProtocolError unless there are exactly the logprobs, and likeliest tokens in them, that
    `params` asks for."""
    if len(logprobs) != (tokens if params.logprobs else 0):
        raise ProtocolError(f"{tokens} tokens", f"{message} with {len(logprobs)} logprobs")
    values = [entry.logprob for entry in logprobs]
    for entry in logprobs:
        if bool(entry.top) != bool(params.top_logprobs) or len(entry.top) > params.top_logprobs:
            state = f"{params.top_logprobs} top_logprobs asked for"
            raise ProtocolError(state, f"{message} with {len(entry.top)}")
        if not all(0 <= token_id < vocabulary_size for token_id, _ in entry.top):
            state = f"vocabulary of {vocabulary_size}"
            raise ProtocolError(state, message, "has another token in top_logprobs")
        values += [value for _, value in entry.top]
    if not all(-math.inf < value <= 0 for value in values):  # False for NaN as well
        raise ProtocolError("logprobs", message, "one is above 0 or not finite")


def _of_drawn(token_id: int, payload: FullPayload | SparsePayload, top: int) -> TokenLogprob:
    if isinstance(payload, FullPayload):
        probs = payload.target_probs
        return TokenLogprob(math.log(probs[token_id]), _likeliest(probs, top))
    # The head holds the likeliest tokens, in the order of their ids; the tail's draws may repeat.
    known = dict(zip(payload.tail_ids.tolist(), payload.tail_probs.tolist(), strict=True))
    known |= zip(payload.ids.tolist(), payload.probs.tolist(), strict=True)
    head = _likeliest(payload.probs, top)
    likeliest = tuple((int(payload.ids[place]), logprob) for place, logprob in head)
    return TokenLogprob(math.log(known[token_id]), likeliest)


def _log_softmax(logits: Array) -> Array:
    """Return the log-probabilities of these logits, computed in double precision, since the sum is
    over the whole vocabulary."""
    shifted = logits.astype(np.float64) - float(logits.max())
    logprobs: Array = (shifted - math.log(np.exp(shifted).sum())).astype(np.float32)
    return np.clip(logprobs, LEAST_LOGPROB, 0.0)


def _likeliest(probs: Array, count: int) -> tuple[tuple[int, float], ...]:
    """Return at most `count` tokens with a probability, and its logarithm; best first, equal ones
    by their ids."""
    return tuple((token_id, math.log(probs[token_id])) for token_id in _best(probs, count, above=0))


def _best(scores: Array, count: int, above: float) -> list[int]:
    """Return at most `count` tokens of the largest scores above a limit; best first, equal
    ones by their ids."""
    if not count:
        return []
    count = min(count, len(scores))
    least = np.partition(scores, -count)[-count]
    (ids,) = np.nonzero((scores >= least) & (scores > above))
    best: list[int] = ids[np.argsort(-scores[ids], kind="stable")][:count].tolist()
    return best
