"""A verifier on vLLM among real services: its texts are those that vLLM itself generates, and a
worker that dies loses the verifier, not the answers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tandem.backends.factory import load_model
from tandem.backends.interface import Engine, ForwardRequest, Logits, never
from tandem.backends.model_source import ModelChoice, Parallelism
from tandem.core.probs import SamplingParams
from tandem.generation.request import GenerationRequest
from tandem.services.verifier.servicer import VerifierLimits, VerifierServicer
from tandem.specdec.judge import RemoteReading
from tandem.specdec.messages import GenerationParams
from tandem.telemetry.metrics import Metrics, new_registry
from tandem.testing.scripted import ScriptedTokenizer
from tests.programs import REPOSITORY
from tests.services.health import health_of
from tests.services.scripted_suite import Suite, scripted_suite, started
from tests.vllm.conftest import DRAFT, KV_BYTES, TARGET

SMOLLM2 = REPOSITORY / "models/real/smollm2"
PROMPTS = ["Tom has 3 apples and", "A list is a list of lists in a list"]
TOKENS = 48
DEADLINE_S = 300.0
GREEDY = GenerationRequest(
    "",
    params=GenerationParams(
        sampling=SamplingParams(temperature=0.0), max_tokens=TOKENS, ignore_eos=True
    ),
)


@pytest.mark.parametrize(
    ("target", "draft", "draft_engine"),
    [(TARGET, DRAFT, "torch"), (str(SMOLLM2), str(SMOLLM2), "lookup")],
    ids=["demo pair", "SmolLM2"],
)
async def test_texts_are_what_vllm_itself_generates(
    target: str, draft: str, draft_engine: str, tmp_path: Path
) -> None:
    if not Path(target).exists():
        pytest.skip(f"{target} is made by: make real-pair")
    engine: Any = load_model(
        ModelChoice(target, engine="vllm", kv_budget_bytes=2**27 + KV_BYTES)
    ).engine
    proposing = load_model(ModelChoice(draft, engine=draft_engine, drafts=True)).engine
    tokenizer = ScriptedTokenizer(proposing.vocabulary_size)
    answered, loaded = watched(engine), engine.prefix_totals
    own = vllm_s_own(target, [tokenizer.encode(text) for text in PROMPTS], tmp_path)
    try:
        async with scripted_suite(target=engine, draft=proposing) as suite:
            for preset in ("ar", "coupled", "dsd", "dssd", "stream"):
                asked = [replace(GREEDY, prompt=text, preset=preset) for text in PROMPTS]
                answers = await asyncio.gather(*map(suite.client.generate, asked))
                assert [each.token_ids for each in answers] == own, preset
            labels = {"model_name": engine.model_name, "side": "cloud"}
            told = suite.cloud_metrics.registry.get_sample_value
            found = told("tandem_prefix_hit_tokens_total", labels)
            assert found == engine.prefix_totals.hit_tokens - loaded.hit_tokens
            asked_for = told("tandem_prefix_queried_tokens_total", labels)
            assert asked_for == engine.prefix_totals.queried_tokens - loaded.queried_tokens > 0
        # From the worker came ids alone: at temperature 0 no rule needs a distribution.
        assert len(answered) > TOKENS
        assert all(isinstance(each, RemoteReading) for each in answered)
        assert {type(each.next) for each in answered} <= {int, type(None)}
    finally:
        engine.shut_down()


def watched(engine: Any) -> list[Any]:
    """What comes back from the workers, for each request."""
    answered, run = list[Any](), engine._run

    def keeping(*arguments: Any) -> Any:
        answers = run(*arguments)
        answered.extend(answers)
        return answers

    engine._run = keeping
    return answered


def vllm_s_own(model: str, prompts: list[list[int]], folder: Path) -> list[list[int]]:
    asked, answered = folder / "asked.json", folder / "answered.json"
    asked.write_text(json.dumps({"model": model, "prompts": prompts, "tokens": TOKENS}))
    program = Path(__file__).with_name("own_greedy.py")
    ended = subprocess.run(
        [sys.executable, program, asked, answered],
        env={**os.environ, "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1"},
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    texts: list[list[int]] = json.loads(answered.read_text())
    return texts


@asynccontextmanager
async def two_clouds(first: Engine, second: Engine, draft: Engine) -> AsyncIterator[Suite]:
    """A drafter that is told of two verifiers."""
    limits, metrics = VerifierLimits(), Metrics(new_registry(), "cloud")
    other = await started(VerifierServicer(second, limits, metrics))

    @asynccontextmanager
    async def both(address: str) -> AsyncIterator[str]:
        yield f"{address},{other.target}"

    try:
        async with scripted_suite(target=first, draft=draft, path=both) as suite:
            async with asyncio.timeout(DEADLINE_S):
                while not all(each.serving for each in (await suite.client.describe()).clouds):
                    await asyncio.sleep(0.02)
            yield suite
    finally:
        await other.drain(0.0)


async def test_a_dead_worker_loses_the_verifier_and_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sessions are resumed at the other verifier, which computes the same model with PyTorch."""
    parallel = Parallelism(tensor=2, executor="mp")
    choice = ModelChoice(DRAFT, engine="vllm", parallel=parallel, kv_budget_bytes=KV_BYTES)
    engine: Any = load_model(choice).engine
    workers = [each.proc.pid for each in engine._core.model_executor.workers]
    assert len(workers) == 2
    draft = load_model(ModelChoice(DRAFT, drafts=True)).engine
    second: Any = load_model(ModelChoice(DRAFT)).engine
    forward = engine.forward
    passes = 0

    def dying(
        batch: Sequence[ForwardRequest], cancelled: Callable[[], bool] = never
    ) -> list[Logits]:
        nonlocal passes
        passes += 1
        if passes == 10:
            os.kill(workers[1], signal.SIGKILL)
        answers: list[Logits] = forward(batch, cancelled)
        return answers

    monkeypatch.setattr(engine, "forward", dying)
    asked = [
        GREEDY.with_fields(prompt=text, preset="coupled", max_tokens=100)
        for text in (*PROMPTS, "What is", "Once upon a time")
    ]
    try:
        async with two_clouds(engine, second, draft) as suite:
            answers = await asyncio.gather(*map(suite.client.generate, asked))
            assert passes >= 10, "the verifier on vLLM lost its worker"
            assert not any(each.unverified for each in answers)
            await becomes(suite.verifier.target, "NOT_SERVING")
            working = suite.cloud_metrics.registry.get_sample_value(
                "tandem_engine_working", {"model_name": engine.model_name, "side": "cloud"}
            )
            assert working == 0.0
            alone = await asyncio.gather(*map(suite.client.generate, asked))
            assert [each.token_ids for each in answers] == [each.token_ids for each in alone]
            async with asyncio.timeout(DEADLINE_S):
                while engine.sessions_open:  # closed behind what the engine's thread does
                    await asyncio.sleep(0.01)
    finally:
        engine.shut_down()


async def becomes(target: str, wanted: str) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while await health_of(target) != wanted:
            await asyncio.sleep(0.05)
