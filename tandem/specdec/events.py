"""The edge machine's requests, and the events that tell its shell what to do, as frozen values."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from tandem.control.estimates import NO_WARM_START, WarmStart
from tandem.core.distribution import RunnersUp
from tandem.core.frozen import frozen
from tandem.core.probs import Array
from tandem.core.stopping import FinishReason
from tandem.core.tokens import PrefixedTokens, TokenSource
from tandem.specdec.choices import Control
from tandem.specdec.messages import EdgeMessage, GenerationParams, Open, TokenLogprob
from tandem.specdec.ngram_proposer import NgramTexts
from tandem.specdec.predicted_text import PredictedText
from tandem.specdec.presets import MAX_DRAFT_LENGTH, Preset, VerifySettings
from tandem.specdec.proposers import DraftSource


@dataclass(frozen=True, slots=True)
class EdgeRequest:
    """One request, checked: `params.max_tokens` fits the context, the preset is valid."""

    session: int
    prompt_ids: tuple[int, ...]
    vocabulary_hash: str
    vocabulary_size: int
    params: GenerationParams
    preset: Preset
    eos_token_ids: frozenset[int] = frozenset()
    stop_token_ids: frozenset[int] = frozenset()
    warm_start: WarmStart = NO_WARM_START
    tenant: bytes = b""
    public_tokens: int = 0
    """See `Open`."""
    predicted: PredictedText | None = None
    """What the caller expects of the answer. It stays at the edge."""
    memory: NgramTexts | None = None
    """What the answer may be drafted from that was said before. It stays at the edge too."""
    allows_memory: bool = False
    """See `Open`."""
    logprobs_are_optional: bool = False
    """Whether a cloud that knows nothing of `params.logprobs` will do: the caller did not ask."""
    longest_draft: int = MAX_DRAFT_LENGTH
    """Drafts that the cloud takes in a frame; 0: only the cloud knows, and says when it opens."""

    @property
    def max_tokens(self) -> int:
        return self.params.max_tokens

    def opening(self, committed: PrefixedTokens, prompt_logprobs: bool = False) -> Open:
        """Return the frame that opens a stream at the committed text. `prompt_logprobs`: whether
        the log-probabilities of the prompt are still to come, if the request wants them."""
        wanted = self.params.prompt_logprobs and prompt_logprobs
        return Open(
            session=self.session,
            base=len(committed),
            prefix_hash=committed.prefix,
            vocabulary_hash=self.vocabulary_hash,
            vocabulary_size=self.vocabulary_size,
            prompt_ids=self.prompt_ids,
            committed_ids=committed.since(len(self.prompt_ids)),
            params=replace(self.params, prompt_logprobs=wanted),
            settings=self._announced,
            tenant=self.tenant,
            public_tokens=self.public_tokens,
            allows_memory=self.allows_memory,
        )

    @property
    def recalled(self) -> NgramTexts | None:
        """What the answer is drafted from of the memory. Nothing where the drafts decide the text
        of a seed, unless the preset says otherwise: a seed gives the same text again."""
        preset = self.preset
        same_text = preset.drafter_invariant or self.params.sampling.greedy
        return self.memory if preset.drafts and (same_text or preset.recalls) else None

    @property
    def lengthens_forced(self) -> bool:
        """True if a chunk goes on with what a grammar forces after its last draft, the caller
        predicts or the memory has: where chunks are judged whole, and a draft costs a few bytes."""
        preset = self.preset
        whole = preset.drafts and preset.schedule.stop_and_wait and preset.control is Control.FIXED
        few = not (preset.carries_probs or preset.expansion)
        texts = self.predicted is not None or self.recalled is not None
        without_model = texts or self.params.processors.grammar is not None
        return without_model and whole and few

    @property
    def _announced(self) -> VerifySettings:
        """The settings that the cloud is told, with room for longer chunks."""
        settings = self.preset.verify_settings
        preset = self.preset
        stretches = self.recalled is not None and preset.drafts_chains and preset.drafter_invariant
        if not (self.lengthens_forced or stretches):
            return settings
        return replace(settings, window=max(settings.window, MAX_DRAFT_LENGTH))

    @property
    def draft_ends(self) -> frozenset[int]:
        """The draft tokens after which more drafts would be wasted."""
        eos = frozenset[int]() if self.params.ignore_eos else self.eos_token_ids
        return eos | self.stop_token_ids


@frozen
class DraftTask:
    """Roll the draft KV back to `keep`, feed `token_ids`, draft `count` tokens from `position` on,
    or up to the first that is among `ends`.

    `stepwise`: hand each token over as soon as it is drafted. `alternatives`: how many runners-up
    to name beside each. `branch`: on a fork of the draft KV, which itself stays as it is.
    `expansion`: draft a tree of `count` layers, in which each node of layer i has expansion[i]
    children, but none after a token among `ends`. `path`: the KV holds a tree after its first
    `keep` tokens; keep these nodes in place of a rollback. `max_extra`: how many more may follow
    the last, as long as a grammar leaves no other or a text proposes them. `made`: the tokens of a
    branch that are there; the machine alone adds to it."""

    keep: int
    token_ids: tuple[int, ...]
    position: int
    count: int
    ends: frozenset[int] = frozenset()
    stepwise: bool = False
    alternatives: int = 0
    branch: bool = False
    expansion: tuple[int, ...] = ()
    path: tuple[int, ...] = ()
    max_extra: int = 0
    made: list[Drafted] = field(default_factory=list, compare=False)


@frozen
class LayersTask:
    """Roll the KV of the target's first layers back to `first`, feed `token_ids`, and return a
    hidden state for each."""

    first: int
    token_ids: tuple[int, ...]


NO_PROBS: Array = np.empty(0, dtype=np.float32)
"""Where nothing that is sent or drawn depends on a draft's distribution."""


@frozen
class Drafted:
    """A draft token and the distribution it was drawn from, in wire precision. `alternatives`: the
    likeliest tokens in its place, best first, with weights (the draft token's is 1). `parent`: the
    node it follows in a tree, -1 for the committed text. `ends_chunk`: the draft model was not sure
    of it, so what would follow is not worth drafting before it is judged. `source`: who proposed
    it."""

    token_id: int
    draft_probs: Array
    alternatives: RunnersUp = ()
    parent: int = -1
    ends_chunk: bool = False
    source: DraftSource = DraftSource.MODEL


@frozen
class Send:
    """Put a frame on the open stream."""

    message: EdgeMessage


@frozen
class Commit:
    """Tokens that are final. `unverified`: drawn by the draft model with the cloud lost."""

    token_ids: tuple[int, ...]
    unverified: bool = False
    token_sources: tuple[TokenSource, ...] = field(default=(), compare=False)
    """Of each token; how it came to be, which does not change what was committed."""
    logprobs: tuple[TokenLogprob, ...] = field(default=(), compare=False)
    """Of each token, where asked for."""


@frozen
class Interrupt:
    """Stop this draft task, which is under way, and discard its tokens."""

    task: DraftTask


@dataclass(frozen=True, slots=True)
class Reconnect:
    """Close the stream, open a fresh one, then call `connect`. `lost`: the stream broke or is dead,
    so that its connection is not to be trusted; otherwise the session leaves a stream that works,
    and its connection is sound: other sessions use it too."""

    lost: bool = True


@dataclass(frozen=True, slots=True)
class Finish:
    """The request is over."""

    reason: FinishReason


EdgeOutput = Send | Commit | Interrupt | Reconnect | Finish
