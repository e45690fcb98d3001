"""What a caller gets: a finished answer, or its pieces as they are committed."""

from dataclasses import dataclass
from typing import Any

from tandem.core.errors import TandemError
from tandem.generation.client import Generated, TopLogprobs
from tandem.generation.figures import answer_figures


@dataclass(frozen=True, slots=True)
class SideFigures:
    """One side of an answer from two sides' documents. `names`: of the device's documents
    used."""

    documents: int
    document_tokens: int
    drafted: int
    accepted: int
    acceptance_rate: float | None
    decode_s: float
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ChoiceFigures:
    """The last schedule that a preset chose while it ran, and what it was chosen by: seconds a
    token estimated of it, and of a cloud that decodes alone (`cloud_alone_measured`: whether that
    was measured lately, else it is an estimate too); acceptance; a draft step, a pass without
    drafts, each draft in it and the wait before it, the round trip, in seconds; sessions that share
    a pass."""

    schedule: str
    reason: str
    decisions: int
    expected_tpot_s: float
    cloud_alone_tpot_s: float
    acceptance_rate: float
    draft_step_s: float
    pass_s: float
    further_s: float
    wait_s: float
    sessions: float
    round_trip_s: float
    cloud_alone_measured: bool


@dataclass(frozen=True, slots=True)
class Figures:
    """Statistics of an answer. Times in seconds by the caller's clock, sizes in bytes on the link
    between edge and cloud; None where there is nothing to measure.

    `ttft_s`: time to first token; `tpot_s`: mean time per token after the first; `acceptance_rate`:
    accepted of drafted tokens; `unverified`: positions of tokens that the draft model alone chose
    while the cloud was lost; `lossy`: whether the preset may change the target's distribution;
    `draft_context`: tokens that the draft model reads at once, where the text was longer and it
    drafted after the text's end (0: it read all); `accepted_memory_tokens`,
    `rejected_memory_tokens`: drafts from what the drafter remembers; `same_bits`: whether other
    requests change no bit of the target's logits, so that a coupled text does not depend on the
    load (None without a cloud, and for two sides' documents); `exactness`: `bit_for_bit` where the
    text is what the target alone gives, `up_to_rounding` where it may be another where two tokens
    all but tie, `not_exact` where the preset is lossy or tokens were not verified (None as before);
    `cloud_drafted`, `cloud_accepted`: drafts that the cloud made itself and judged, and those that
    it accepted.
    """

    preset: str
    ttft_s: float | None
    tpot_s: float | None
    duration_s: float
    tokens: int
    rounds: int
    drafted: int
    accepted: int
    acceptance_rate: float | None
    target_passes: int
    uplink_bytes: int
    downlink_bytes: int
    prompt_tokens: int
    resumes: int
    unverified: tuple[int, ...]
    links_lost: int
    predrafted: int
    predraft_hits: int
    predraft_misses: int
    predraft_miss_rate: float | None
    early_verdicts: int
    lossy: bool
    draft_context: int
    accepted_memory_tokens: int
    rejected_memory_tokens: int
    same_bits: bool | None
    exactness: str | None
    side_moves: int | None = None
    fetches: int | None = None
    device: SideFigures | None = None
    cloud: SideFigures | None = None
    choice: ChoiceFigures | None = None
    cloud_drafted: int = 0
    cloud_accepted: int = 0


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens that were committed together, and their text. A token that ends within a character has
    its text in a later piece."""

    text: str
    token_ids: tuple[int, ...]
    token_sources: tuple[str, ...]
    logprobs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished answer.

    `finish_reason`: `stop`, `length`, … as the service names it. `seed` gives the same text again.
    `token_sources`: who made each token: `draft`, `cloud_draft` (a draft of the cloud itself),
    `target` or `edge` (the cloud was lost), and from two sides' documents `device`, `cloud`, `both`
    or `recovered`. `logprobs` and `top_logprobs` (id, text and log-probability of the likeliest
    tokens) where they were asked for.
    """

    text: str
    token_ids: tuple[int, ...]
    token_sources: tuple[str, ...]
    finish_reason: str
    seed: int
    figures: Figures
    logprobs: tuple[float, ...] = ()
    top_logprobs: tuple[TopLogprobs, ...] = ()


def answer_of(result: Generated, seed: int) -> Answer:
    """Return the finished answer. Raises TandemError for an answer that ended without its
    figures."""
    if result.summary is None:
        raise TandemError("the service ended the answer without a summary")
    return Answer(
        text=result.text,
        token_ids=tuple(result.token_ids),
        token_sources=tuple(map(str, result.token_sources)),
        finish_reason=result.summary.finish_reason,
        seed=seed,
        figures=_figures(result),
        logprobs=tuple(result.logprobs),
        top_logprobs=tuple(result.top_logprobs),
    )


def _figures(result: Generated) -> Figures:
    named = answer_figures(result)
    named["unverified"] = tuple(named["unverified"])
    for side in ("device", "cloud"):
        if side in named:
            named[side] = _side_figures(named[side])
    if "choice" in named:
        named["choice"] = ChoiceFigures(**named["choice"])
    return Figures(**named)


def _side_figures(named: dict[str, Any]) -> SideFigures:
    return SideFigures(**named | {"names": tuple(named["names"])})


class Progress:
    """Cuts a growing result into pieces."""

    def __init__(self) -> None:
        self._characters = self._tokens = self._logprobs = 0

    def piece(self, result: Generated) -> Piece | None:
        """Return the part of `result` since the last call, or None if there is none."""
        if (len(result.text), len(result.token_ids)) == (self._characters, self._tokens):
            return None
        piece = Piece(
            text=result.text[self._characters :],
            token_ids=tuple(result.token_ids[self._tokens :]),
            token_sources=tuple(map(str, result.token_sources[self._tokens :])),
            logprobs=tuple(result.logprobs[self._logprobs :]),
        )
        self._characters = len(result.text)
        self._tokens = len(result.token_ids)
        self._logprobs = len(result.logprobs)
        return piece
