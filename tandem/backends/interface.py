"""The interface of an engine: sessions of committed tokens, and forward passes over packed
requests.

Invariant: a session's `length` counts the tokens whose keys and values are kept; only a completed
`forward`, `rollback` and `keep_path` change it. An engine and its sessions belong to one thread.

To add a back end of your own, change four files:

1. tandem/backends/NAME.py, new: an `Engine` with its `Session`, and `load(choice)`, which returns a
   `LoadedModel`. `EngineDefaults` is the base that leaves out what is optional: `capabilities` says
   what the engine can do. `request_checks` makes the checks that every engine owes its callers.
2. tandem/backends/factory.py: a line in LOADERS.
3. tests/unit/backends/test_contract.py: a line in SOURCES, which runs the whole contract.
4. docs/internals/engine.md: a column of what it can do.

Services then take --engine NAME, commands --engine-draft NAME and --engine-target NAME.

To add a capability, change two files: add a field to `Capabilities`, false by default, and set it
in the engine that has it. No other engine has it until its file says so. Document it with a row in
docs/internals/engine.md.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tandem.core.errors import FailedPrecondition, TandemError, Unavailable
from tandem.core.frozen import frozen

Logits = NDArray[np.float32]

KV_BLOCK = 64
"""Tokens of a block of kept keys and values. With `same_bits`, a session whose first pass begins at
a multiple of it computes in it what it would have computed from the start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Optional capabilities of a back end, beyond feeding tokens to sessions and rolling them back.
    Callers refuse a request that needs a missing one (`tandem.backends.requirements`), or do
    without. A new one must be false by default: an engine has only what it names."""

    trees: bool = False
    """Requests with `parents`, and `Session.keep_path`."""
    forks: bool = False
    """`Engine.fork`."""
    cancellation: bool = False
    """A pass may end early with ForwardCancelled; otherwise its results are dropped at its end."""
    exits: bool = False
    """Early exits: `Engine.exit_depths` names some."""
    vision: bool = False
    """Images in prompts: there is an `Engine.vision`."""
    embeddings: bool = False
    """A session may be fed embeddings in the place of token ids, as images are."""
    kv_files: bool = False
    """Keys and values as files: there are `Engine.kv_files`."""
    splits: bool = False
    """Requests with `hidden`: the first layers ran elsewhere (split inference)."""
    same_bits: bool = False
    """Other sequences in a pass change no bit of a sequence's logits. Then a coupled text does not
    depend on the load. How a sequence is cut into passes may change a score by some 1e-5, since
    attention rounds by the number of rows: a text turns only where two tokens tie to that."""
    batch_invariant: bool = False
    """Nor does it change a bit how a sequence is cut into passes: a row alone has the logits that
    it has among others. Then the text is the target's bit for bit, whatever was drafted. An engine
    that has it has `same_bits` too."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the capabilities it has."""
        return tuple(name for name, has in asdict(self).items() if has)


class ForwardCancelled(TandemError):
    """A forward pass was stopped between two layers; no session's length has changed."""


class EngineFailed(Unavailable):
    """The engine's own fault, not the request's: callers may go elsewhere."""


def never() -> bool:
    """Never cancel: the `cancelled` callback of a forward pass that runs to its end."""
    return False


def ignore_exit(exit_index: int, logits: Logits) -> None:
    """Do nothing: the `on_exit` callback of a request that reads no early exit."""


class Session(Protocol):
    """The keys and values of one sequence, inside one engine."""

    @property
    def length(self) -> int:
        """Number of committed tokens."""

    @property
    def capacity(self) -> int:
        """Most tokens this session may commit."""

    @property
    def slots(self) -> int:
        """Most tokens it may hold, pending tree nodes included: at least `capacity`."""

    @property
    def tree(self) -> tuple[int, ...] | None:
        """Parents of the pending tree's nodes; None when no tree is pending."""

    def rollback(self, length: int) -> None:
        """Forget every token after the first `length`, and the nodes of an unfinished tree. Raises
        InvalidArgument("length") unless 0 <= length <= self.length."""

    def keep_path(self, indices: Sequence[int]) -> None:
        """Commit these nodes after a tree forward, given from the root down, and drop the others.
        `indices` point into the tree request's `token_ids`; an empty path drops the whole tree.
        Raises InvalidArgument without a pending tree, or if they are no path from a root."""

    def close(self) -> None:
        """Free the keys and values. Closing twice is allowed."""


@frozen
class ForwardRequest:
    """The part of a forward pass for one session.

    Feeds `token_ids` after the session's committed tokens and returns the logits after each of the
    last `logits_to_keep` of them. With `parents` the tokens are the nodes of a tree: `parents[i] <
    i` is the index of node i's parent, -1 stands for the last committed token, and a node sees the
    committed tokens, its ancestors and itself. Tree nodes are pending until `Session.keep_path`;
    the session's next forward (also a cancelled one) or rollback discards them. With `extends_tree`
    they join the pending tree instead: its nodes are counted first, so that `parents` may name
    them.

    `exits` are the early exits to read, by index: `on_exit(index, logits [logits_to_keep, V])` is
    called for each on the engine's thread, in ascending order, while the pass is still under way; a
    pass that is repeated calls it again. An exit's logits are a guess and change nothing, so that
    the pass need not wait for them.

    With `hidden`, float32 [len(token_ids), hidden size], the pass begins after the first
    `first_layer` layers: these are their outputs, computed elsewhere. The session's keys and values
    then lack those layers, so that all its requests must be such, with one `first_layer`.

    `checked`: by an engine around this one, so that `check_batch` leaves it out.
    """

    session: Session
    token_ids: tuple[int, ...]
    logits_to_keep: int
    parents: tuple[int, ...] | None = None
    extends_tree: bool = False
    exits: tuple[int, ...] = ()
    on_exit: Callable[[int, Logits], None] = ignore_exit
    hidden: NDArray[np.float32] | None = None
    first_layer: int = 0
    checked: bool = False


class Vision(Protocol):
    """Turns images into tokens of a prompt."""

    @property
    def image_token_id(self) -> int:
        """The placeholder of one image token."""

    @property
    def around(self) -> tuple[int, int]:
        """The tokens before and after an image."""

    def tokens_per_image(self, images: Sequence[bytes]) -> list[int]:
        """Return how many tokens each image takes, read from its header. Raises
        InvalidArgument("images")."""

    def prepare(self, images: Sequence[bytes]) -> object:
        """Decode and scale the images for `attach`; on any thread. Raises
        InvalidArgument("images")."""

    def attach(self, session: Session, prompt_ids: Sequence[int], pixels: object) -> None:
        """Embed the images at their placeholders; on the engine's thread, before any pass."""


class KvFileRefused(TandemError):
    """A file of keys and values that is incomplete, damaged, or of another model or text."""


@dataclass(frozen=True, slots=True)
class KvOrigin:
    """Origin of keys and values: content hashes, and the number of token ids."""

    model: str
    vocabulary: str
    document: str
    tokens: int


class KvCopies(Protocol):
    """Takes a session's keys and values out of it, and puts them into another."""

    def copy(self, session: Session, first: int, end: int) -> Sequence[Any]:
        """Copy tokens `first`…`end` - 1, both multiples of KV_BLOCK: a copy for each block, where
        the engine has them. On the engine's thread. Raises InvalidArgument("length") if they are
        not there."""

    def paste(self, session: Session, copies: Sequence[Any]) -> None:
        """Put the copies of blocks, in order, into an empty session; on the engine's thread. Raises
        InvalidArgument("length") where it is not empty or too small."""


class KvFiles(Protocol):
    """Writes a session's keys and values out of memory, and reads them back."""

    def export(self, session: Session) -> Any:
        """Return what `write` takes; on the engine's thread. The session must not change before
        that."""

    def adopt(self, tensors: Any) -> Session:
        """Return a full session of what `read` returned; on the engine's thread."""

    def pack(self, tensors: Any, origin: KvOrigin) -> bytes:
        """Return the bytes that `write` would write; on any thread."""

    def unpack(self, packed: bytes, origin: KvOrigin) -> Any:
        """Return the tensors of `packed`, checked like a file; on any thread. Raises
        KvFileRefused."""

    def write(self, path: Path, tensors: Any, origin: KvOrigin) -> None:
        """Write a file, on any thread; durable when it returns. Raises OSError, with the old file
        kept."""

    def read(self, path: Path, origin: KvOrigin) -> Any:
        """Read a file, on any thread. Raises FileNotFoundError, and KvFileRefused for any other
        origin."""


@runtime_checkable
class OpensForOwners(Protocol):
    """An engine whose sessions may begin with what an earlier one of the same owner left. One of
    `open` has no owner: it finds nothing and leaves nothing, but to its forks."""

    def open_for(self, owner: str, capacity: int, spare: int = 0) -> Session:
        """Open a session that finds what earlier ones of this owner left, and nothing of
        anybody else's."""


@runtime_checkable
class KnowsLargestLogits(Protocol):
    """An engine that knows the largest logits of a row alone (`tandem.core.known_logits`)."""

    @property
    def known_tokens(self) -> int:
        """How many of a row's logits are the model's own."""

    @property
    def more_logprobs(self) -> str:
        """What would make more of them known."""


class BegunPass(Protocol):
    """A pass that is computed elsewhere."""

    def done(self) -> bool: ...

    def add_done_callback(self, fn: Callable[[Any], object], /) -> object:
        """Call `fn` on any thread once it is done, at once where it is."""

    def collect(self) -> list[Logits]:
        """Return what `forward` would, once it is done, and change the sessions' lengths. Raises as
        `forward`."""

    def cancel(self) -> None:
        """Give it up; the sessions are as before."""


@runtime_checkable
class DefersPasses(Protocol):
    """An engine that only asks for passes, so that those of several jobs need not wait for one
    another."""

    def begin(self, batch: Sequence[ForwardRequest]) -> BegunPass:
        """Ask for a pass. Until it is collected or cancelled its sessions stay as they are. Raises
        InvalidArgument as `forward`."""


class Engine(Protocol):
    """A causal language model with sessions. Nothing of one session is found by another, unless
    the engine `OpensForOwners`."""

    @property
    def model_name(self) -> str: ...

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def vision(self) -> Vision | None:
        """None for a model of text alone."""

    @property
    def kv_files(self) -> KvFiles | None:
        """None where keys and values live in memory only."""

    @property
    def kv_copies(self) -> KvCopies | None:
        """None where no session begins with what another one computed."""

    @property
    def vocabulary_size(self) -> int:
        """Number of logits per position; token ids are 0 <= id < vocabulary_size."""

    @property
    def context_length(self) -> int:
        """Most tokens a session can have."""

    @property
    def eos_token_ids(self) -> frozenset[int]: ...

    @property
    def vocabulary_hash(self) -> str:
        """Content hash of the vocabulary: equal hashes mean equal ids for equal strings."""

    @property
    def kv_bytes_per_token(self) -> int: ...

    @property
    def kv_bytes_in_use(self) -> int:
        """Bytes of keys and values now allocated; prefixes shared by forks count once."""

    @property
    def sessions_open(self) -> int: ...

    @property
    def layer_count(self) -> int:
        """Number of decoder layers; 0 where nothing can be split after one of them."""

    @property
    def hidden_size(self) -> int:
        """Numbers of a token's hidden state between two layers; 0 likewise."""

    @property
    def exit_depths(self) -> tuple[float, ...]:
        """The share of a pass that lies before each early exit: ascending, in (0, 1)."""

    @property
    def exit_temperatures(self) -> tuple[float, ...]:
        """What each early exit's logits are divided by before its confidence is read; empty: 1."""

    def open(self, capacity: int, spare: int = 0) -> Session:
        """Return an empty session for up to `capacity` tokens, and `spare` more nodes of a pending
        tree. Raises InvalidArgument("capacity") unless 1 <= capacity <= context_length."""

    def fork(self, parent: Session, length: int, capacity: int) -> Session:
        """Return a session that starts with the parent's first `length` tokens, without copying
        them; both are independent afterwards. Raises InvalidArgument unless 0 <= length <=
        parent.length and max(1, length) <= capacity <= context_length; FailedPrecondition without
        the capability."""

    def forward(
        self, batch: Sequence[ForwardRequest], cancelled: Callable[[], bool] = never
    ) -> list[Logits]:
        """Feed every request in one pass; one array [logits_to_keep, vocabulary_size] per request.

        Each session may appear once. A request without `parents` advances its session's length.
        The batch is checked before anything changes: InvalidArgument names the field. `cancelled`
        is asked before each layer; on True ForwardCancelled is raised and lengths are as before.
        """


class EngineDefaults:
    """A base for engines: what an `Engine` is without any of the optional parts. Override those
    that yours has."""

    capabilities: Capabilities = Capabilities()
    vision: Vision | None = None
    kv_files: KvFiles | None = None
    kv_copies: KvCopies | None = None
    eos_token_ids: frozenset[int] = frozenset()
    exit_depths: tuple[float, ...] = ()
    layer_count: int = 0
    hidden_size: int = 0
    exit_temperatures: tuple[float, ...] = ()
    inner: Engine | None = None
    """The engine that this one wraps, if it does."""

    def fork(self, parent: Session, length: int, capacity: int) -> Session:
        raise FailedPrecondition("this back end cannot fork sessions")


def open_session(engine: Engine, owner: str, capacity: int, spare: int = 0) -> Session:
    """Open a session for `owner`, where the engine keeps what sessions begin with; any other engine
    has no use for it."""
    if isinstance(engine, OpensForOwners):
        return engine.open_for(owner, capacity, spare)
    return engine.open(capacity, spare)
