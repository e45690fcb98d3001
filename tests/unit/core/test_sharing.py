"""Who shares with whom, as an operator says it."""

from __future__ import annotations

import pytest

from tandem.core.errors import InvalidArgument
from tandem.core.sharing import EVERYBODY, parse_sharing


def test_named_groups_share_within_and_not_between() -> None:
    sharing = parse_sharing("alice, bob; carol,dave")
    assert sharing.group_of("alice") == sharing.group_of("bob") == "alice,bob"
    assert sharing.group_of("carol") == sharing.group_of("dave") == "carol,dave"
    assert sharing.group_of("eve") == "eve"


def test_a_group_has_one_name_in_whatever_order_it_is_written() -> None:
    assert parse_sharing("b,a").group_of("a") == parse_sharing("a,b").group_of("b")


def test_everybody_may_share() -> None:
    sharing = parse_sharing(" * ")
    assert sharing.group_of("alice") == sharing.group_of("") == EVERYBODY


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("alice", "must have a second name in the group of 'alice'"),
        ("alice,bob;carol", "must have a second name in the group of 'carol'"),
        ("alice,bob;bob,carol", "must contain 'bob' only once"),
        ("alice,alice", "must contain 'alice' only once"),
        ("alice,", "'' is not the name of a key holder"),
        ("alice,*", "'*' is not the name of a key holder"),
        (";", "'' is not the name of a key holder"),
        ("al ice,bob", "'al ice' is not the name of a key holder"),
    ],
)
def test_what_has_no_one_meaning_is_refused(text: str, why: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        parse_sharing(text)
    assert refusal.value.field == "share_prefixes"
    assert why in str(refusal.value)
