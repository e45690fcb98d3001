"""The frames of an answer from two sides: between an aggregator and the decoder of its side
(documented in decoding.proto), between the two aggregators (aggregator.proto), the transfer of
documents' keys and values (both); and the outputs of a side's machine.

Invariants: arrays inside messages are never written to; keys and values of one model are never used
by another."""

from dataclasses import dataclass, field, replace

from tandem.core.errors import FailedPrecondition
from tandem.core.frozen import frozen
from tandem.core.probs import SamplingParams
from tandem.core.processors import NO_PROCESSORS, Processors
from tandem.core.prompt import Prompt
from tandem.core.tokens import PrefixedTokens, TokenSource
from tandem.specdec.events import Commit, Finish, Reconnect
from tandem.specdec.messages import Cancel, Frame, FrameHeader, GoingAway, Ping, Pong
from tandem.two_sided.protocol.draft_head import DraftProbs
from tandem.two_sided.protocol.local_drafting import local_drafting
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.presets import AggregationPreset, DocumentContext, LocalProbs
from tandem.two_sided.protocol.top_list import TopList


@dataclass(frozen=True, slots=True)
class ContextDocument:
    """A document's text, R(d, prompt), and whether keys and values that its sender imported, for
    the tenant `imported_for` (opaque; empty: for itself), may stand in for those that the decoder
    would compute. `name` is what this side calls it, and stays here; `owner` is whose it is, empty
    for the operator's, and goes to this side's decoder alone. `in_conversation`: for transfers,
    see `tandem.text.document_place`; where a session opens, its prompt says the same."""

    text: str
    relevance: float
    imported: bool = False
    name: str = field(default="", compare=False)
    imported_for: bytes = b""
    owner: str = ""
    in_conversation: bool = False


@frozen
class DecodingOpen(Frame):
    """`base` and `prefix` are 0. `vocabulary_size` 0: not known."""

    prompt: Prompt
    committed_ids: tuple[int, ...]
    documents: tuple[ContextDocument, ...]
    sampling: SamplingParams
    seed: int
    side: Side
    probs: LocalProbs
    ahead: int
    max_tokens: int
    wants_text: bool = False
    stop: tuple[str, ...] = ()
    vocabulary_hash: str = ""
    vocabulary_size: int = 0
    preset: str = ""
    reweigh_every: int = 0
    wants_token_texts: bool = False
    processors: Processors = NO_PROCESSORS
    end_ids: tuple[int, ...] = ()
    """What may end the text where a grammar is complete, or only after `min_tokens`; none: what
    ends the decoder's own."""
    chat_template_kwargs: str = ""
    """Of a conversation: variables of the chat template, a JSON object."""
    joined: bool = False
    """Decode one sequence with all documents one after another, not one sequence for each."""


@frozen
class DecodingTarget(Frame):
    """The tokens that were decided from `base` on, where the committed text ended."""

    token_ids: tuple[int, ...]
    last: bool = False


@frozen
class DecodingOpened(Frame):
    """`base` and `prefix`: prompt and resume point."""

    model_name: str
    vocabulary_hash: str
    vocabulary_size: int
    context_length: int
    eos_token_ids: frozenset[int]
    prompt_ids: tuple[int, ...]
    log_mass: float
    max_tokens: int
    document_tokens: tuple[int, ...] = ()
    """Of each document."""


SentProbs = DraftProbs | TopList | None
"""What is told of a draft's distribution: all of it, its head, or at temperature 0 to the other
side a top list of it."""


@frozen
class SideDraftFrame(Frame):
    """A side's draft at `base`, from its decoder to its aggregator and from there to the other
    side, with what the receiver needs of its distribution. `committed`: where the sender's
    committed text ends. `decode_s` by the decoder's clock. Between the sides `heard`: how many of
    the receiver's frames had arrived, the newest `held_s` ago."""

    token_id: int
    probs: SentProbs
    log_mass: float
    committed: int
    decode_s: float = 0.0
    held_s: float = 0.0
    heard: int = 0


@frozen
class DecodingText(Frame):
    """The text of the target that began at `base`, of which `tokens` count; what each of those
    spells, if that was asked for."""

    text: str
    tokens: int
    stopped: bool = False
    token_texts: tuple[str, ...] = ()


def frame_header(session: int, text: PrefixedTokens) -> FrameHeader:
    """Return the fields of a frame at the end of a text."""
    return {"session": session, "base": len(text), "prefix_hash": text.prefix}


DecodeRequestMessage = DecodingOpen | DecodingTarget | Cancel | Ping
DecodeResponseMessage = DecodingOpened | SideDraftFrame | DecodingText | GoingAway | Pong


KV_PART_BYTES = 60 * 2**10
"""Bytes of a chunk: below the least `max_message_bytes` that a service can be given."""


@dataclass(frozen=True, slots=True)
class KvModel:
    """Identity of a model's keys and values: content hashes of weights (with configuration and
    precision) and of the vocabulary; and a name for people, which is not compared."""

    weights: str
    vocabulary_hash: str
    name: str = ""

    def check_used_by(self, user: "KvModel") -> None:
        """Raise FailedPrecondition naming both unless `user` can use what this model makes."""
        if (self.weights, self.vocabulary_hash) != (user.weights, user.vocabulary_hash):
            # What to do comes first: the other side cuts long words off.
            raise FailedPrecondition(
                "document_kv: of another model; fetch the documents' text instead (drcg-text):"
                f" keys and values here are of {self._said()}, there of {user._said()}"
            )

    def _said(self) -> str:
        weights, vocabulary = self.weights[:12] or "not named", self.vocabulary_hash[:12]
        return f"{self.name or 'a model'} (weights {weights}, vocabulary {vocabulary})"


KvPart = int | bytes
"""What is sent of documents: how many bytes follow, then these in chunks."""


@dataclass(frozen=True, slots=True)
class AggregationRequest:
    """One request, checked: `max_tokens` fits the context, the preset is valid. `committed_ids`:
    the resume point. `query`: what the cloud retrieves for, `documents` of them at most."""

    session: int
    prompt_ids: tuple[int, ...]
    vocabulary_hash: str
    vocabulary_size: int
    sampling: SamplingParams
    seed: int
    max_tokens: int
    preset: AggregationPreset
    committed_ids: tuple[int, ...] = ()
    eos_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    query: str = ""
    documents: int = 0
    processors: Processors = NO_PROCESSORS

    def opening(self, committed: PrefixedTokens, log_mass: float) -> "CollaborationOpen":
        """Return the frame that opens a stream at the committed text."""
        request = replace(
            self,
            committed_ids=committed.since(len(self.prompt_ids)),
            eos_token_ids=frozenset() if self.ignore_eos else self.eos_token_ids,
            ignore_eos=False,
        )
        return CollaborationOpen(
            **frame_header(self.session, committed),
            request=request,
            log_mass=log_mass,
        )

    def decoding_opening(
        self, side: Side, *, prompt: Prompt, documents: tuple[ContextDocument, ...]
    ) -> DecodingOpen:
        """Return the frame that opens this request's session at the decoder of `side`.

        The frame has what the openings of both sides share; each side adds the rest with
        `replace`.
        """
        drafting = local_drafting(self.preset, self.sampling)
        return DecodingOpen(
            session=self.session,
            base=0,
            prefix_hash=0,
            prompt=prompt,
            committed_ids=self.committed_ids,
            documents=documents,
            sampling=drafting.sampling,
            seed=self.seed,
            side=side,
            probs=drafting.probs,
            ahead=self.preset.ahead,
            max_tokens=self.max_tokens,
            preset=self.preset.name,
            reweigh_every=self.preset.reweigh_every,
            processors=self.processors,
            joined=self.preset.context is DocumentContext.JOINED,
        )


@frozen
class CollaborationOpen(Frame):
    """`base` and `prefix`: prompt and committed text. `log_mass`: h of the device's documents."""

    request: AggregationRequest
    log_mass: float

    @property
    def answer_header(self) -> FrameHeader:
        """Fields that the answers to the opening carry."""
        return {
            "session": self.session,
            "base": self.base,
            "prefix_hash": self.prefix_hash,
        }


@frozen
class CollaborationOpened(Frame):
    """h of the cloud's documents, how many they are, and the room that they leave."""

    log_mass: float
    max_tokens: int
    documents: int = 0
    document_tokens: int = 0


@frozen
class TargetFrame(Frame):
    """Tokens decided from `base` on; from the position after them on the receiver aggregates, if
    that is said. `token_sources`: of each token, or none."""

    token_ids: tuple[int, ...]
    hands_over: bool = False
    token_sources: tuple[TokenSource, ...] = ()


@frozen
class Fetch(Frame):
    """A top list of so many entries is needed of the receiver's draft at `base`."""

    count: int


AnyPeerMessage = SideDraftFrame | TargetFrame | Fetch
"""Sent in both directions."""
DeviceMessage = AnyPeerMessage | CollaborationOpen | Cancel | Ping
CloudSideMessage = AnyPeerMessage | CollaborationOpened | GoingAway | Pong
PeerMessage = DeviceMessage | CloudSideMessage


@dataclass(frozen=True, slots=True)
class ToPeer:
    """Put a frame on the stream to the other aggregator."""

    message: PeerMessage


@dataclass(frozen=True, slots=True)
class ToDecoder:
    """Put a frame on the stream to this side's decoder."""

    message: DecodingTarget


SideOutput = ToPeer | ToDecoder | Commit | Reconnect | Finish
SideOutputs = list[SideOutput]
