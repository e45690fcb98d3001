"""On a CPU a sequence's logits are the same bit for bit in whatever company, in float32 and where
weights have 8 or 4 bits.

The demo pair's shapes, since kernels are chosen by shape.
"""

from pathlib import Path

import numpy as np
import pytest

from tandem.backends.interface import KV_BLOCK, Engine, ForwardRequest, Session
from tandem.backends.torch.loading import load_engine
from tandem.core.errors import InvalidArgument
from tandem.core.probs import Array
from tandem.runtime.chunked_prefill import CHUNK_ROWS
from tests.unit.backends.reference_models import tokens

MODELS = Path(__file__).resolve().parents[3] / "models"
PROMPT = 40
STEPS = (1, 2, 4, 8)


@pytest.fixture(
    scope="module",
    params=[(name, "float32") for name in ("demo-target", "demo-draft")]
    + [("demo-target", "int8"), ("demo-draft", "int4")],
    ids="-".join,
)
def engine(request: pytest.FixtureRequest) -> Engine:
    name, dtype = request.param
    return load_engine(MODELS / name, drafts=name == "demo-draft", dtype=dtype)


def sequences(count: int) -> list[tuple[int, ...]]:
    return [tuple(tokens(PROMPT + 8 + 5 * number, seed=number)) for number in range(count)]


def logits_of(engine: Engine, company: int, count: int) -> list[dict[int, Array]]:
    """The logits of each of `count` sequences after its prompt, by 0, and after one or two passes
    of so many tokens each, by that number; `company` sequences a pass."""
    found: list[dict[int, Array]] = []
    texts = sequences(count)
    for first in range(0, count, company):
        some = texts[first : first + company]
        lengths = [PROMPT + 5 * number for number in range(first, first + len(some))]
        sessions = [engine.open(200) for _ in some]
        prompts = [text[:length] for text, length in zip(some, lengths, strict=True)]
        rows = [{0: each} for each in engine.forward(_requests(sessions, prompts, 1))]
        for step in STEPS:
            passes = []
            for at in range(0, min(8, 2 * step), step):
                parts = [
                    text[length + at :][:step] for text, length in zip(some, lengths, strict=True)
                ]
                passes.append(engine.forward(_requests(sessions, parts, step)))
            for number, session in enumerate(sessions):
                rows[number][step] = np.concatenate([each[number] for each in passes])
                session.rollback(lengths[number])
        found += rows
        for session in sessions:
            session.close()
    return found


def _requests(
    sessions: list[Session], parts: list[tuple[int, ...]], logits_to_keep: int
) -> list[ForwardRequest]:
    return [
        ForwardRequest(session, part, logits_to_keep)
        for session, part in zip(sessions, parts, strict=True)
    ]


def test_company_changes_nothing(engine: Engine) -> None:
    alone = logits_of(engine, 1, 8)
    for company, count in ((2, 4), (8, 8)):
        together = logits_of(engine, company, count)
        assert len(together) == count
        for one, other in zip(alone, together, strict=False):
            assert one.keys() == other.keys() == {0, *STEPS}
            for step, rows in one.items():
                assert len(rows) == max(1, min(8, 2 * step))
                assert np.array_equal(rows, other[step]), (company, step)


def test_a_prompt_beside_single_tokens_changes_nothing(engine: Engine) -> None:
    text, prompt = sequences(2)
    (alone,) = logits_of_prompt(engine, [prompt])
    session = engine.open(200)
    engine.forward([ForwardRequest(session, text[:PROMPT], 1)])
    (single,) = engine.forward([ForwardRequest(session, text[PROMPT : PROMPT + 1], 1)])
    session.rollback(PROMPT)
    other = engine.open(200)
    beside = engine.forward(
        [ForwardRequest(session, text[PROMPT : PROMPT + 1], 1), ForwardRequest(other, prompt, 1)]
    )
    assert np.array_equal(beside[0], single)
    assert np.array_equal(beside[1], alone)
    session.close()
    other.close()


def logits_of_prompt(engine: Engine, prompts: list[tuple[int, ...]]) -> list[Array]:
    sessions = [engine.open(200) for _ in prompts]
    found = engine.forward(_requests(sessions, prompts, 1))
    for session in sessions:
        session.close()
    return list(found)


def test_pieces_of_a_prompt_change_nothing(engine: Engine) -> None:
    prompt = tuple(tokens(2 * CHUNK_ROWS + 30, seed=3))
    whole, pieces = (engine.open(len(prompt)) for _ in range(2))
    (expected,) = engine.forward([ForwardRequest(whole, prompt, 2)])
    for start in (0, CHUNK_ROWS):
        engine.forward([ForwardRequest(pieces, prompt[start : start + CHUNK_ROWS], 0)])
    (found,) = engine.forward([ForwardRequest(pieces, prompt[2 * CHUNK_ROWS :], 2)])
    assert np.array_equal(found, expected)
    for session in (whole, pieces):
        session.close()


@pytest.mark.parametrize("blocks", [1, 4])
def test_a_session_begun_with_copies_has_the_bits_of_one_fed_from_the_start(
    engine: Engine, blocks: int
) -> None:
    text = tuple(tokens(5 * KV_BLOCK + 7, seed=3))
    kept = engine.kv_copies
    assert kept is not None
    first, second, whole = (engine.open(len(text)) for _ in range(3))
    engine.forward([ForwardRequest(first, text[: blocks * KV_BLOCK + 9], 1)])
    copies = kept.copy(first, 0, blocks * KV_BLOCK)
    first.close()  # what is kept outlives it
    kept.paste(second, copies)
    assert second.length == blocks * KV_BLOCK
    (found,) = engine.forward([ForwardRequest(second, text[second.length :], 3)])
    (wanted,) = engine.forward([ForwardRequest(whole, text, 3)])
    assert np.array_equal(found, wanted)
    with pytest.raises(InvalidArgument, match="length"):
        kept.paste(second, copies)
    with pytest.raises(InvalidArgument, match="length"):
        kept.copy(second, 0, 6 * KV_BLOCK)
    second.close()
    whole.close()
