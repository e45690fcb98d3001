"""What early exits add to the verifier's pass, on one core.

A pass over one draft chunk, with and without exits, in turn, so that what else the machine does
falls on both.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from lab.bench.harness.report import Row, make_row
from lab.training.exit_training import spread
from tandem.backends.interface import Engine, ForwardRequest, Logits, Session, ignore_exit
from tandem.backends.torch.engine import HuggingFaceEngine
from tandem.backends.torch.exit_adapters import ExitsDescription, new_adapters
from tandem.backends.torch.loading import load_engine
from tandem.core.probs import SamplingParams, confidence, probs_from_logits

EXITS = 4
DRAFTED = 5
"""Tokens of the pass: a chunk of 4 drafts after the last token."""
CONTEXT = 128
WARM_UP = 3
# The head has 1.95 % of all parameters, as in a 7B Llama; an adapter of rank h/16 far fewer.
LIKE_7B = LlamaConfig(
    vocab_size=3000,
    hidden_size=1024,
    intermediate_size=2752,
    num_hidden_layers=12,
    num_attention_heads=8,
    num_key_value_heads=8,
    max_position_embeddings=512,
)


def random_target(seed: int) -> tuple[Engine, float]:
    """Return a target of random weights with four early exits, and its head's share of its
    parameters."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LIKE_7B)
    layers = LIKE_7B.num_hidden_layers
    size = LIKE_7B.hidden_size
    description = ExitsDescription("random", layers, size, spread(EXITS, layers), size // 16)
    share = model.lm_head.weight.numel() / sum(
        parameter.numel() for parameter in model.parameters()
    )
    exits = new_adapters(description, seed)
    engine = HuggingFaceEngine(model, model_name="random", vocabulary_hash="random", exits=exits)
    return engine, share


def demo_target(model: str) -> tuple[Engine, float]:
    """Return the target as a verifier loads it, and its head's share of its parameters."""
    engine = load_engine(model, exits="auto")
    config = AutoConfig.from_pretrained(model)
    head = config.vocab_size * config.hidden_size
    with torch.device("meta"):
        shape = AutoModelForCausalLM.from_config(config)
    total = sum(parameter.numel() for parameter in shape.parameters())
    return engine, head / total


def measure_exits(name: str, engine: Engine, share: float, passes: int, seed: int) -> list[Row]:
    """Return one row per number of exits read, the deepest first, and one with early verdicts
    computed."""
    available = len(engine.exit_depths)
    chosen = {count: tuple(range(available))[available - count :] for count in range(available + 1)}
    session = engine.open(CONTEXT + DRAFTED)
    engine.forward([ForwardRequest(session, tuple(step % 31 for step in range(CONTEXT)), 0)])
    durations: dict[tuple[int, bool], list[float]] = {}
    for number in range(-WARM_UP, passes):
        for count, exits in chosen.items():
            for verified in (False, True) if count == available and available else (False,):
                took_s = _pass(
                    engine, session, exits, _form_distributions if verified else ignore_exit
                )
                if number >= 0:
                    durations.setdefault((count, verified), []).append(took_s)
    session.close()
    plain = durations[0, False]
    return [
        make_row(
            part="cost",
            target=name,
            head_share=share,
            exits=count,
            distributions=verified,
            pass_s=median(seconds),
            added=median(one / other for one, other in zip(seconds, plain, strict=True)) - 1,
            seed=seed,
        )
        for (count, verified), seconds in sorted(durations.items())
    ]


def _pass(
    engine: Engine,
    session: Session,
    exits: tuple[int, ...],
    on_exit: Callable[[int, Logits], None],
) -> float:
    session.rollback(CONTEXT)
    fed = tuple(range(3, 3 + DRAFTED))
    request = ForwardRequest(session, fed, DRAFTED, exits=exits, on_exit=on_exit)
    started_s = time.perf_counter()
    engine.forward([request])
    return time.perf_counter() - started_s


def _form_distributions(index: int, logits: Logits) -> None:
    """Compute what judging an exit needs if every draft stands."""
    for row in logits:
        probs_from_logits(row, SamplingParams())
    confidence(logits[-1])
