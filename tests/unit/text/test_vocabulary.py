"""Two vocabularies as one: which tokens are shared, and that restricting the draft is exact."""

from fractions import Fraction
from functools import partial

import numpy as np
import pytest

from tandem.core.acceptance import accepts, recover, sample_draft
from tandem.core.errors import InvalidArgument
from tandem.core.probs import Array, SamplingParams, probs_from_logits
from tandem.core.randomness import RandomSource
from tandem.text.vocabulary import (
    Intersection,
    Vocabulary,
    byte_level_bytes,
    fallback_byte,
    intersect,
    sentencepiece_bytes,
)
from tests.exact import output_probs, probs_pairs

# Draft ids 0…4 spell a, b, c, d, e; target ids 0…3 spell d, b, x, a.
LETTERS = intersect(
    Vocabulary(5, dict(enumerate([b"a", b"b", b"c", b"d", b"e"]))),
    Vocabulary(4, dict(enumerate([b"d", b"b", b"x", b"a"]))),
)


def pairs(shared: Intersection) -> dict[int, int]:
    return dict(zip(shared.draft_ids.tolist(), shared.target_ids.tolist(), strict=True))


def test_tokens_are_one_if_they_spell_the_same() -> None:
    assert pairs(LETTERS) == {0: 3, 1: 1, 3: 0}
    assert LETTERS.share == 3 / 4


@pytest.mark.parametrize(
    ("spelt", "expected"),
    [
        (byte_level_bytes("Ġthe"), b" the"),
        (byte_level_bytes("æĹ¥"), "日".encode()),
        (byte_level_bytes("Ċ"), b"\n"),
        (sentencepiece_bytes("▁the"), b" the"),
        (sentencepiece_bytes("日"), "日".encode()),
        (fallback_byte("<0xE6>"), b"\xe6"),
        (fallback_byte("<0xE6>x"), None),
        (fallback_byte("<0x100>"), None),
    ],
)
def test_every_way_of_writing_a_piece_ends_in_bytes(spelt: bytes, expected: bytes) -> None:
    assert spelt == expected


def test_all_bytes_can_be_written_byte_level() -> None:
    letters = [chr(number) for number in range(0x21, 0x144)]
    found = set()
    for letter in letters:
        try:
            found.add(byte_level_bytes(letter))
        except KeyError:
            continue
    assert found == {bytes([byte]) for byte in range(256)}


def test_a_piece_comes_before_the_byte_that_spells_the_same() -> None:
    """Sentencepiece has both "A" and <0x41>; byte-level BPE has one token."""
    sentencepiece = Vocabulary(3, {0: b"A", 1: b"\xe6", 2: b"A"}, byte_ids=frozenset({0, 1}))
    byte_level = Vocabulary(2, {0: b"A", 1: b"\xe6"})
    assert pairs(intersect(sentencepiece, byte_level)) == {2: 0, 1: 1}
    assert pairs(intersect(byte_level, sentencepiece)) == {0: 2, 1: 1}
    assert pairs(intersect(sentencepiece, sentencepiece)) == {0: 0, 1: 1, 2: 2}


def test_control_tokens_go_by_name_then_by_role() -> None:
    draft = Vocabulary(
        5, {4: b"<end>"}, specials={0: "<s>", 1: "</s>", 2: "<tool>", 3: "<end>"}, bos=0, eos=1
    )
    target = Vocabulary(
        5,
        {4: b"<tool>"},
        specials={0: "<end>", 1: "<|im_end|>", 2: "<tool>", 3: "<b>"},
        bos=3,
        eos=1,
    )
    assert pairs(intersect(draft, target)) == {0: 3, 1: 1, 2: 2, 3: 0}


def test_a_role_does_not_take_a_token_that_has_a_name_of_its_own() -> None:
    draft = Vocabulary(2, {}, specials={0: "<end>", 1: "<stop>"}, eos=1)
    target = Vocabulary(2, {}, specials={0: "<end>"}, eos=0)
    assert pairs(intersect(draft, target)) == {0: 0}


def test_one_token_is_beginning_and_end() -> None:
    draft = Vocabulary(1, {}, specials={0: "<|endoftext|>"}, bos=0, eos=0)
    target = Vocabulary(2, {}, specials={0: "<s>", 1: "</s>"}, bos=0, eos=1)
    assert pairs(intersect(draft, target)) == {0: 1}


def test_too_little_in_common_is_an_error_that_says_what_to_do() -> None:
    ours = Vocabulary(100, {token: f"a{token}".encode() for token in range(100)})
    theirs = Vocabulary(100, {token: f"b{token}".encode() for token in range(4)} | {9: b"a7"})
    shared = intersect(ours, theirs)
    with pytest.raises(InvalidArgument, match=r"only 1 tokens .* use a draft model") as refused:
        shared.check("target_tokenizer")
    assert refused.value.field == "target_tokenizer"
    LETTERS.check("target_tokenizer")


def test_the_restricted_distribution_is_the_draft_distribution_given_that_the_token_is_shared() -> (
    None
):
    probs = np.array([0.1, 0.2, 0.3, 0.15, 0.25], dtype=np.float32)
    (logits,) = LETTERS.restricted(np.log(probs)[None])
    distribution = probs_from_logits(logits, SamplingParams())
    assert np.allclose(distribution, np.array([0.15, 0.2, 0, 0.1]) / 0.45)
    assert LETTERS.draft_mass_outside(probs) == pytest.approx(0.55)
    assert LETTERS.target_mass_outside(np.array([0.5, 0.1, 0.3, 0.1])) == pytest.approx(0.3)
    assert probs_from_logits(logits, SamplingParams(0.0)).argmax() == 1
    assert probs_from_logits(logits, SamplingParams(top_k=4)).tolist() == distribution.tolist()


def translated(draft_probs: Array) -> Array:
    """The conditional distribution, in fractions, over the target's ids."""
    distribution = np.array([Fraction(0)] * LETTERS.target_size, dtype=object)
    distribution[LETTERS.target_ids] = draft_probs[LETTERS.draft_ids]
    conditional: Array = distribution / distribution.sum()
    return conditional


def round_of_one(target: Array, draft: Array, rng: RandomSource) -> int:
    token = sample_draft(draft, rng, 0)
    if accepts(target, token, draft[token], rng, 0):
        return token
    return recover(target, (token,), draft, rng, 0)


def acceptance(target: Array, draft: Array) -> Fraction:
    return sum(np.minimum(target, draft), Fraction(0))


def wide_draft_distributions() -> list[tuple[Array, Array]]:
    """Target distributions over four tokens, draft distributions over five, some mass of which is
    shared."""
    found = []
    for (target, draft), (extra, _) in zip(probs_pairs(5, 80), probs_pairs(6, 80), strict=True):
        wide = np.append(draft * Fraction(3, 4), extra[0] / 4)
        wide = wide / wide.sum()
        if wide[LETTERS.draft_ids].sum() > 0:
            found.append((target, wide))
    return found


def test_the_output_distribution_is_the_target_s_in_fractions() -> None:
    for target, wide in wide_draft_distributions():
        draft = translated(wide)
        distribution = output_probs(partial(round_of_one, target, draft), LETTERS.target_size)
        assert distribution == list(target)


def test_the_cost_in_acceptance_is_at_most_the_mass_outside() -> None:
    """Against the same draft if all of its tokens were known to a target that never says the rest:
    σ = mass outside (TSLT, eq. 9)."""
    for target, wide in wide_draft_distributions():
        outside = 1 - wide[LETTERS.draft_ids].sum()
        untruncated = np.array([Fraction(0)] * LETTERS.target_size, dtype=object)
        untruncated[LETTERS.target_ids] = wide[LETTERS.draft_ids]
        change = acceptance(target, translated(wide)) - acceptance(target, untruncated)
        assert 0 <= change <= outside
        unreachable = 1 - target[LETTERS.target_ids].sum()
        assert acceptance(target, translated(wide)) <= 1 - unreachable
