"""`bench steps`: how long a pass of each model takes on a device, by tokens of the pass and dtype.

The same weights by this engine and, one token at a time, by Hugging Face's own code with its
`DynamicCache`. A pass is timed from its token ids to the logits in the computer's memory, so that
on a GPU nothing is left running when the clock stops. llama.cpp computes a GGUF file, as usual
and batch-invariant.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import torch
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel

from lab.bench.harness.models import Models
from lab.bench.harness.report import Report, Row, make_row, progress
from tandem.backends.factory import load_model
from tandem.backends.interface import Engine, ForwardRequest, Session
from tandem.backends.model_source import ModelChoice, is_gguf
from tandem.backends.torch.loading import load_engine

DTYPES = ("float32", "bfloat16", "int8", "int4")
BY_HUGGING_FACE = ("float32", "bfloat16")
WARM_UP = 3
COLUMNS = ("model", "engine", "dtype", "tokens", "pass_median_s", "pass_fastest_s")


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured: passes of so many `tokens` after `context` others, each `passes` times."""

    device: str
    seed: int
    tokens: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    context: int = 512
    passes: int = 50


def quick_plan(device: str, seed: int) -> Plan:
    return Plan(device, seed, tokens=(1, 4, 16), context=64, passes=5)


def run(report: Report, models: Models, device: str | None = None) -> None:
    """Fill the report with a table for each model. Raises InvalidArgument("device") for a device
    that is not there."""
    device = device or models.device
    plan = (quick_plan if report.quick else Plan)(device, report.seed)
    for side in ("target", "draft"):
        model = getattr(models, side)
        title = f"{side}: {Path(model).name} on {device}, {plan.context} tokens before the pass"
        report.add(title, COLUMNS, list(_rows(model, side, plan)))


def _rows(model: str, side: str, plan: Plan) -> Iterator[Row]:
    if is_gguf(model):
        for invariant in (False, True):
            how = "batch-invariant" if invariant else "as usual"
            progress(f"{side} {how}")
            engine = load_model(ModelChoice(model, batch_invariant=invariant)).engine
            for tokens, durations in _own_passes(engine, plan):
                yield _row(model, "llamacpp", how, tokens, durations, plan)
        return
    for dtype in DTYPES:
        progress(f"{side} in {dtype}")
        engine = load_engine(model, device=plan.device, dtype=dtype, drafts=side == "draft")
        for tokens, durations in _own_passes(engine, plan):
            yield _row(model, "tandem", dtype, tokens, durations, plan)
        if dtype in BY_HUGGING_FACE:
            durations = _reference_passes(model, dtype, plan)
            yield _row(model, "transformers", dtype, 1, durations, plan)


def _row(
    model: str, engine: str, dtype: str, tokens: int, durations: Sequence[float], plan: Plan
) -> Row:
    return make_row(
        seed=plan.seed,
        model=Path(model).name,
        engine=engine,
        device=plan.device,
        dtype=dtype,
        tokens=tokens,
        context=plan.context,
        pass_median_s=median(durations),
        pass_fastest_s=min(durations),
    )


def _own_passes(engine: Engine, plan: Plan) -> Iterator[tuple[int, list[float]]]:
    """Yield each number of tokens with the seconds of passes over that many tokens, by this
    engine."""
    ids = tuple(random_ids(plan.context, engine.vocabulary_size, plan.seed))
    for tokens in plan.tokens:
        session = engine.open(plan.context + tokens)
        engine.forward([ForwardRequest(session, ids, 1)])

        yield tokens, _timed(partial(_own_pass, engine, session, ids[:tokens]), plan.passes)
        session.close()


def _own_pass(engine: Engine, session: Session, token_ids: tuple[int, ...]) -> None:
    """Run one pass, and roll the session back to where it was."""
    length = session.length
    engine.forward([ForwardRequest(session, token_ids, len(token_ids))])
    session.rollback(length)


def _reference_passes(model: str, dtype: str, plan: Plan) -> list[float]:
    """Return the seconds of passes over one token by transformers' code."""
    reference: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        model, dtype=getattr(torch, dtype)
    ).eval()
    reference.to(plan.device)  # type: ignore[arg-type]  # its stubs want a torch.device
    ids = torch.tensor([random_ids(plan.context, reference.config.vocab_size, plan.seed)])
    cache = DynamicCache(config=reference.config)

    def step() -> None:
        logits = reference(
            input_ids=ids[:, :1].to(plan.device), past_key_values=cache, use_cache=True
        ).logits
        logits[0, -1].float().cpu().numpy()

    with torch.inference_mode():
        reference(input_ids=ids.to(plan.device), past_key_values=cache, use_cache=True)
        return _timed(step, plan.passes)


def _timed(step: Callable[[], None], passes: int) -> list[float]:
    durations = []
    for number in range(-WARM_UP, passes):
        started_s = time.perf_counter()
        step()
        if number >= 0:
            durations.append(time.perf_counter() - started_s)
    return durations


def random_ids(count: int, vocabulary_size: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    ids: list[int] = torch.randint(vocabulary_size, (count,), generator=generator).tolist()
    return ids
