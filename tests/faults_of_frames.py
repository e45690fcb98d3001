"""What can be wrong with a frame of a one-sided answer, each fault listed once: the change that
makes an honest frame wrong, what the machine or its codec raises, and the status that the other end
sees. Tests of machines and codecs take their cases from here, and so do those over real gRPC."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tandem.core.codecs import Precision, sparse_probs_to_bytes
from tandem.core.errors import FailedPrecondition, InvalidArgument, ProtocolError
from tandem.core.tokens import PrefixMismatch
from tandem_api.verifier.v1 import verifier_pb2 as pb

HUGE = 2**32 - 1
NOT_A_NUMBER = b"\x00\x00\xc0\x7f"

STATUSES = {
    InvalidArgument: "INVALID_ARGUMENT",
    FailedPrecondition: "FAILED_PRECONDITION",
    PrefixMismatch: "DATA_LOSS",
}
"""What an edge sees of an exception in the cloud. A cloud never sees one of the edge's: the edge
opens a fresh stream, and gives up with DATA_LOSS where that does not help."""


@dataclass(frozen=True)
class Size:
    """What values are too large depends on: of the target model."""

    vocabulary: int
    context: int


Change = Callable[[Any, Size], object]
"""Makes a frame wrong, in place."""


@dataclass(frozen=True)
class Fault:
    """A wrong frame of an edge whose session has this preset, unlike the honest one in one thing;
    `field` is the one that the exception names."""

    name: str
    preset: str
    change: Change
    field: str
    raises: type[Exception] = InvalidArgument

    def __str__(self) -> str:
        return f"{self.preset}: {self.name}"

    @property
    def status(self) -> str:
        return STATUSES[self.raises]

    @property
    def details(self) -> str:
        """How the words of the status begin."""
        return f"{self.field}: "

    def wrong(self, honest: pb.VerifyRequest, size: Size) -> pb.VerifyRequest:
        """A copy of the honest frame with this fault."""
        frame = pb.VerifyRequest.FromString(honest.SerializeToString())
        self.change(frame, size)
        return frame


def _put(message: Any, name: str, value: Any, size: Size) -> None:
    if callable(value):
        value = value(size)
    if isinstance(value, list):
        getattr(message, name)[:] = value
    else:
        setattr(message, name, value)


def _fields(place: str, **fields: Any) -> Change:
    """Put these into the part `place` of a frame; a value that depends on the size is a function
    of it."""

    def change(frame: Any, size: Size) -> None:
        owner = frame
        for name in place.split(".") if place else ():
            owner = getattr(owner, name)
        owner.SetInParent()
        for name, value in fields.items():
            _put(owner, name, value, size)

    return change


def _head(**changes: Callable[[int], int]) -> Change:
    """Change session, base or prefix by what they are."""

    def change(frame: Any, size: Size) -> None:
        for name, of in changes.items():
            setattr(frame, name, of(getattr(frame, name)))

    return change


# Openings.


def _opening(**fields: Any) -> Change:
    return _fields("open", **fields)


def _params(**fields: Any) -> Change:
    return _fields("open.params", **fields)


def _sampling(**fields: Any) -> Change:
    return _fields("open.params.sampling", **fields)


OPENINGS = (
    Fault("no prompt", "dssd", _opening(prompt_ids=[]), "prompt_ids"),
    Fault("token V", "dssd", _opening(prompt_ids=lambda size: [1, size.vocabulary]), "prompt_ids"),
    Fault("token of 32 bits", "dssd", _opening(prompt_ids=[1, HUGE]), "prompt_ids"),
    Fault(
        "a prompt as long as the context",
        "dssd",
        _opening(prompt_ids=lambda size: [1] * size.context),
        "prompt_ids",
    ),
    Fault(
        "a longer one than the context",
        "dssd",
        _opening(prompt_ids=lambda size: [HUGE] * (size.context + 1)),
        "prompt_ids",
    ),
    Fault(
        "committed token V",
        "dssd",
        _opening(committed_ids=lambda size: [size.vocabulary]),
        "committed_ids",
    ),
    Fault(
        "more committed than the context",
        "dssd",
        _opening(committed_ids=lambda size: [HUGE] * (size.context + 1)),
        "committed_ids",
    ),
    Fault("nothing left to do", "dssd", _opening(committed_ids=[1] * 40), "committed_ids"),
    Fault("a committed text that the head has not", "dssd", _opening(committed_ids=[1]), "base"),
    Fault("no tokens wanted", "dssd", _params(max_tokens=0), "max_tokens"),
    Fault(
        "an answer beyond the context",
        "dssd",
        _params(max_tokens=lambda size: size.context - 1),
        "max_tokens",
    ),
    Fault("an endless answer", "dssd", _params(max_tokens=HUGE), "max_tokens"),
    Fault("temperature NaN", "dssd", _sampling(temperature=math.nan), "temperature"),
    Fault("temperature -1", "dssd", _sampling(temperature=-1.0), "temperature"),
    Fault("temperature infinite", "dssd", _sampling(temperature=math.inf), "temperature"),
    Fault("top-k V + 1", "dssd", _sampling(top_k=lambda size: size.vocabulary + 1), "top_k"),
    Fault("top-p 0", "dssd", _sampling(top_p=0.0), "top_p"),
    Fault("top-p NaN", "dssd", _sampling(top_p=math.nan), "top_p"),
    Fault("an empty image", "dssd", _params(images=[b""]), "images"),
    Fault("a hundred images", "dssd", _params(images=[b"x"] * 100), "images"),
    Fault("no acceptance rule", "dssd", _opening(acceptance=0), "acceptance"),
    Fault("another acceptance rule", "dssd", _opening(acceptance=99), "acceptance"),
    Fault("another uplink", "dssd", _opening(uplink=99), "uplink"),
    Fault("another precision", "dssd", _opening(uplink_precision=99), "uplink_precision"),
    Fault("another payload", "dssd", _opening(rejection_payload=99), "rejection_payload"),
    Fault("a large payload", "dssd", _opening(payload_top=4097), "payload_top"),
    Fault("many tail draws", "dssd", _opening(payload_tail_draws=257), "payload_tail_draws"),
    Fault("a wide window", "dssd", _opening(window=257), "window"),
    Fault("no window, and no token without one", "dssd", _opening(window=0), "decode_when_idle"),
    Fault("a biased rule", "dssd", _opening(uplink=pb.UPLINK_PAYLOAD_IDS), "uplink"),
    Fault(
        "a payload that the rule has not",
        "coupled",
        _opening(rejection_payload=pb.REJECTION_PAYLOAD_FULL_DISTRIBUTION),
        "rejection_payload",
    ),
    Fault(
        "a cut of V + 1",
        "tslt",
        _opening(draft_top_k=lambda size: size.vocabulary + 1),
        "draft_top_k",
    ),
    Fault("a cut at 0", "tslt", _opening(draft_top_p=0.0), "draft_top_p"),
    Fault("a cut at 1.5", "tslt", _opening(draft_top_p=1.5), "draft_top_p"),
    Fault("a cut at NaN", "tslt", _opening(draft_top_p=math.nan), "draft_top_p"),
    Fault("a layer without candidates", "mc-dsd", _opening(expansion=[2, 0, 2]), "expansion"),
    Fault("a vast tree", "mc-dsd", _opening(expansion=[5, 5, 5]), "expansion"),
    Fault("layers beyond counting", "mc-dsd", _opening(expansion=[HUGE] * 65), "expansion"),
    Fault("a tree of another depth", "mc-dsd", _opening(expansion=[2, 2]), "expansion"),
    Fault("a tree without its last token", "mc-dsd", _opening(bonus=False), "expansion"),
    Fault("a tree of ids", "mc-dsd", _opening(uplink=pb.UPLINK_PAYLOAD_IDS), "uplink"),
    Fault(
        "coupled candidates with replacement",
        "coupled",
        _opening(window=4, expansion=[1] * 4, with_replacement=True),
        "with_replacement",
    ),
    Fault("a long tenant", "dssd", _opening(tenant=bytes(33)), "tenant"),
    Fault("a public text beyond the prompt", "dssd", _opening(public_tokens=4), "public_tokens"),
    Fault("another base", "dssd", _head(base=lambda base: base - 1), "base"),
    Fault("a far base", "dssd", _head(base=lambda base: HUGE), "base"),
    Fault(
        "another text", "dssd", _head(prefix=lambda prefix: prefix ^ 1), "prefix", PrefixMismatch
    ),
    Fault(
        "another vocabulary",
        "dssd",
        _opening(vocabulary_hash="other"),
        "vocabulary_hash",
        FailedPrecondition,
    ),
    Fault(
        "another vocabulary's size",
        "dssd",
        _opening(vocabulary_size=lambda size: size.vocabulary + 1),
        "vocabulary_hash",
        FailedPrecondition,
    ),
    Fault("drafts before it", "dssd", _fields("drafts", token_ids=[1]), "open"),
    Fault("no message", "dssd", lambda frame, _: frame.Clear(), "message"),
)
"""Of a first frame: the honest one wants forty tokens after a prompt of two or three."""


# Drafts.


def _draft(**fields: Any) -> Change:
    return _fields("drafts", **fields)


def uniform(size: Size) -> Any:
    """A distribution over the whole vocabulary."""
    return np.full(size.vocabulary, 1 / size.vocabulary, dtype=np.float32)


def without_token_1(size: Size) -> Any:
    return np.where(np.arange(size.vocabulary) == 1, 0, 1 / (size.vocabulary - 1))


def _rows(of: Callable[[Size], Any], count: int = 2) -> Callable[[Size], bytes]:
    return lambda size: np.asarray(of(size), dtype=np.float32).tobytes() * count


def _negative(size: Size) -> Any:
    probs = uniform(size)
    probs[:2] = (-probs[0], 3 * probs[0])
    return probs


def _sparse(
    count: int, of: Callable[[Size], Any] = uniform, precision: Precision = "float16"
) -> Callable[[Size], list[bytes]]:
    return lambda size: [sparse_probs_to_bytes(np.asarray(of(size), np.float32), precision)] * count


def _tree(token_ids: Iterable[int], parents: Iterable[int], rows: int = 1) -> Change:
    return _draft(token_ids=[*token_ids], parents=[*parents], sparse_probs=_sparse(rows))


def _probabilities(first: float) -> Change:
    return _draft(probabilities=[first, 0.5])


def _only(kind: str, **fields: Any) -> Change:
    """Another kind of message in the place of the draft."""
    return _fields(kind, **fields)


DRAFTS = (
    *(
        Fault(name, preset, change, field)
        for preset in ("dssd", "dsd", "coupled", "tslt")
        for name, change, field in (
            ("token V", _draft(token_ids=lambda size: [1, size.vocabulary]), "token_ids"),
            ("token of 32 bits", _draft(token_ids=[HUGE, 1]), "token_ids"),
            ("another session", _head(session=lambda session: session + 1), "session"),
        )
    ),
    *(
        Fault(f"probability {bad}", "dssd", _probabilities(bad), "probabilities")
        for bad in (math.nan, math.inf, -math.inf, -0.5, 0.0, 1.0001)
    ),
    Fault("a probability too few", "dssd", _draft(probabilities=[0.5]), "probabilities"),
    Fault("no probabilities", "dssd", _draft(probabilities=[]), "probabilities"),
    Fault("probabilities unasked", "coupled", _draft(probabilities=[0.5, 0.5]), "probabilities"),
    Fault("probabilities as well", "dsd", _draft(probabilities=[0.5, 0.5]), "probabilities"),
    Fault("probabilities beyond counting", "dssd", _draft(probabilities=[1] * 9), "probabilities"),
    Fault("no tokens", "dssd", _draft(token_ids=[], probabilities=[]), "draft_length"),
    Fault(
        "too many tokens",
        "dssd",
        _draft(token_ids=[1] * 5, probabilities=[0.5] * 5),
        "draft_length",
    ),
    Fault("tokens beyond counting", "coupled", _draft(token_ids=[HUGE] * 65), "draft_length"),
    Fault("distributions unasked", "dssd", _draft(distributions=_rows(uniform)), "distributions"),
    Fault(
        "distributions not agreed on",
        "coupled",
        _draft(distributions=_rows(uniform)),
        "distributions",
    ),
    Fault("sparse ones not agreed on", "dssd", _draft(sparse_probs=_sparse(2)), "distributions"),
    Fault("no distributions", "dsd", _draft(distributions=b""), "distributions"),
    Fault(
        "a distribution too short",
        "dsd",
        _draft(distributions=lambda size: _rows(uniform)(size)[:-4]),
        "distributions",
    ),
    Fault(
        "a distribution too long",
        "dsd",
        _draft(distributions=lambda size: _rows(uniform)(size) + bytes(4)),
        "distributions",
    ),
    Fault(
        "a distribution too few", "dsd", _draft(distributions=_rows(uniform, 1)), "distributions"
    ),
    Fault(
        "a distribution too many", "dsd", _draft(distributions=_rows(uniform, 3)), "distributions"
    ),
    *(
        Fault(name, "dsd", _draft(distributions=_rows(of)), "distributions")
        for name, of in {
            "half a distribution": lambda size: uniform(size) / 2,
            "two in one": lambda size: uniform(size) * 2,
            "a distribution of nothing": lambda size: uniform(size) * 0,
            "a distribution of no numbers": lambda size: uniform(size) * math.nan,
            "a negative one": _negative,
        }.items()
    ),
    Fault(
        "a token that its distribution excludes",
        "dsd",
        _draft(token_ids=[1, 1], distributions=_rows(without_token_1)),
        "distributions",
    ),
    Fault("no distributions", "tslt", _draft(sparse_probs=[]), "distributions"),
    Fault("no distribution but bytes", "tslt", _draft(sparse_probs=[b"\xff"]), "sparse_probs"),
    Fault("a distribution too many", "tslt", _draft(sparse_probs=_sparse(3)), "sparse_probs"),
    Fault("a distribution too few", "tslt", _draft(sparse_probs=_sparse(1)), "distributions"),
    Fault(
        "a token that its distribution excludes",
        "tslt",
        _draft(token_ids=[1, 1], sparse_probs=_sparse(2, without_token_1)),
        "distributions",
    ),
    Fault(
        "whole and sparse ones",
        "tslt",
        _draft(sparse_probs=_sparse(2), distributions=_rows(uniform)),
        "distributions",
    ),
    Fault("parents beyond counting", "tslt", _draft(parents=[-1] * 9), "parents"),
    Fault("a tree unasked", "tslt", _draft(parents=[-1, 0]), "parents"),
    Fault("token of 32 bits", "mc-dsd", _tree((1, HUGE), (-1, -1)), "token_ids"),
    Fault("no tree", "mc-dsd", _draft(parents=[]), "parents"),
    Fault("a parent too few", "mc-dsd", _tree((0, 1, 2), (-1, -1)), "parents"),
    Fault("a parent that comes later", "mc-dsd", _tree((0, 1), (1, -1)), "parents"),
    Fault("a circle", "mc-dsd", _tree((0, 1), (1, 0)), "parents"),
    Fault("its own parent", "mc-dsd", _tree((0, 1), (-1, 1)), "parents"),
    Fault("no root", "mc-dsd", _tree((1,), (0,)), "parents"),
    Fault("a root beside the root", "mc-dsd", _tree((1,), (-2,)), "parents"),
    Fault("a far parent", "mc-dsd", _tree((0, 1), (-1, -(2**31))), "parents"),
    Fault("too many candidates", "mc-dsd", _tree((0, 1, 2), (-1, -1, -1)), "parents"),
    Fault("too many layers", "mc-dsd", _tree((0, 1, 2, 0), (-1, 0, 1, 2), 4), "parents"),
    Fault("too many nodes", "mc-dsd", _tree((1,) * 15, (-1,) * 15), "draft_length"),
    Fault("a candidate twice", "mc-dsd", _tree((1, 1), (-1, -1)), "token_ids"),
    Fault("a distribution too many", "mc-dsd", _tree((0, 1), (-1, -1), 2), "distributions"),
    Fault("a distribution too few", "mc-dsd", _tree((0, 1, 2), (-1, -1, 0)), "distributions"),
    Fault("no distributions", "mc-dsd", _tree((0, 1), (-1, -1), 0), "distributions"),
    Fault("recovered unasked", "dssd", _only("recovered", token_id=1), "recovered"),
    Fault(
        "a distribution unasked",
        "dssd",
        _only("need_full_distribution"),
        "need_full_distribution",
    ),
    Fault("states unasked", "coupled", _only("hidden_states", states=bytes(12)), "hidden_states"),
    Fault("no message", "dssd", lambda frame, _: frame.ClearField("drafts"), "message"),
)
"""Of a draft: the honest one has two tokens below 3 or more, with distributions in float32 where
the preset is `dsd`. Nothing of it is taken, and the text goes on as if it had not come."""

STATES = (
    Fault("no states", "split", _fields("hidden_states", states=b""), "hidden_states"),
    Fault("a byte too few", "split", _fields("hidden_states", states=bytes(7)), "hidden_states"),
    Fault(
        "no numbers",
        "split",
        lambda frame, _: _no_numbers(frame.hidden_states),
        "hidden_states",
    ),
    Fault(
        "twice as many",
        "split",
        lambda frame, _: _twice(frame.hidden_states),
        "hidden_states",
    ),
    Fault("another place", "split", _head(base=lambda base: base + 1), "base"),
)
"""Of hidden states."""


def _no_numbers(states: pb.HiddenStates) -> None:
    states.states = NOT_A_NUMBER + states.states[4:]


def _twice(states: pb.HiddenStates) -> None:
    states.states *= 2


RECOVERED = (
    Fault(
        "token V",
        "dssd",
        _fields("recovered", token_id=lambda size: size.vocabulary),
        "token_id",
    ),
    Fault("token of 32 bits", "dssd", _fields("recovered", token_id=HUGE), "token_id"),
    Fault("before the rejection", "dssd", _head(base=lambda base: base - 1), "base"),
    Fault("after the rejection", "dssd", _head(base=lambda base: base + 1), "base"),
    Fault("another session", "dssd", _head(session=lambda session: session + 1), "session"),
    Fault(
        "another text", "dssd", _head(prefix=lambda prefix: prefix ^ 1), "prefix", PrefixMismatch
    ),
)
"""Of a token that the edge has drawn in the place of a rejected draft."""

VOID: dict[str, Change] = {
    "a gap": _head(base=lambda base: base + 1),
    "far beyond the text": _head(base=lambda base: HUGE),
    "before its text": _head(base=lambda base: base - 1),
    "another text": _head(prefix=lambda prefix: prefix ^ 1),
}
"""Changes after which a draft follows no text of the cloud: it came too late, which is no fault,
and nothing happens."""


# What a cloud commits.


@dataclass(frozen=True)
class Lie:
    """A wrong frame of a cloud whose session has this preset, and what the edge raises. It takes
    nothing of the frame, and opens a fresh stream."""

    name: str
    preset: str
    change: Change
    raises: type[Exception] = ProtocolError

    def __str__(self) -> str:
        return f"{self.preset}: {self.name}"

    def wrong(self, honest: pb.VerifyResponse, size: Size) -> pb.VerifyResponse | None:
        """A copy of the honest frame with this fault; None where it has nothing to be wrong in."""
        frame = pb.VerifyResponse.FromString(honest.SerializeToString())
        if frame.WhichOneof("message") != "committed":
            return None
        self.change(frame, size)
        return None if frame == honest else frame


def _committed(**fields: Any) -> Change:
    return _fields("committed", **fields)


def _work(**fields: Any) -> Change:
    return _fields("committed.work", **fields)


def _of_sparse(change: Callable[[pb.SparsePayload, Size], object]) -> Change:
    def of_committed(frame: pb.VerifyResponse, size: Size) -> None:
        if frame.committed.HasField("sparse"):
            change(frame.committed.sparse, size)

    return of_committed


def _of_distribution(change: Callable[[bytes], bytes]) -> Change:
    def of_committed(frame: pb.VerifyResponse, size: Size) -> None:
        if frame.committed.HasField("full_distribution"):
            whole = frame.committed.full_distribution
            whole.probabilities = change(whole.probabilities)

    return of_committed


def _of_last_token(token_id: Callable[[Size], int]) -> Change:
    def of_committed(frame: pb.VerifyResponse, size: Size) -> None:
        if frame.committed.token_ids:
            frame.committed.token_ids[-1] = token_id(size)

    return of_committed


def _another_last_token(frame: pb.VerifyResponse, size: Size) -> None:
    token_ids = frame.committed.token_ids
    token_ids[-1] = (token_ids[-1] + 1) % size.vocabulary


def _at(field: str, index: int, value: float | Callable[[Size], float]) -> Change:
    def change(sparse: pb.SparsePayload, size: Size) -> None:
        getattr(sparse, field)[index] = value(size) if callable(value) else value

    return _of_sparse(change)


def _tail_mass(value: float) -> Change:
    return _of_sparse(lambda sparse, _: setattr(sparse, "tail_mass", value))


def _swap(sparse: pb.SparsePayload, size: Size) -> None:
    sparse.ids[0], sparse.ids[1] = sparse.ids[1], sparse.ids[0]


def _repeat(sparse: pb.SparsePayload, size: Size) -> None:
    sparse.ids[1] = sparse.ids[0]


def _nothing_to_draw_from(frame: pb.VerifyResponse, size: Size) -> None:
    if frame.committed.HasField("sparse"):
        frame.committed.ClearField("draw_from")
        frame.committed.accepted = 0


def _a_token_to_be_drawn(frame: pb.VerifyResponse, size: Size) -> None:
    if frame.committed.HasField("sparse"):
        frame.committed.ClearField("draw_from")
        frame.committed.token_ids.append(1)


def _unasked_distribution(frame: pb.VerifyResponse, size: Size) -> None:
    frame.full_distribution.probabilities = uniform(size).tobytes()


LIES = (
    Lie("unsorted", "dssd", _of_sparse(_swap), InvalidArgument),
    Lie("repeated", "dssd", _of_sparse(_repeat), InvalidArgument),
    Lie("id V", "dssd", _at("ids", -1, lambda size: size.vocabulary), InvalidArgument),
    Lie("id of 32 bits", "dssd", _at("ids", -1, HUGE), InvalidArgument),
    Lie("tail id V", "dssd", _at("tail_ids", 0, lambda size: size.vocabulary), InvalidArgument),
    *(
        Lie(
            f"probability {bad}",
            "dssd",
            _at("probabilities", 0, bad),
            InvalidArgument,
        )
        for bad in (math.nan, -1.0, 2.0)
    ),
    Lie(
        "a probability too few",
        "dssd",
        _of_sparse(lambda sparse, _: sparse.probabilities.pop()),
        InvalidArgument,
    ),
    *(
        Lie(
            f"tail mass {bad}",
            "dssd",
            _tail_mass(bad),
            InvalidArgument,
        )
        for bad in (math.nan, -0.5)
    ),
    Lie("a token that the edge is to draw", "dssd", _a_token_to_be_drawn),
    Lie("nothing to draw from", "dssd", _nothing_to_draw_from),
    Lie("a distribution unasked", "dssd", _unasked_distribution),
    Lie(
        "a distribution of no numbers",
        "dssd-full",
        _of_distribution(lambda raw: NOT_A_NUMBER + raw[4:]),
        InvalidArgument,
    ),
    Lie(
        "a distribution too short",
        "dssd-full",
        _of_distribution(lambda raw: raw[:-4]),
        InvalidArgument,
    ),
    Lie(
        "twice half a distribution",
        "dssd-full",
        _of_distribution(lambda raw: raw[: len(raw) // 2] * 2),
        InvalidArgument,
    ),
    Lie("token V", "coupled", _of_last_token(lambda size: size.vocabulary), InvalidArgument),
    Lie("token of 32 bits", "coupled", _of_last_token(lambda _: HUGE), InvalidArgument),
    Lie(
        "one token more, V",
        "ar",
        lambda frame, size: frame.committed.token_ids.append(size.vocabulary),
        InvalidArgument,
    ),
    Lie("another token than was hashed", "ar", _another_last_token, PrefixMismatch),
    Lie(
        "more tokens than the answer has room for",
        "ar",
        lambda frame, _: frame.committed.token_ids.extend([1] * 64),
    ),
    Lie("no tokens", "ar", _committed(token_ids=[])),
    Lie("accepts more than was sent", "coupled", _committed(accepted=9)),
    Lie("accepts 32 bits", "coupled", _committed(accepted=HUGE)),
    Lie("another text", "coupled", _head(prefix=lambda prefix: prefix ^ 1), PrefixMismatch),
    Lie("another session", "coupled", _head(session=lambda session: session ^ 1)),
    Lie("beyond the text's end", "coupled", _head(base=lambda base: base + 1)),
    Lie("before the text's end", "coupled", _head(base=lambda base: base - 1)),
    Lie("a duration of NaN", "coupled", _work(verify_s=math.nan), InvalidArgument),
    Lie("a duration of -1", "coupled", _work(queue_s=-1.0), InvalidArgument),
    Lie("drafts of the cloud that were not judged", "ar", _committed(cloud_accepted=1)),
    Lie("more drafts of the cloud than it may make", "ar", _work(cloud_drafts=5)),
    Lie("no message", "coupled", lambda frame, _: frame.ClearField("committed"), InvalidArgument),
)
"""Of an answer that commits."""
