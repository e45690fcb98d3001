"""Who shares with whom, as an operator says it."""

from __future__ import annotations

import pytest

from tandem.core.errors import InvalidArgument
from tandem.core.sharing import EVERYBODY, parse_sharing


def test_nobody_shares_by_default() -> None:
    assert parse_sharing("").group_of("alice") == "alice"


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
        ("alice", "must name whom 'alice' shares with"),
        ("alice,bob;carol", "must name whom 'carol' shares with"),
        ("alice,bob;bob,carol", "must name 'bob' once"),
        ("alice,alice", "must name 'alice' once"),
        ("alice,", "'' is no name of a key"),
        ("alice,*", "'*' is no name of a key"),
        (";", "'' is no name of a key"),
        ("al ice,bob", "'al ice' is no name of a key"),
    ],
)
def test_what_has_no_one_meaning_is_refused(text: str, why: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        parse_sharing(text)
    assert refusal.value.field == "share_prefixes"
    assert why in str(refusal.value)
