"""What an engine is: sessions of committed tokens, and forward passes over packed segments.

Invariant: a session's `length` counts the tokens whose keys and values are kept; only a completed
`forward`, `rollback` and `keep_path` change it. An engine and its sessions belong to one thread.
This module must not import torch or transformers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tandem.core.errors import TandemError

Logits = NDArray[np.float32]


class ForwardCancelled(TandemError):
    """A forward pass was given up between two layers; no session's length has changed."""


def never() -> bool:
    """The `cancelled` callback of a forward pass that runs to its end."""
    return False


def unheard(exit_index: int, logits: Logits) -> None:
    """The `on_exit` callback of a segment that reads no early exit."""


class Session(Protocol):
    """The keys and values of one sequence, inside one engine."""

    @property
    def length(self) -> int:
        """Number of committed tokens."""
        ...

    @property
    def capacity(self) -> int:
        """Most tokens this session may commit."""
        ...

    @property
    def slots(self) -> int:
        """Most tokens it may hold, pending tree nodes included: at least `capacity`."""
        ...

    @property
    def tree(self) -> tuple[int, ...] | None:
        """Parents of the pending tree's nodes; None when no tree is pending."""
        ...

    def rollback(self, length: int) -> None:
        """Forget every token after the first `length`, and the nodes of an unfinished tree.

        Raises InvalidArgument("length") unless 0 <= length <= self.length.
        """
        ...

    def keep_path(self, indices: Sequence[int]) -> None:
        """After a tree forward: commit these nodes, given from the root down, and drop the others.

        `indices` point into the tree segment's `token_ids` and must form a path that starts at a
        node whose parent is -1; an empty path drops the whole tree. Raises InvalidArgument when no
        tree is pending or the indices are no such path.
        """
        ...

    def close(self) -> None:
        """Free the keys and values. Closing twice is allowed."""
        ...


@dataclass(frozen=True, slots=True)
class Segment:
    """What one forward pass does for one session.

    Feeds `token_ids` after the session's committed tokens and returns the logits after each of the
    last `wanted` of them. With `parents` the tokens are the nodes of a tree: `parents[i] < i` is
    the index of node i's parent, -1 stands for the last committed token, and a node sees the
    committed tokens, its ancestors and itself. Tree nodes are pending until `Session.keep_path`;
    the session's next forward (also a cancelled one) or rollback discards them. With `grows` they
    join the pending tree instead: its nodes are counted first, so that `parents` may name them.

    `exits` are the early exits to read, by index: `on_exit(index, logits [wanted, V])` is called
    for each on the engine's thread, in ascending order, while the pass is still under way; a pass
    that is repeated calls it again. What an exit says is a guess: it changes nothing.
    """

    session: Session
    token_ids: tuple[int, ...]
    wanted: int
    parents: tuple[int, ...] | None = None
    grows: bool = False
    exits: tuple[int, ...] = ()
    on_exit: Callable[[int, Logits], None] = unheard


class Engine(Protocol):
    """A causal language model with sessions."""

    @property
    def model_name(self) -> str: ...

    @property
    def vocabulary_size(self) -> int:
        """Number of logits per position; token ids are 0 <= id < vocabulary_size."""
        ...

    @property
    def context_length(self) -> int:
        """Most tokens a session can have."""
        ...

    @property
    def eos_token_ids(self) -> frozenset[int]: ...

    @property
    def vocabulary_hash(self) -> str:
        """Content hash of the vocabulary: equal hashes mean equal ids for equal strings."""
        ...

    @property
    def kv_bytes_per_token(self) -> int: ...

    @property
    def kv_bytes_in_use(self) -> int:
        """Bytes of keys and values now allocated; prefixes shared by forks count once."""
        ...

    @property
    def sessions_open(self) -> int: ...

    @property
    def exit_depths(self) -> tuple[float, ...]:
        """Of each early exit, the share of a pass that lies before it: ascending, in (0, 1)."""
        ...

    def open(self, capacity: int, spare: int = 0) -> Session:
        """An empty session for up to `capacity` tokens, and `spare` more nodes of a pending tree.

        Raises InvalidArgument("capacity") unless 1 <= capacity <= context_length.
        """
        ...

    def fork(self, parent: Session, length: int, capacity: int) -> Session:
        """A session that starts with the parent's first `length` tokens, without copying them.

        Both go on independently afterwards, and either may be closed first. Raises InvalidArgument
        unless 0 <= length <= parent.length and max(1, length) <= capacity <= context_length.
        """
        ...

    def forward(
        self, batch: Sequence[Segment], cancelled: Callable[[], bool] = never
    ) -> list[Logits]:
        """Feed every segment in one pass; one array [wanted, vocabulary_size] per segment.

        Each session may appear once. A segment without `parents` advances its session's length.
        The batch is checked before anything changes: InvalidArgument names the field.
        `cancelled` is asked before each layer; once it answers True the pass raises
        ForwardCancelled and every length is as before.
        """
        ...


class Vision(Protocol):
    """What turns images into tokens of a prompt. An engine that sees has one as `vision`."""

    @property
    def image_token_id(self) -> int:
        """The placeholder of one image token."""
        ...

    @property
    def around(self) -> tuple[int, int]:
        """The tokens before and after an image."""
        ...

    def tokens_per_image(self, images: Sequence[bytes]) -> list[int]:
        """By their headers. Raises InvalidArgument("images")."""
        ...

    def prepare(self, images: Sequence[bytes]) -> object:
        """Decoded and scaled, for `attach`; on any thread. Raises InvalidArgument("images")."""
        ...

    def attach(self, session: Session, prompt_ids: Sequence[int], pixels: object) -> None:
        """Look at the images, whose placeholders are in `prompt_ids`; on the engine's thread,
        before the session's first pass."""
        ...


def vision_of(engine: object) -> Vision | None:
    """The engine's eyes, None for a model of text alone."""
    found: Vision | None = getattr(engine, "vision", None)
    return found


class KvFileRefused(TandemError):
    """A file of keys and values that is torn, damaged, or of another model or text."""


@dataclass(frozen=True, slots=True)
class KvOrigin:
    """What keys and values were computed from: the content hashes of the model, of its vocabulary
    and of the token ids, and how many of those there are."""

    model: str
    vocabulary: str
    document: str
    tokens: int


class KvFiles(Protocol):
    """What makes files of a session's keys and values. An engine that can has one as `kv_files`."""

    def export(self, session: Session) -> Any:
        """What `write` takes; on the engine's thread. The session must not change before that."""
        ...

    def adopt(self, tensors: Any) -> Session:
        """A full session of what `read` returned; on the engine's thread."""
        ...

    def pack(self, tensors: Any, origin: KvOrigin) -> bytes:
        """What `write` would write; on any thread."""
        ...

    def unpack(self, packed: bytes, origin: KvOrigin) -> Any:
        """What `adopt` takes, of what `pack` made, checked like a file; on any thread. Raises
        KvFileRefused."""
        ...

    def write(self, path: Path, tensors: Any, origin: KvOrigin) -> None:
        """On any thread; durable when it returns. Raises OSError, with the old file kept."""
        ...

    def read(self, path: Path, origin: KvOrigin) -> Any:
        """On any thread. Raises FileNotFoundError, and KvFileRefused for any other origin."""
        ...


def kv_files_of(engine: object) -> KvFiles | None:
    """None for an engine whose keys and values live in memory only."""
    found: KvFiles | None = getattr(engine, "kv_files", None)
    return found


class IncrementalText(Protocol):
    """Turns a stream of token ids into a stream of text; what it returned is never taken back."""

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that these ids complete."""
        ...

    def preview(self, token_id: int) -> str:
        """What `push` of the id would give now; nothing is taken."""
        ...

    def finish(self) -> str:
        """What is left at the end."""
        ...


class Tokenizer(Protocol):
    """Text to token ids and back."""

    def encode(self, text: str) -> list[int]: ...

    def chat(self, messages: Sequence[Mapping[str, str]], images: int = 0) -> list[int]:
        """Ids of a conversation, up to where the answer begins.

        The user's last turn begins with so many `images`, one placeholder each.
        """
        ...

    def detokenizer(self) -> IncrementalText: ...
