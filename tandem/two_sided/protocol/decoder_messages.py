"""The frames between an aggregator and the decoder of its side (documented in decoding.proto), and
the draft, which goes on to the other side.
Invariant: arrays inside messages are never written to."""

from dataclasses import dataclass, field

from tandem.core.frozen import frozen
from tandem.core.probs import SamplingParams
from tandem.core.processors import NO_PROCESSORS, Processors
from tandem.core.prompt import Prompt
from tandem.core.tokens import PrefixedTokens
from tandem.specdec.messages import Cancel, Frame, FrameHeader, GoingAway, Ping, Pong
from tandem.two_sided.protocol.draft_head import DraftProbs
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.presets import LocalProbs
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
