"""`bench document-kv`: time to the first draft after several documents, cold and warm.

What a decoder does from the opening of a session to its first draft, in this process, without the
network: tokenise, get the documents' keys and values, one pass over the prompt after each of them.
Cold computes the documents; warm has them in memory, or in files that were written before and are
read through the page cache. Every repetition has a store and a folder of its own.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from lab.bench.harness.plots import grouped_lines
from lab.bench.harness.report import Goal, Report, Row, counted, make_row
from lab.bench.harness.suite import Models
from lab.bench.harness.texts import held_out
from lab.machine import pinned, usable_cores
from tandem.backends.model_description import load_tokenizer
from tandem.backends.torch.engine import HuggingFaceEngine
from tandem.backends.torch.loading import load_engine
from tandem.core.errors import InvalidArgument
from tandem.core.probs import Array, SamplingParams
from tandem.net.process import run_loop
from tandem.runtime.engine_thread import EngineThread
from tandem.telemetry.metrics import Metrics, new_registry
from tandem.text import Tokenizer
from tandem.two_sided.decoding.document_decoder import SEPARATOR, DocumentDecoder, Documents
from tandem.two_sided.decoding.document_files import DocumentFiles
from tandem.two_sided.protocol.decoder_messages import ContextDocument, DecodingDraft, DecodingOpen
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.presets import Draw, LocalProbs, ProbsPayload

TTFT_LIMIT = 0.35
PROBS_LIMIT = 1e-5
TOKENS = 256
COUNT = 4
BUDGET = 2**30
COLUMNS = ("documents", "source", "ttft_s", "ttft_fastest_s", "ttft_share", "probs_difference")
PROBS = LocalProbs(Draw.LIKELIEST, ProbsPayload.FULL, "float32")


def run(report: Report, models: Models) -> None:
    """Report the time to the first draft after documents, cold and warm. The goals are about four
    documents of 256 tokens."""
    counts = (COUNT,) if report.quick else (1, 2, COUNT, 8)
    repetitions = 7 if report.quick else 15
    with pinned(usable_cores()[0]):
        engine, tokenizer = load_engine(models.target), load_tokenizer(models.target)
        texts = documents_of(tokenizer, TOKENS, max(counts), report.seed)
        rows: list[Row] = []
        for count in counted(counts, lambda count: f"{count} documents of {TOKENS} tokens"):
            rows += run_loop(_measure(engine, tokenizer, texts[:count], repetitions))
    for row in rows:
        row["seed"] = report.seed
    report.add(f"First draft after documents of {TOKENS} tokens", COLUMNS, rows)
    of_count = {row["source"]: row for row in rows if row["documents"] == COUNT}
    for source in ("memory", "disk"):
        share = of_count[source]["ttft_share"]
        name = f"TTFT warm ÷ cold, {COUNT} documents, {source}"
        report.goals.append(Goal(name, share, TTFT_LIMIT, "at most"))
    worst = max(row["probs_difference"] for row in rows)
    report.goals.append(
        Goal("first distribution, warm against cold", worst, PROBS_LIMIT, "at most")
    )


async def _measure(
    engine: HuggingFaceEngine,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    repetitions: int,
) -> list[Row]:
    """Return a row for each source of keys and values. Cold, memory and disk take turns, so that
    whatever else the machine does meets them alike; the first turn warms up."""
    times: dict[str, list[float]] = {"computed": [], "memory": [], "disk": []}
    worst = dict.fromkeys(times, 0.0)
    for number in range(repetitions + 1):
        drafts = await _first_drafts(engine, tokenizer, texts)
        for source, (probs, took_s) in drafts.items():
            difference = float(np.abs(probs - drafts["computed"][0]).max())
            worst[source] = max(worst[source], difference)
            if number:
                times[source].append(took_s)
    base_s = median(times["computed"])
    return [
        make_row(
            documents=len(texts),
            source=source,
            ttft_s=median(took),
            ttft_fastest_s=min(took),
            ttft_share=median(took) / base_s,
            probs_difference=worst[source],
            document_tokens=TOKENS,
            kv_bytes=len(texts) * TOKENS * engine.kv_bytes_per_token,
            repetitions=len(took),
        )
        for source, took in times.items()
    ]


async def _first_drafts(
    engine: HuggingFaceEngine, tokenizer: Tokenizer, texts: Sequence[str]
) -> dict[str, tuple[Array, float]]:
    """Return the first distribution, and the seconds it took, with the documents computed, from
    memory, and from disk by another store."""
    thread = EngineThread(engine, "bench-engine")
    drafts: dict[str, tuple[Array, float]] = {}
    vocabulary = engine.vocabulary_hash
    try:
        with tempfile.TemporaryDirectory() as folder:
            for names in (("computed", "memory"), ("disk",)):
                files = DocumentFiles(
                    engine.kv_files,
                    Path(folder),
                    model="bench",
                    vocabulary=vocabulary,
                    budget_bytes=BUDGET,
                )
                series = Metrics(new_registry(), "cloud").engine(engine.model_name)
                decoder = DocumentDecoder(thread, Documents(tokenizer, BUDGET, files), series)
                for name in names:
                    drafts[name] = await _first_draft(decoder, texts)
                await decoder.close()
    finally:
        thread.stop()
    return drafts


async def _first_draft(decoder: DocumentDecoder, texts: Sequence[str]) -> tuple[Array, float]:
    loop = asyncio.get_running_loop()
    first: asyncio.Future[DecodingDraft] = loop.create_future()
    started_s = time.perf_counter()
    session = await decoder.prepare(_opening(texts), caller="")
    # `ahead` is 1: there is but one.
    drafting = session.run(lambda draft, queue_s: first.set_result(draft))
    running = asyncio.create_task(drafting)
    either: list[asyncio.Future[Any]] = [first, running]
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    took_s = time.perf_counter() - started_s
    if running.done():
        running.result()  # it failed
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    probs = first.result().probs
    assert isinstance(probs, np.ndarray), "whole distributions were asked for"
    return probs, took_s


def _opening(texts: Sequence[str]) -> DecodingOpen:
    return DecodingOpen(
        1, 0, 0,
        prompt="Question: what do these texts have in common?\nAnswer:",
        committed_ids=(),
        documents=tuple(ContextDocument(text, 0.1 * number) for number, text in enumerate(texts)),
        sampling=SamplingParams(),
        seed=1,
        side=Side.CLOUD,
        probs=PROBS,
        ahead=1,
        max_tokens=64,
    )  # fmt: skip


def documents_of(tokenizer: Tokenizer, tokens: int, count: int, seed: int) -> list[str]:
    """Return `count` texts of exactly `tokens` tokens as a decoder reads them, from held-out text,
    in an order by seed. Raises InvalidArgument("target") for a tokenizer that gives too few."""
    documents = held_out()
    order = np.random.default_rng(seed).permutation(len(documents))
    words = " ".join(documents[at]["text"] for at in order).split(" ")
    texts: list[str] = []
    start = 0
    while start < len(words) and len(texts) < count:
        most = min(start + tokens, len(words))  # a word is a token at least

        def length(end: int, start: int = start) -> int:
            return len(tokenizer.encode(_text(words[start:end]) + SEPARATOR))

        end = bisect_left(range(most + 1), tokens, start + 1, most, key=length)
        if length(end) == tokens:  # else the last word took it past
            texts.append(_text(words[start:end]))
        start = end
    if len(texts) < count:
        raise InvalidArgument("target", f"too little held-out text for {count} of {tokens} tokens")
    return texts


def _text(words: Sequence[str]) -> str:
    """Return words as one text, in the form that a decoder takes."""
    return " ".join(words).rstrip()


def draw(report: Report, folder: Path) -> None:
    rows: list[dict[str, Any]] = [row | {"preset": row["source"]} for row in report.rows]
    grouped_lines(
        folder / "document_kv.png",
        rows,
        x="documents",
        y="ttft_s",
        title=f"Time to the first draft after documents of {TOKENS} tokens",
    )
