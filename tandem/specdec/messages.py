"""The frames of the edge–cloud conversation as plain values (documented in verifier.proto).
Invariant: arrays inside messages are never written to. Distributions are float32 [vocabulary]."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypedDict

from tandem.core.frozen import frozen
from tandem.core.probs import Array, SamplingParams
from tandem.core.processors import NO_PROCESSORS, Processors
from tandem.core.sparse_payload import FullPayload, SparsePayload
from tandem.core.tokens import PrefixHash
from tandem.specdec.choices import CloudDrafts
from tandem.specdec.presets import VerifySettings


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationParams:
    """Settings of a request that both edge and cloud must know. `max_tokens` limits the answer."""

    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int = 128
    seed: int = 0
    ignore_eos: bool = False
    images: tuple[bytes, ...] = ()
    logprobs: bool = False
    top_logprobs: int = 0
    processors: Processors = NO_PROCESSORS
    prompt_logprobs: bool = False
    """With `logprobs`: of the prompt's tokens too, by the target's own distribution."""


@frozen
class Frame:
    """Fields of every message: session, first position, hash of the ids before it."""

    session: int
    base: int
    prefix_hash: PrefixHash


class FrameHeader(TypedDict):
    """The fields of `Frame`, for a machine that makes several kinds of frames."""

    session: int
    base: int
    prefix_hash: PrefixHash


@frozen
class Open(Frame):
    vocabulary_hash: str
    vocabulary_size: int
    prompt_ids: tuple[int, ...]
    committed_ids: tuple[int, ...]
    params: GenerationParams
    settings: VerifySettings
    tenant: bytes = b""
    """Whose text this is among the edge's tenants; opaque."""
    public_tokens: int = 0
    """So many of the first prompt ids may be kept for all of the edge's tenants."""
    allows_memory: bool = False
    """Whether the cloud may remember this text, and draft it from what it remembers."""


@frozen
class Drafts(Frame):
    """Guesses of what follows the text that `prefix_hash` names. `end_of_chunk`: the last of them
    completes a chunk."""

    token_ids: tuple[int, ...]
    end_of_chunk: bool
    probabilities: tuple[float, ...] | None = None
    distributions: Array | None = None
    parents: tuple[int, ...] | None = None
    """A tree's nodes follow these nodes, -1 for the committed text (`tandem.core.tree`);
    `distributions` are then one per expanded node, in ascending order."""


@frozen
class Cancel(Frame):
    pass


@frozen
class Ping(Frame):
    nonce: int


@frozen
class Work:
    """Cost of an answer by the cloud's clock; passes are the session's total so far, `drafts` those
    of the edge that it judged, `cloud_drafts` those that the cloud made itself and judged."""

    verify_s: float = 0.0
    queue_s: float = 0.0
    batch_size: int = 1
    target_passes: int = 0
    drafts: int = 0
    cloud_drafts: int = 0


@frozen
class Opened(Frame):
    max_draft_length: int
    eos_token_ids: frozenset[int]
    model_name: str
    cached_tokens: int = 0
    same_bits: bool = False
    """Whether other requests change no bit of the target's logits."""
    batch_invariant: bool = False
    """Whether it changes no bit of them either how a text is cut into passes."""
    row_share: float | None = None
    """What a further token adds to a pass, relative to the first, as the cloud measured it when it
    started."""
    drafts_never_pay: bool = False
    """Whether no pass over drafts is worth its time on the engine that this cloud has."""
    cloud_drafts: CloudDrafts = CloudDrafts.NONE
    """What this cloud drafts itself, as it was asked to."""


@frozen
class TokenLogprob:
    """Log-probability of a token under the distribution it was sampled from, or for a token of the
    prompt the target's own; NaN if unknown. `top`: the likeliest tokens of that distribution (id,
    log-probability), best first."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@frozen
class Committed(Frame):
    """Text that is final: the first `accepted` of the edge's drafts from `base` on, then
    `token_ids`. `prefix_hash` is that of the text with all of them. A draft in whose place another
    token comes was refused, and what was drafted after it is void.

    `cloud_accepted`: so many of the first `token_ids` are drafts of the cloud's own, which the
    target accepted. `logprobs`: of all tokens that this commits, where `open` asked for them. Only
    rejection sampling needs the rest. `draw_from`: the next token, in the place of a refused draft,
    is the edge's to draw from this. `path`: the accepted drafts are these nodes of a tree, from its
    root down."""

    accepted: int = 0
    token_ids: tuple[int, ...] = ()
    work: Work = field(default_factory=Work)
    logprobs: tuple[TokenLogprob, ...] = ()
    cloud_accepted: int = 0
    draw_from: FullPayload | SparsePayload | None = None
    path: tuple[int, ...] = ()

    @property
    def refuses(self) -> bool:
        """True if the draft after the accepted ones was judged and refused; of a chain."""
        judged = self.work.drafts > self.accepted
        return self.draw_from is not None or (judged and bool(self.token_ids))


@frozen
class PromptLogprobs(Frame):
    """Of prompt tokens from position `first` on. Frames of one stream begin at position 1, are
    contiguous, and come before anything is committed; the first token follows nothing."""

    first: int
    logprobs: tuple[TokenLogprob, ...]


@frozen
class GoingAway(Frame):
    pass


@frozen
class Pong(Frame):
    nonce: int


@frozen
class EdgeRoundFrame(Frame):
    """A frame of the edge that `rounds` alone knows: see `tandem.specdec.rounds.messages`."""


@frozen
class CloudRoundFrame(Frame):
    """A frame of the cloud that `rounds` alone knows."""


EdgeMessage = Open | Drafts | Cancel | Ping | EdgeRoundFrame
CloudMessage = Opened | PromptLogprobs | Committed | GoingAway | Pong | CloudRoundFrame
