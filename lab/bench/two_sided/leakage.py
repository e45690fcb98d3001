"""`bench leakage`: how much of private notes can be rebuilt from what answers send to the cloud.

A hundred questions about 25 invented notes of the device; the cloud has public documents. Real
state machines and codecs in virtual time, distributions of the pair (draft at the device): each
frame that the device sends is encoded, and read again as the cloud reads it. Whoever reads it
knows, of each place in an answer, some tokens that may stand there: the token of the answer, the
device's drafts as well, the likeliest token of its distribution as well, or all that it lists.
Sought are the longest piece of a note that some answer could spell by them, and secrets (numbers,
names, places) spelled in full. Beside it, the same of as many notes that nobody used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.bench.harness.models import Models
from lab.bench.harness.report import Report, Row, counted, make_row
from lab.bench.harness.texts import PEPS, read_peps
from lab.bench.two_sided.dragon_corpus import DOCUMENT_TOKENS, RankedDocument, text_of
from lab.bench.two_sided.dragon_probs import BEGIN, after_documents
from lab.bench.two_sided.private_notes import Note, notes
from tandem.backends.model_description import load_tokenizer
from tandem.backends.torch.loading import load_engine
from tandem.core.probs import SamplingParams
from tandem.core.randomness import SeededRandom
from tandem.core.tokens import PrefixedTokens
from tandem.netem.link_model import LinkPair, link_from
from tandem.specdec.cloud_checks import CloudModel
from tandem.specdec.events import EdgeRequest
from tandem.specdec.messages import GenerationParams, Open
from tandem.specdec.presets import PRESETS
from tandem.testing.listed_tokens import likeliest_first
from tandem.testing.simulation.side_distributions import SideDistributions
from tandem.testing.simulation.two_sided_answer import SimulatedSide, simulate_two_sided
from tandem.text import Tokenizer
from tandem.two_sided.protocol.local_drafting import local_drafting
from tandem.two_sided.protocol.messages import (
    AggregationRequest,
    CollaborationOpen,
    PeerMessage,
    SideDraftFrame,
    TargetFrame,
)
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.placement import PlacementPolicy, placement_policy_for
from tandem.two_sided.protocol.presets import AGGREGATION_PRESETS, AggregationPreset, Placement
from tandem.two_sided.protocol.profiler import SideProfiler
from tandem.two_sided.serving.peer_codec import CloudSideCodec, DeviceCodec
from tandem.wire.verifier_codec import CloudCodec, EdgeCodec
from tandem_api.aggregator.v1 import aggregator_pb2
from tandem_api.verifier.v1 import verifier_pb2

NOTES = 25
QUICK_NOTES = 5
TOKENS = 16
RTT_S = 0.05
DEVICE_STEP_S = 0.024
CLOUD_STEP_S = 0.072
DEVICE_LOG_MASS = 3.0
"""0.95 of the mixture is the device's, as where its note has all words of the question and the
cloud's document none."""
UNUSED_SEED = 1_000_003
ANSWER = "answer"
DRAFTS = "+ drafts"
LIKELIEST = "+ likeliest"
LISTED = "+ all listed"
READ = (ANSWER, DRAFTS, LIKELIEST, LISTED)
PROMPT = "prompt"
FIGURES = ("piece_tokens", "piece_tokens_max", "secrets")
COLUMNS = ("preset", "variant", "read", *(n for f in FIGURES for n in (f, f"{f}_unused")))

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Method:
    """A preset as it is asked for, under the name of what is changed of it."""

    preset: AggregationPreset
    variant: str = ""
    temperature: float = 1.0


@dataclass(slots=True)
class Crossed:
    """What the cloud knows of one answer: tokens by position, in the text with its prompt."""

    answer: dict[int, set[int]] = field(default_factory=dict)
    drafts: dict[int, set[int]] = field(default_factory=dict)
    likeliest: dict[int, set[int]] = field(default_factory=dict)
    listed: dict[int, set[int]] = field(default_factory=dict)

    def rows(self) -> dict[str, dict[int, set[int]]]:
        """Return the tokens that may stand at each position, for each way to read what was sent."""
        drafts = _joined(self.answer, self.drafts)
        likeliest = _joined(drafts, self.likeliest)
        listed = _joined(likeliest, self.listed)
        return {ANSWER: self.answer, DRAFTS: drafts, LIKELIEST: likeliest, LISTED: listed}


class SentFrames:
    """Takes the frames of one answer in place of a link's arithmetic of sizes, and what the device
    sends as the cloud's end reads it."""

    def __init__(self, vocabulary_size: int, method: Method) -> None:
        probs = local_drafting(method.preset, SamplingParams(method.temperature)).probs
        self.vocabulary_size = vocabulary_size
        self._device, self._cloud = DeviceCodec(vocabulary_size, probs), CloudSideCodec()
        self.crossed = Crossed()
        self.bytes = 0
        self._last: PeerMessage | None = None

    def size_of(self, message: PeerMessage) -> int:
        """Keep the message for the link that sends it, and return its size in bytes, always the
        same. This is called before a link is asked when the message arrives, and which link that is
        says who sent it."""
        self._last = message
        return 64

    def sent_by_device(self) -> None:
        assert self._last is not None
        raw = self._device.encode(self._last).SerializeToString()  # type: ignore[arg-type]
        self.bytes += len(raw)
        message = self._cloud.decode(aggregator_pb2.CollaborateRequest.FromString(raw))
        if isinstance(message, CollaborationOpen):
            self._cloud.opened(self.vocabulary_size)
        elif isinstance(message, SideDraftFrame):
            self.crossed.drafts.setdefault(message.base, set()).add(message.token_id)
            if listed := likeliest_first(message.probs):
                self.crossed.likeliest.setdefault(message.base, set()).add(listed[0])
                self.crossed.listed.setdefault(message.base, set()).update(listed)
        elif isinstance(message, TargetFrame):
            for place, token in enumerate(message.token_ids, message.base):
                self.crossed.drafts.setdefault(place, set()).add(token)


class _RecordedLink:
    """A link's way up, which tells what goes through it."""

    def __init__(self, way: Any, frames: SentFrames) -> None:
        self._way = way
        self._frames = frames

    def send(self, size_bytes: int, now: float) -> float:
        self._frames.sent_by_device()
        return float(self._way.send(size_bytes, now))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._way, name)


def run(report: Report, models: Models) -> None:
    """Report every method over the same questions."""
    tokenizer = load_tokenizer(models.target)
    private = notes(QUICK_NOTES if report.quick else NOTES, report.seed)
    unused = notes(len(private), report.seed + UNUSED_SEED)
    searched = Searched(tokenizer, private), Searched(tokenizer, unused)
    device, cloud = load_engine(models.draft), load_engine(models.target)
    public = public_documents(tokenizer, report.seed)
    answers: list[list[SentFrames]] = [[] for _ in methods()]
    for number, (note, question) in enumerate(
        counted(asked(private), lambda numbered: numbered[1])
    ):
        documents = tuple(tokenizer.encode(note.text)), public[number % len(public)]
        sides = [
            after_documents(engine, [RankedDocument(ids, 0.0)], SamplingParams())
            for engine, ids in zip((device, cloud), documents, strict=True)
        ]  # of all methods, which often ask for the same texts
        prompt_ids = tuple(tokenizer.encode(question))
        for method, sent in zip(methods(), answers, strict=True):
            sent.append(answer(method, prompt_ids, question, sides, report.seed + number))
        for side in sides:
            side.close()
    rows: list[Row] = []
    for method, sent in zip(methods(), answers, strict=True):
        rows += _rows(method, sent, searched, report.seed)
    nothing: Row = dict.fromkeys(FIGURES, 0)
    rows.append(_row("crcg-device", "", "nothing is sent", report.seed, nothing, nothing))
    rows.append(_one_sided(tokenizer, private, searched, report.seed))
    report.add(
        f"{len(asked(private))} answers of {TOKENS} tokens about {len(private)} private notes of"
        f" {fmean(map(len, searched[0].tokens)):.0f} tokens, and the same of notes never used",
        COLUMNS,
        rows,
    )
    report.notes += [
        "read: what is taken of the wire, each row with all of the one above. piece: longest run of"
        " a note's tokens that one answer could spell, mean over the notes and largest."
        " secrets: share of numbers, names and places spelled in full.",
        "all listed: any of up to 64 tokens at a place. A piece found in them is what somebody can"
        " put together who knows the note, and he finds pieces of notes never used there too: take"
        " the figure of the unused notes off.",
    ]


def methods() -> list[Method]:
    """Return the presets of interest, and variants that may reveal less."""
    presets = AGGREGATION_PRESETS
    dragon = presets["dragon"]
    coupled = presets["dragon-coupled"]
    few = replace(dragon.probs, head=8)
    return [
        Method(dragon),
        Method(replace(dragon, placement=Placement.CLOUD), "placement=cloud"),
        Method(replace(dragon, placement=Placement.CLOUD, probs=few), "placement=cloud, head=8"),
        Method(presets["dragon-device"]),
        Method(coupled),
        Method(replace(coupled, ahead=1), "ahead=1"),
        Method(coupled, "temperature 0", 0.0),
        Method(replace(coupled, top=1), "temperature 0, top=1", 0.0),
    ]


def asked(private: Sequence[Note]) -> list[tuple[Note, str]]:
    """Return every question with the note that answers it."""
    return [(note, fact.question) for note in private for fact in note.facts]


def public_documents(tokenizer: Tokenizer, seed: int) -> list[tuple[int, ...]]:
    """Return the cloud's documents: pieces of PEPs, in an order by seed."""
    pieces: list[tuple[int, ...]] = []
    for document in read_peps(PEPS):
        ids = tokenizer.encode(document.text)[:DOCUMENT_TOKENS]
        pieces += [tuple(ids)] if len(ids) == DOCUMENT_TOKENS else []
    order = np.random.default_rng(seed).permutation(len(pieces))
    return [pieces[number] for number in order]


def answer(
    method: Method,
    prompt_ids: tuple[int, ...],
    question: str,
    sides: Sequence[SideDistributions],
    seed: int,
) -> SentFrames:
    """Answer a question with the device's side and the cloud's, and return what the device sent for
    it."""
    size = len(sides[0](prompt_ids))
    frames = SentFrames(size, method)
    link = link_from(RTT_S, seed=seed)
    request = AggregationRequest(
        session=seed % 2**32,
        prompt_ids=prompt_ids,
        vocabulary_hash="bench",
        vocabulary_size=size,
        sampling=SamplingParams(method.temperature),
        seed=seed,
        max_tokens=TOKENS,
        preset=method.preset,
        ignore_eos=True,
        query=question,
        documents=1,
    )
    rng = SeededRandom(seed)

    def placement_policy(side: Side) -> tuple[PlacementPolicy, SideProfiler]:
        profiler = SideProfiler()
        placement = method.preset.placement
        return placement_policy_for(placement, rng, measured=profiler.sides), profiler

    up: Any = _RecordedLink(link.up, frames)
    done = simulate_two_sided(
        request,
        SimulatedSide(sides[0], DEVICE_LOG_MASS, DEVICE_STEP_S),
        SimulatedSide(sides[1], 0.0, CLOUD_STEP_S),
        LinkPair(up, link.down),
        size_of=frames.size_of,
        placement_policy_for=placement_policy,
        rng=rng,
    )
    for place, token in enumerate(done.token_ids, len(prompt_ids)):
        frames.crossed.answer[place] = {token}
    return frames


class Searched:
    """Notes as tokens, and where their secrets are."""

    def __init__(self, tokenizer: Tokenizer, private: Sequence[Note]) -> None:
        self.tokens = [tuple(tokenizer.encode(note.text)) for note in private]
        self._secrets = [
            [
                _place_of(tokenizer, ids, note.text, fact.sentence, fact.secret)
                for fact in note.facts
            ]
            for note, ids in zip(private, self.tokens, strict=True)
        ]

    def figures(self, rows: Iterable[Mapping[int, set[int]]], vocabulary_size: int) -> Row:
        """Return how much of the notes is spelled by the positions of all answers together."""
        table = positions_table(rows, vocabulary_size)
        pieces = []
        secrets = []
        for ids, places in zip(self.tokens, self._secrets, strict=True):
            runs = longest_runs(table, ids)
            pieces.append(int(runs.max()))
            secrets += [bool(runs[last] > last - first) for first, last in places]
        return {
            "piece_tokens": fmean(pieces),
            "piece_tokens_max": max(pieces),
            "secrets": fmean(secrets),
        }


def positions_table(rows: Iterable[Mapping[int, set[int]]], vocabulary_size: int) -> Mask:
    """Return a mask [positions, V] of the tokens that may stand at each position. No token may
    between two answers, and where an answer has a gap."""
    listed: list[set[int]] = [set()]
    for row in rows:
        if row:
            listed += [row.get(place, set()) for place in range(min(row), max(row) + 1)]
            listed.append(set())
    table = np.zeros((len(listed), vocabulary_size), dtype=np.bool_)
    for place, tokens in enumerate(listed):
        table[place, sorted(tokens)] = True
    return table


def longest_runs(table: Mask, ids: Sequence[int]) -> NDArray[np.int64]:
    """Return, for each of `ids`, the length of the longest run of them that ends there and may
    stand at consecutive positions of the table."""
    run = np.zeros(len(table), dtype=np.int64)
    longest = np.zeros(len(ids), dtype=np.int64)
    for number, token in enumerate(ids):
        before = np.concatenate(([0], run[:-1]))
        run = np.where(table[:, token], before + 1, 0)
        longest[number] = run.max()
    return longest


def _place_of(
    tokenizer: Tokenizer, ids: Sequence[int], text: str, sentence: str, secret: str
) -> tuple[int, int]:
    """Return the first and the last of the tokens that spell the secret; the first may begin with
    the blank before it."""
    end = text.index(sentence) + len(sentence) - 1
    start = end - len(secret)
    ends = [len(text_of(tokenizer, ids[: count + 1])) for count in range(len(ids))]
    first = next(number for number, at in enumerate(ends) if at > start)
    last = next(number for number, at in enumerate(ends) if at >= end)
    return first, last


def _joined(one: Mapping[int, set[int]], other: Mapping[int, set[int]]) -> dict[int, set[int]]:
    places = one.keys() | other.keys()
    return {place: one.get(place, set()) | other.get(place, set()) for place in sorted(places)}


def _rows(
    method: Method, sent: Sequence[SentFrames], searched: tuple[Searched, Searched], seed: int
) -> list[Row]:
    read = [one.crossed.rows() for one in sent]
    size = max(
        *(one.vocabulary_size for one in sent),
        *(1 + max(ids) for attack in searched for ids in attack.tokens),
    )
    rows = [
        _row(
            method.preset.name,
            method.variant,
            what,
            seed,
            *(attack.figures([one[what] for one in read], size) for attack in searched),
        )
        for what in READ
    ]
    for row in rows:
        row["bytes_per_answer"] = fmean(one.bytes for one in sent)
    return rows


def _one_sided(
    tokenizer: Tokenizer, private: Sequence[Note], searched: tuple[Searched, Searched], seed: int
) -> Row:
    """Return the row of notes that stand in the prompt: the prompt goes to the verifier, as its
    frame shows."""
    rows: list[dict[int, set[int]]] = []
    size = 1 + max(max(ids) for attack in searched for ids in attack.tokens)
    size = max(size, *BEGIN, *(1 + max(tokenizer.encode(q)) for _, q in asked(private)))
    model = CloudModel("bench", "bench", size, 1 << 20, frozenset())
    preset = PRESETS["dssd"]
    for number, (note, question) in enumerate(asked(private)):
        request = EdgeRequest(
            session=number,
            prompt_ids=(*tokenizer.encode(note.text), *tokenizer.encode(question)),
            vocabulary_hash="bench",
            vocabulary_size=size,
            params=GenerationParams(seed=seed, max_tokens=TOKENS, ignore_eos=True),
            preset=preset,
        )
        raw = (
            EdgeCodec(size, preset.verify_settings)
            .encode(request.opening(PrefixedTokens(request.prompt_ids)))
            .SerializeToString()
        )
        opening = CloudCodec(model).decode(verifier_pb2.VerifyRequest.FromString(raw))
        assert isinstance(opening, Open)
        rows.append({place: {token} for place, token in enumerate(opening.prompt_ids)})
    figures = [attack.figures(rows, size) for attack in searched]
    return _row("dssd, coupled, …", "note in the prompt", PROMPT, seed, *figures)


def _row(preset: str, variant: str, read: str, seed: int, used: Row, unused: Row) -> Row:
    figures = {
        f"{name}{end}": value
        for end, of in (("", used), ("_unused", unused))
        for name, value in of.items()
    }
    return make_row(preset=preset, seed=seed, variant=variant, read=read, **figures)
