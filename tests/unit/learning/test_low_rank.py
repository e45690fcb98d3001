"""Low-rank adapters of a torch draft: what they change, what they leave alone, and how they
learn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode

from tandem.backends.interface import Engine, ForwardCancelled, ForwardRequest, Session
from tandem.backends.model_source import HEAD_TOKENS
from tandem.backends.sliding_window import SlidingWindowEngine
from tandem.backends.torch.loading import load_engine
from tandem.core.errors import InvalidArgument
from tandem.core.gumbel import coupled_token
from tandem.core.probs import SamplingParams, probs_from_logits
from tandem.learning.adaptation import Adaptation, adaptation_of
from tandem.learning.examples import Example, TargetProbs
from tandem.learning.torch import low_rank, training
from tandem.learning.torch.low_rank import RANK
from tandem.testing.paced import PacedEngine
from tandem.testing.scripted import ScriptedEngine, scripted_probs
from tests.unit.backends.reference_models import VOCABULARY, tokens
from tests.unit.backends.tiny_folders import write_model

HEAD = (5, 8, 13, 21, 34, 55, 89)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("llama"), "llama")


@pytest.fixture(scope="module")
def engine(folder: Path) -> Engine:
    return load_engine(folder, drafts=True)


@pytest.fixture(scope="module")
def reduced(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """A draft whose head is for a few tokens alone."""
    place = write_model(tmp_path_factory.mktemp("reduced"), "llama")
    (place / HEAD_TOKENS).write_text(json.dumps(HEAD))
    return load_engine(place, drafts=True)


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """These models are tiny and know nothing: they learn with larger steps, and more of them."""
    monkeypatch.setattr(training, "LEARNING_RATE", 4e-3)
    monkeypatch.setattr(training, "BATCH_TOKENS", 20)


def adapting(engine: Engine) -> Adaptation:
    adaptation = adaptation_of(engine)
    assert adaptation is not None
    return adaptation


def random_weights(adaptation: Adaptation, seed: int = 1) -> NDArray[np.float32]:
    rng = np.random.default_rng(seed)
    return (0.2 * rng.standard_normal(adaptation.size)).astype(np.float32)


def logits(
    engine: Engine, token_ids: list[int], adapter: object | None = None, chunk: int = 64
) -> NDArray[np.float32]:
    """Logits of a fresh session, fed in chunks."""
    session = engine.open(len(token_ids))
    if adapter is not None:
        adapting(engine).use(session, adapter)
    rows = []
    for first in range(0, len(token_ids), chunk):
        part = tuple(token_ids[first : first + chunk])
        (some,) = engine.forward([ForwardRequest(session, part, len(part))])
        rows.append(some.copy())
    session.close()
    return np.concatenate(rows)


def judged(answer: list[int], prompt: list[int] | None = None, **more: Any) -> Example:
    prompt = prompt or tokens(6, 3)
    fields = {"temperature": 1.0, **more}
    return Example(np.array([*prompt, *answer], np.int32), len(prompt), **fields)


def test_an_untrained_adapter_changes_no_bit(engine: Engine) -> None:
    adaptation = adapting(engine)
    fresh = adaptation.place(adaptation.trainer(None, {}).weights())
    text = tokens(40, 1)
    assert (logits(engine, text, fresh) == logits(engine, text)).all()


@pytest.mark.parametrize("name", ["llama", "llama-biased", "qwen3"])
def test_what_is_trained_is_what_drafts(name: str, tmp_path: Path) -> None:
    """The forward pass of training gives the logits of a session, with and without an adapter."""
    engine = load_engine(write_model(tmp_path, name), drafts=True)
    adaptation: Any = adapting(engine)
    text = judged(tokens(40, 2))
    for weights in (None, random_weights(adaptation)):
        adapter: Any = None if weights is None else adaptation.place(weights)
        with torch.inference_mode():
            products = None if adapter is None else adapter.products
            found = adaptation.logits(text, products, lambda: False).numpy()
        expected = logits(engine, text.token_ids.tolist(), adapter)[text.first - 1 : -1]
        assert np.allclose(found, expected, atol=2e-4)
        if weights is not None:
            plain = logits(engine, text.token_ids.tolist())[text.first - 1 : -1]
            assert np.abs(plain - expected).max() > 0.1


def test_sessions_with_different_adapters_share_a_pass_and_nothing_else(engine: Engine) -> None:
    adaptation = adapting(engine)
    adapters = [None, *(adaptation.place(random_weights(adaptation, seed)) for seed in (1, 2))]
    text = tuple(tokens(3, 5))
    alone = [logits(engine, list(text), adapter) for adapter in adapters]
    sessions = [engine.open(8) for _ in adapters]
    for session, adapter in zip(sessions, adapters, strict=True):
        if adapter is not None:
            adaptation.use(session, adapter)
    together = engine.forward([ForwardRequest(session, text, 3) for session in sessions])
    for one, other in zip(alone, together, strict=True):
        assert (one == other).all(), "other sessions change no bit"
    assert np.abs(alone[1] - alone[2]).max() > 0.01
    for session in sessions:
        session.close()


class Operations(TorchDispatchMode):
    """Counts what torch computes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def operations_of_a_step(engine: Engine, adapter: object | None = None) -> int:
    session = engine.open(8)
    if adapter is not None:
        adapting(engine).use(session, adapter)
    engine.forward([ForwardRequest(session, (3, 5, 8), 0)])
    operations = Operations()
    with operations:
        engine.forward([ForwardRequest(session, (13,), 1)])
    session.close()
    return operations.count


@pytest.mark.parametrize("head", [None, HEAD])
def test_a_merged_adapter_costs_a_step_nothing(
    head: tuple[int, ...] | None, engine: Engine, reduced: Engine
) -> None:
    engine = engine if head is None else reduced
    adaptation = adapting(engine)
    adapter = adaptation.place(random_weights(adaptation))
    text = tokens(20, 4)
    beside, plain = logits(engine, text, adapter), logits(engine, text)
    assert operations_of_a_step(engine, adapter) > operations_of_a_step(engine)
    adaptation.merge(adapter)
    inside = np.isfinite(plain)
    assert np.allclose(logits(engine, text, adapter)[inside], beside[inside], atol=2e-4)
    assert np.abs(beside[inside] - plain[inside]).max() > 0.1
    assert operations_of_a_step(engine, adapter) == operations_of_a_step(engine)
    assert (logits(engine, text) == plain).all(), "the model's own weights are as they were"


def test_the_adapter_that_was_merged_last_is_merged_alone(engine: Engine) -> None:
    adaptation = adapting(engine)
    adapters = [adaptation.place(random_weights(adaptation, seed)) for seed in (1, 2)]
    text = tuple(tokens(3, 5))
    adaptation.merge(adapters[0])
    expected = [logits(engine, list(text), adapter) for adapter in adapters]
    begun = engine.open(8)
    adaptation.use(begun, adapters[0])
    adaptation.merge(adapters[1])
    later = engine.open(8)
    adaptation.use(later, adapters[0])
    other = engine.open(8)
    adaptation.use(other, adapters[1])
    requests = [ForwardRequest(session, text, 3) for session in (begun, later, other)]
    rows = engine.forward(requests)
    assert (rows[0] == expected[0]).all(), "an answer keeps what it began with, bit for bit"
    assert np.allclose(rows[1], expected[0], atol=2e-4)
    assert np.allclose(rows[2], expected[1], atol=2e-4)
    costs = [operations_of_a_step(engine, adapter) for adapter in adapters]
    assert costs[0] > costs[1] == operations_of_a_step(engine)
    for session in (begun, later, other):
        session.close()


def test_an_adapter_of_a_large_model_stays_beside_its_weights(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(low_rank, "MAX_MERGED_BYTES", 1000)
    adaptation = adapting(engine)
    adapter = adaptation.place(random_weights(adaptation))
    before = operations_of_a_step(engine, adapter)
    adaptation.merge(adapter)
    assert operations_of_a_step(engine, adapter) == before


def test_a_branch_drafts_with_its_parent_s_adapter(engine: Engine) -> None:
    adaptation = adapting(engine)
    adapter = adaptation.place(random_weights(adaptation))
    text = tokens(10, 6)
    parent = engine.open(10)
    adaptation.use(parent, adapter)
    engine.forward([ForwardRequest(parent, tuple(text[:9]), 0)])
    branch = engine.fork(parent, 9, 10)
    (row,) = engine.forward([ForwardRequest(branch, (text[9],), 1)])
    assert np.allclose(row[0], logits(engine, text, adapter)[-1], atol=1e-4)
    branch.close()
    parent.close()


@pytest.mark.parametrize("wrap", [SlidingWindowEngine, lambda e: PacedEngine(e, 0, 0)])
def test_engines_around_the_draft_hand_its_adapters_on(engine: Engine, wrap: Any) -> None:
    wrapped = wrap(engine)
    adaptation = adapting(wrapped)
    assert adaptation.layout == adapting(engine).layout
    adapter = adaptation.place(random_weights(adaptation))
    text = tokens(8, 7)
    assert np.allclose(logits(wrapped, text, adapter), logits(engine, text, adapter), atol=1e-5)


def test_an_adapter_is_chosen_before_the_first_token(engine: Engine) -> None:
    adaptation = adapting(engine)
    session: Session = engine.open(4)
    engine.forward([ForwardRequest(session, (3,), 0)])
    with pytest.raises(InvalidArgument, match="before the first token"):
        adaptation.use(session, adaptation.place(random_weights(adaptation)))
    session.close()


def test_weights_that_do_not_fit_are_refused(engine: Engine) -> None:
    adaptation = adapting(engine)
    weights = random_weights(adaptation)
    with pytest.raises(InvalidArgument, match="adapter"):
        adaptation.place(weights[1:])
    weights[7] = np.nan
    with pytest.raises(InvalidArgument, match="not finite"):
        adaptation.place(weights)
    with pytest.raises(InvalidArgument, match="not a state"):
        adaptation.trainer(None, {"weights": weights})


def test_models_that_cannot_be_adapted_say_so(folder: Path, tmp_path: Path) -> None:
    assert adaptation_of(load_engine(folder)) is None, "a target"
    assert adaptation_of(load_engine(folder, drafts=True, dtype="int8")) is None
    assert adaptation_of(load_engine(write_model(tmp_path, "gpt2"), drafts=True)) is None
    assert adaptation_of(ScriptedEngine(8, scripted_probs(1, 8))) is None


def test_a_few_steps_raise_acceptance_on_texts_that_were_not_trained_on(engine: Engine) -> None:
    """The target says one of two tokens, whatever came before."""
    adaptation = adapting(engine)
    rng = np.random.default_rng(1)
    texts = [judged(rng.choice([17, 40], 30).tolist(), tokens(6, seed)) for seed in range(12)]
    trainer = adaptation.trainer(None, {})
    losses = [trainer.step(texts[step % 8]) for step in range(40)]
    adapter = adaptation.place(trainer.weights())
    before = sum(adaptation.score(None, text).accepted for text in texts[8:])
    after = sum(adaptation.score(adapter, text).accepted for text in texts[8:])
    assert after > 20 > 4 * before, "of 120 tokens"
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) / 2


def test_greedy_texts_teach_which_token_is_the_likeliest(engine: Engine) -> None:
    adaptation = adapting(engine)
    text = judged([17, 40] * 15, temperature=0.0)
    trainer = adaptation.trainer(None, {})
    for _ in range(50):
        trainer.step(text)
    found = adaptation.score(adaptation.place(trainer.weights()), text)
    assert found.tokens == 30
    assert found.accepted >= 28


def test_with_gumbel_noise_acceptance_is_that_of_coupled_drafts(engine: Engine) -> None:
    """Counted token by token, as drafter and verifier do."""
    adaptation = adapting(engine)
    adapter = adaptation.place(random_weights(adaptation))
    sampling = SamplingParams(temperature=0.7)
    token_ids = tokens(6, 3)
    for number in range(20):
        row = logits(engine, token_ids, adapter)[-1]
        draft = coupled_token(probs_from_logits(row, sampling), 5, 100 + len(token_ids))
        refused = number % 4 == 3  # the target said something else
        token_ids.append((draft + 1) % VOCABULARY if refused else draft)
    text = judged(token_ids[6:], token_ids[:6], seed=5, position=100, temperature=0.7)
    found = adaptation.score(adapter, text)
    assert (found.accepted, found.tokens) == (15, 20)
    part = adaptation.score(adapter, text.part(3, 20))
    assert part.tokens == 14, "positions are those of the whole text"


def test_noise_teaches_the_distribution(engine: Engine) -> None:
    """Tokens drawn from 0.6, 0.3, 0.1 by noise: the draft comes to draw the same ones."""
    adaptation = adapting(engine)
    probs = np.zeros(VOCABULARY)
    probs[[17, 40, 99]] = 0.6, 0.3, 0.1
    texts = [
        judged([coupled_token(probs, seed, 6 + index) for index in range(30)], seed=seed)
        for seed in range(12)
    ]
    trainer = adaptation.trainer(None, {})
    for step in range(60):
        trainer.step(texts[step % 8])
    adapter = adaptation.place(trainer.weights())
    accepted = sum(adaptation.score(adapter, text).accepted for text in texts[8:])
    assert accepted > 0.75 * 120, "independent draws would agree 46 times of 100"


def test_what_a_rejection_told_teaches_all_that_the_token_was_drawn_from(engine: Engine) -> None:
    """The target says 9 or 70, the draft had said 9 too often: its token came from the rest."""
    adaptation = adapting(engine)
    known = TargetProbs(
        ids=np.array([9, 70, 71], np.int32),
        probs=np.array([0.2, 0.5, 0.3], np.float32),
        draft_probs=np.array([0.9, 0.1, 0.1], np.float32),
    )
    assert known.residual == pytest.approx([0, 2 / 3, 1 / 3])
    text = judged([70] * 24, target_probs={6 + index: known for index in range(24)})
    trainer = adaptation.trainer(None, {})
    for _ in range(60):
        trainer.step(text)
    adapter = adaptation.place(trainer.weights())
    said = [adaptation.score(adapter, judged([token] * 24)).accepted / 24 for token in (70, 71)]
    found = adaptation.score(adapter, text)
    assert found.accepted > 0.7 * found.tokens
    drawn = [adaptation.score(None, judged([token] * 24)).accepted / 24 for token in (70, 71)]
    assert said[0] > 0.4 > drawn[0]
    assert said[1] > 0.05 > drawn[1], "it was never the token, but might have been"


def with_probs(token_ids: list[int], probs: dict[int, float], **more: Any) -> Example:
    """A text at each of whose tokens the target told the same distribution."""
    ids = np.array(list(probs), np.int32)
    known = TargetProbs(
        ids, np.array(list(probs.values()), np.float32), np.zeros(len(ids), np.float32)
    )
    text = judged(token_ids, **more)
    places = range(text.first, len(text))
    return judged(token_ids, target_probs=dict.fromkeys(places, known), **more)


def test_a_distribution_is_learned_of_any_tokens(engine: Engine) -> None:
    """One token was drawn all the time: the target might have said others as well."""
    adaptation = adapting(engine)
    text = with_probs([17] * 24, {17: 0.5, 40: 0.3, 99: 0.2}, seed=3)
    assert text.has_all_probs
    trainer = adaptation.trainer(None, {})
    losses = [trainer.step(text) for _ in range(60)]
    adapter = adaptation.place(trainer.weights())
    before, after = (adaptation.score(each, text).accepted / 24 for each in (None, adapter))
    assert before < 0.1
    assert after > 0.8, "noise has no part in it"
    assert losses[-1] == pytest.approx(-np.log(after), abs=0.1)


def test_a_text_has_all_probs_only_if_each_of_its_tokens_is() -> None:
    text = with_probs([17] * 4, {17: 0.5, 40: 0.3})
    known = dict(text.target_probs)
    assert text.part(0, 8).has_all_probs
    assert not judged([17] * 5, target_probs=known).has_all_probs
    rejected = TargetProbs(known[6].ids, known[6].probs, known[6].probs)
    assert not judged([17] * 4, target_probs={**known, 7: rejected}).has_all_probs


def test_the_overlap_is_that_of_both_distributions(engine: Engine) -> None:
    adaptation = adapting(engine)
    text = judged([4, 9])
    row = logits(engine, text.token_ids.tolist())[text.first - 1].astype(np.float64)
    probs = np.exp(row / 0.8) / np.exp(row / 0.8).sum()
    target = np.zeros(VOCABULARY, np.float32)
    target[[4, 30, 31]] = 0.5, 0.3, 0.2
    ids = np.array([4, 30, 31], np.int32)
    known = TargetProbs(ids, target[ids], np.zeros(3, np.float32))
    one = Example(text.token_ids[:-1], text.first, 0.8, target_probs={text.first: known})
    assert adaptation.score(None, one).accepted == pytest.approx(
        np.minimum(probs, target).sum(), abs=1e-4
    )


def test_a_cancelled_step_changes_nothing(engine: Engine) -> None:
    adaptation = adapting(engine)
    trainer = adaptation.trainer(None, {})
    trainer.step(judged(tokens(20, 8)))
    before = trainer.state()
    for after_calls in range(7):  # three layers, what follows them, and back again
        calls = iter([False] * after_calls + [True] * 20)
        with pytest.raises(ForwardCancelled):
            trainer.step(judged(tokens(20, 9)), lambda calls=calls: next(calls))  # type: ignore[misc]
    after = trainer.state()
    assert before.keys() == after.keys()
    assert all((before[name] == after[name]).all() for name in before)


def test_training_goes_on_from_its_state(engine: Engine) -> None:
    adaptation = adapting(engine)
    text = judged(tokens(20, 8))
    whole, half = adaptation.trainer(None, {}), adaptation.trainer(None, {})
    for _ in range(4):
        whole.step(text)
    for _ in range(2):
        half.step(text)
    rest = adaptation.trainer(None, half.state())
    for _ in range(2):
        rest.step(text)
    assert (whole.weights() == rest.weights()).all()


def test_a_reduced_head_learns_and_proposes_its_own_tokens_alone(
    engine: Engine, reduced: Engine
) -> None:
    adaptation = adapting(reduced)
    # 100 is a token that the head lacks: nothing can be learned of it, and it counts as refused.
    text = judged([21, 100] * 15)
    trainer = adaptation.trainer(None, {})
    for _ in range(40):
        trainer.step(text)
    adapter = adaptation.place(trainer.weights())
    found = adaptation.score(adapter, text)
    assert found.tokens == 30
    assert 10 < found.accepted <= 15
    rows = logits(reduced, text.token_ids.tolist(), adapter)
    assert np.isneginf(np.delete(rows, HEAD, axis=1)).all()
    assert (rows[text.first - 1 :: 2].argmax(1) == 21).mean() > 0.9
    whole = adapting(engine)
    assert whole.size - adaptation.size == RANK * (VOCABULARY - len(HEAD))


def test_half_precision_learns_too(folder: Path) -> None:
    engine = load_engine(folder, drafts=True, dtype="bfloat16")
    adaptation = adapting(engine)
    text = judged([17, 40] * 15, temperature=0.0)
    trainer = adaptation.trainer(None, {})
    for _ in range(60):
        trainer.step(text)
    found = adaptation.score(adaptation.place(trainer.weights()), text)
    assert found.accepted >= 25
    adapter = adaptation.place(trainer.weights())
    beside = logits(engine, text.token_ids.tolist(), adapter)
    adaptation.merge(adapter)  # which rounding would undo for the most part
    assert (logits(engine, text.token_ids.tolist(), adapter) == beside).all()
