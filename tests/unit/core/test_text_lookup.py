"""What follows a text by lookup. (`find_follower` is tested with the back end `lookup`.)"""

import random

from tandem.core.text_lookup import SURE_MATCH, GrowingText, find_follower


def followers_of(text: tuple[int, ...], most: int) -> tuple[int, ...]:
    """By the definition, one after the other."""
    found: tuple[int, ...] = ()
    while len(found) < most:
        follower, matched = find_follower((*text, *found))
        if follower is None or matched < SURE_MATCH:
            break
        found += (follower,)
    return found


def test_a_growing_text_finds_what_the_text_as_a_whole_does() -> None:
    source = random.Random(3)
    text: tuple[int, ...] = ()
    growing = GrowingText()
    hits = 0
    for _ in range(200):
        more = tuple(source.randrange(3) for _ in range(source.randrange(5)))
        growing.extend(more)
        text += more
        most = source.randrange(8)
        assert growing.followers(most) == followers_of(text, most)
        assert len(growing) == len(text)
        hits += len(followers_of(text, most))
    assert hits > 400
