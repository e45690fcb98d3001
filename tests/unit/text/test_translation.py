"""Target tokens as the draft model reads them."""

from tandem.text.translation import Translation
from tandem.text.vocabulary import Vocabulary, intersect

# The draft's tokens: single letters, one longer piece, a byte, control tokens.
DRAFT = Vocabulary(
    9,
    dict(enumerate([b"t", b"h", b"e", b"he", b" ", b"\xe6"])),
    specials={6: "<s>", 7: "</s>"},
    bos=6,
    eos=7,
)
TARGET = Vocabulary(
    9,
    dict(enumerate([b"the", b" ", "日".encode(), b"e", b"zz"])),
    specials={5: "<b>", 6: "<e>", 7: "<the>"},
    bos=5,
    eos=6,
)


def translation(starts_with_bos: bool = False, **answers: list[int]) -> Translation:
    """`answers`: what the draft tokenizer makes of a text."""
    return Translation(
        DRAFT,
        TARGET,
        intersect(DRAFT, TARGET),
        lambda text: answers.get(text, []),
        starts_with_bos,
    )


def test_a_shared_token_is_its_partner() -> None:
    assert [translation().draft_ids(token) for token in (1, 3, 6)] == [(4,), (2,), (7,)]


def test_other_tokens_are_encoded_anew() -> None:
    assert translation(the=[0, 1, 2]).draft_ids(0) == (0, 1, 2)


def test_longest_pieces_where_the_tokenizer_spells_something_else() -> None:
    """It would add a space, or take the text for a control token."""
    for answer in ([4, 0, 3], [7], []):
        assert translation(the=answer).draft_ids(0) == (0, 3)


def test_what_cannot_be_written_is_left_out_but_never_all_of_it() -> None:
    """Of 日 the draft knows one byte of three, of zz none: a token for the unknown stands in."""
    assert translation().draft_ids(2) == (5,)
    assert translation().draft_ids(4) == (7,)
    assert translation().draft_ids(8) == (7,)


def test_a_control_token_without_partner_is_the_text_of_its_name() -> None:
    assert translation().draft_ids(7) == (0, 3)


def test_the_text_begins_as_the_draft_model_is_used_to() -> None:
    assert translation().first(3) == (2,)
    assert translation(starts_with_bos=True).first(3) == (6, 2)
    assert translation().first(5) == translation(starts_with_bos=True).first(5) == (6,)
    assert translation().draft_ids(5) == (6,)
