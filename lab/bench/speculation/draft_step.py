"""One decoding step of the draft model: this engine against Hugging Face's own, in one run.

Both run the same weights in float32 on one thread and one core, in short bursts that take turns, so
that whatever else the machine does meets both alike; what counts is this process's processor time.
A step is a forward pass over one token with about `context` tokens before it, up to the logits in
memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel

from lab.bench.harness.report import Row, make_row
from lab.machine import pinned, usable_cores
from tandem.backends.interface import Engine, ForwardRequest
from tandem.backends.torch.loading import load_engine

Step = Callable[[int], object]

BURST = 8
WARM_UP_BURSTS = 2


def measure_draft_step(model: str, bursts: int, context: int, seed: int) -> list[Row]:
    """Return two rows with the median seconds of a step, ours first; ours has the ratio of both."""
    with pinned(usable_cores()[0]):
        return _measure(model, bursts, context, seed)


def _measure(model: str, bursts: int, context: int, seed: int) -> list[Row]:
    torch.set_num_threads(1)
    engine = load_engine(model, drafts=True)
    reference: PreTrainedModel
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    token_ids = random_ids(context, engine.vocabulary_size, seed)
    ours: list[float] = []
    theirs: list[float] = []
    with torch.inference_mode():
        for burst in range(-WARM_UP_BURSTS, bursts):
            of_ours = engine_steps(engine, token_ids)
            of_theirs = steps_of(_hugging_face_step(reference, token_ids), token_ids)
            if burst >= 0:
                ours += of_ours
                theirs += of_theirs
    ratio = median(ours) / median(theirs)
    return [
        _row("tandem engine", ours, context, seed) | {"step_ratio": ratio},
        _row("DynamicCache", theirs, context, seed),
    ]


def engine_steps(engine: Engine, token_ids: list[int]) -> list[float]:
    """Return the processor seconds of each step of a burst after these tokens."""
    return steps_of(_engine_step(engine, token_ids), token_ids)


def _row(who: str, durations: list[float], context: int, seed: int) -> Row:
    return make_row(
        part="draft step",
        implementation=who,
        seed=seed,
        step_median_s=median(durations),
        step_fastest_s=min(durations),
        steps=len(durations),
        context=context,
    )


def steps_of(step: Step, token_ids: list[int]) -> list[float]:
    """Return the processor seconds of this process for each of BURST steps, over the first
    tokens."""
    durations = []
    for token_id in token_ids[:BURST]:
        started_s = time.process_time()
        step(token_id)
        durations.append(time.process_time() - started_s)
    return durations


def _engine_step(engine: Engine, token_ids: list[int]) -> Step:
    """Return a function that decodes a token on a session filled with the context. The session is
    closed when it is full."""
    session = engine.open(len(token_ids) + BURST)
    engine.forward([ForwardRequest(session, tuple(token_ids), 1)])

    def step(token_id: int) -> object:
        logits = engine.forward([ForwardRequest(session, (token_id,), 1)])
        if session.length == session.capacity:
            session.close()
        return logits

    return step


def _hugging_face_step(model: PreTrainedModel, token_ids: list[int]) -> Step:
    cache = DynamicCache(config=model.config)
    model(input_ids=torch.tensor([token_ids]), past_key_values=cache, use_cache=True)

    def step(token_id: int) -> object:
        ids = torch.tensor([[token_id]])
        return model(input_ids=ids, past_key_values=cache, use_cache=True).logits[0, -1].numpy()

    return step


def random_ids(count: int, vocabulary_size: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    ids: list[int] = torch.randint(vocabulary_size, (count,), generator=generator).tolist()
    return ids
