"""An unmodified vLLM as the target's server: rows, texts and distributions are the model's own."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest

from tandem.backends.factory import load_model
from tandem.backends.interface import Engine, ForwardRequest
from tandem.backends.model_source import LoadedModel, ModelChoice, ServerChoice
from tandem.backends.remote.engine import RemoteEngine
from tandem.core.probs import SamplingParams, probs_from_logits
from tandem.generation.request import GenerationRequest
from tandem.net.status import Rejected
from tandem.specdec.liveness import LostCloud
from tandem.specdec.messages import GenerationParams
from tandem.testing.scripted import ScriptedTokenizer
from tests.chi_squared import assert_fits
from tests.gateway.http_suite import http_suite
from tests.programs import REPOSITORY
from tests.services.scripted_suite import scripted_suite
from tests.vllm.conftest import DRAFT, NAME, TARGET, free_port, stop, vllm_server

WITHIN = 2e-3
"""Of a log-probability, float32: kernels chosen by size add up in different orders. A wrong key or
position moves it by whole units."""
PROMPTS = ("Tom has 3 apples and", "A list is a list of lists in a list")
TOKENS = 48
PRESETS = ("ar", "coupled", "dsd", "dssd", "stream")
KNOWN = 20
TEXTS = 400
GREEDY = GenerationRequest(
    "",
    params=GenerationParams(
        sampling=SamplingParams(temperature=0.0), max_tokens=TOKENS, ignore_eos=True
    ),
)


def loaded(address: str, model: str = TARGET) -> LoadedModel:
    return load_model(ModelChoice(model, server=ServerChoice(address, silent_s=120.0)))


@pytest.fixture
def engine(url: str) -> Iterator[RemoteEngine]:
    found = loaded(url).engine
    assert isinstance(found, RemoteEngine)
    yield found
    assert found.sessions_open == 0
    found.close()


def rows_of(engine: Engine, token_ids: list[int], rows: int) -> np.ndarray[Any, Any]:
    session = engine.open(len(token_ids))
    try:
        (logits,) = engine.forward([ForwardRequest(session, tuple(token_ids), rows)])
    finally:
        session.close()
    return logits


def own_text(url: str, token_ids: list[int]) -> list[int]:
    """What vLLM itself writes."""
    body = {
        "model": NAME,
        "prompt": token_ids,
        "temperature": 0.0,
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    answer = httpx2.post(f"{url}/v1/completions", json=body, timeout=300.0).json()
    ids: list[int] = answer["choices"][0]["token_ids"]
    return ids


def test_what_the_server_says_fits_the_model(engine: RemoteEngine) -> None:
    here = load_model(ModelChoice(TARGET)).engine
    assert engine.vocabulary_hash == here.vocabulary_hash
    assert engine.eos_token_ids == here.eos_token_ids
    assert (engine.context_length, engine.known_tokens) == (1024, KNOWN)


def compare(found: np.ndarray[Any, Any], logits: np.ndarray[Any, Any]) -> None:
    """The server's log-probabilities of its likeliest tokens are those of the logits."""
    wanted = logits.astype(np.float64)
    wanted -= wanted.max(-1, keepdims=True)
    wanted -= np.log(np.exp(wanted).sum(-1, keepdims=True))
    for row, right in zip(found, wanted, strict=True):
        best = np.argsort(-row, kind="stable")[:KNOWN]
        assert float(np.abs(row[best] - right[best]).max()) <= WITHIN
        assert right[best].min() >= np.sort(right)[-KNOWN] - WITHIN


def test_rows_of_refused_drafts_are_those_of_the_model_computed_here(engine: RemoteEngine) -> None:
    """Rounds of drafts, all of them wrong, over a text whose beginning the server has cached."""
    here = load_model(ModelChoice(TARGET)).engine
    random = np.random.default_rng(1)
    text = random.integers(3, 4000, 90).tolist()
    session = engine.open_for("alice", 600)
    engine.forward([ForwardRequest(session, tuple(text), 1)])
    for _ in range(8):
        drafts = random.integers(3, 4000, int(random.integers(1, 8))).tolist()
        (found,) = engine.forward([ForwardRequest(session, tuple(drafts), len(drafts))])
        compare(found, rows_of(here, text + drafts, len(drafts)))
        kept = int(random.integers(0, len(drafts) + 1))
        session.rollback(len(text) + kept)
        text += drafts[:kept]
    session.close()


async def test_greedy_texts_of_five_presets_are_what_vllm_itself_writes(
    url: str, engine: RemoteEngine
) -> None:
    draft = load_model(ModelChoice(DRAFT, drafts=True)).engine
    tokenizer = ScriptedTokenizer(draft.vocabulary_size)
    own = [own_text(url, tokenizer.encode(text)) for text in PROMPTS]
    async with scripted_suite(target=engine, draft=draft) as suite:
        for preset in PRESETS:
            asked = [replace(GREEDY, prompt=text, preset=preset) for text in PROMPTS]
            answers = await asyncio.gather(*map(suite.client.generate, asked))
            assert [each.token_ids for each in answers] == own, preset


@pytest.mark.parametrize("preset", ["dssd", "coupled"])
async def test_tokens_drawn_over_http_have_the_model_s_distribution(
    engine: RemoteEngine, preset: str
) -> None:
    """At temperature 1 with top_k 20, Qwen's own settings."""
    draft = load_model(ModelChoice(DRAFT, drafts=True)).engine
    here = load_model(ModelChoice(TARGET)).engine
    tokenizer = ScriptedTokenizer(draft.vocabulary_size)
    prompt = tokenizer.encode(PROMPTS[0])
    cut = SamplingParams(temperature=1.0, top_k=KNOWN)
    probs = probs_from_logits(rows_of(here, prompt, 1)[0], cut)
    body: dict[str, Any] = {
        "model": engine.model_name,
        "prompt": PROMPTS[0],
        "max_tokens": 1,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": KNOWN,
        "ignore_eos": True,
        "n": 8,
        "tandem": {"preset": preset},
    }
    counts = np.zeros(len(probs))
    async with http_suite(target=engine, draft=draft) as served:
        for seed in range(0, TEXTS, 8):
            answer = await served.post("/v1/completions", {**body, "seed": seed})
            assert answer.status_code == 200, answer.text
            for choice in answer.json()["choices"]:
                (token_id,) = map(int, re.findall(r"<(\d+)>", choice["text"]))
                counts[token_id] += 1
    assert counts.sum() == TEXTS
    rare = probs * TEXTS < 5
    assert_fits([*counts[~rare], counts[rare].sum()], [*probs[~rare], probs[rare].sum()])


def test_verify_lossless_runs_against_it(url: str) -> None:
    """As a user would run it: all of it in one command."""
    done = subprocess.run(
        [
            *(sys.executable, "-P", "-m", "tandem", "verify-lossless"),
            *("--target", f"{TARGET}@{url}", "--draft", DRAFT),
            *("--preset", "coupled", "--preset", "dssd", "--max-tokens", "24"),
            *("--samples", "200", "--sequence", "2"),
        ],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'gen'}:{REPOSITORY / 'lab'}"},
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def running(url: str) -> float:
    """Requests that vLLM computes now, by its own metrics."""
    lines = httpx2.get(f"{url}/metrics", timeout=30.0).text.splitlines()
    return sum(
        float(line.rsplit(" ", 1)[1])
        for line in lines
        if line.startswith("vllm:num_requests_running{")
    )


async def runs(url: str, count: int) -> None:
    """Wait until vLLM says that it runs COUNT requests: its figures follow a step behind."""
    async with asyncio.timeout(60.0):
        while await asyncio.to_thread(running, url) != count:
            await asyncio.sleep(0.05)


async def test_a_caller_that_leaves_frees_vllm_s_slot(url: str, engine: RemoteEngine) -> None:
    draft = load_model(ModelChoice(DRAFT, drafts=True)).engine
    async with scripted_suite(target=engine, draft=draft) as suite:
        asked = replace(GREEDY, prompt=PROMPTS[0], preset="ar").with_fields(max_tokens=400)
        asked = replace(asked, lost_cloud=LostCloud.WAIT)  # a busy machine is silent for seconds
        stream: Any = suite.client.stream(asked)
        async for answer in stream:
            if answer.token_ids:
                break
        await runs(url, 1)
        await stream.aclose()
        await runs(url, 0)


async def test_a_server_that_is_killed_and_started_again_never_gives_another_text(
    tmp_path: Path,
) -> None:
    """A text that it is killed in ends with a status, what came of it is right; the next is
    whole."""
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    draft = load_model(ModelChoice(DRAFT, drafts=True)).engine
    tokenizer = ScriptedTokenizer(draft.vocabulary_size)
    asked = replace(GREEDY, prompt=PROMPTS[0], preset="coupled").with_fields(max_tokens=TOKENS)
    with vllm_server(DRAFT, port, tmp_path / "first") as process:
        own = await asyncio.to_thread(own_text, address, tokenizer.encode(PROMPTS[0]))
        engine: Any = await asyncio.to_thread(lambda: loaded(address, DRAFT).engine)
        async with scripted_suite(target=engine, draft=draft) as suite:
            begun = list[int]()

            async def killed_meanwhile() -> None:
                async for answer in suite.client.stream(asked):
                    begun[:] = answer.token_ids
                    if begun and process.poll() is None:
                        stop(process)

            with pytest.raises(Rejected) as refused:
                await killed_meanwhile()
            assert refused.value.code.name in ("UNAVAILABLE", "INTERNAL")
            assert begun == own[: len(begun)]
            with vllm_server(DRAFT, port, tmp_path / "second"):
                again = await suite.client.generate(asked)
                assert again.token_ids == own
    await asyncio.to_thread(engine.close)
