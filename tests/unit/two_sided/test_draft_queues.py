"""Which drafts of both sides are kept, for how long, and which a token makes void."""

from __future__ import annotations

from collections.abc import Sequence

from tandem.core.probs import SamplingParams
from tandem.core.stopping import FinishReason
from tandem.core.tokens import EMPTY_PREFIX, PrefixedTokens, TokenSource, extend_prefix
from tandem.specdec.edge import CommittedText
from tandem.two_sided.protocol.counters import AggregationCounters
from tandem.two_sided.protocol.decoder_messages import DecodingCost, DecodingDraft
from tandem.two_sided.protocol.draft_queues import (
    CommitBatch,
    OwnDrafts,
    PeerDrafts,
    QueuedDraft,
    SideDrafts,
    decoded_draft,
    peer_draft,
)
from tandem.two_sided.protocol.messages import AggregationRequest, SideDraftFrame
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.presets import AGGREGATION_PRESETS

PROMPT = (5, 6)


def head(*answer: int) -> int:
    return extend_prefix(EMPTY_PREFIX, (*PROMPT, *answer))


def draft(answer: Sequence[int], token: int, epoch: int = 0) -> QueuedDraft:
    return QueuedDraft(2 + len(answer), head(*answer), epoch, token, None, 0.5, 0.25)


def test_a_draft_keeps_what_came_with_it() -> None:
    peer = SideDraftFrame(1, 4, 2, head(), 7, None, 0.5, committed=2, decode_s=0.25)
    assert peer_draft(peer) == draft((), 7, epoch=4)
    own = DecodingDraft(1, 4, 2, head(), 7, None, 0.5, 2, cost=DecodingCost(decode_s=0.25))
    assert decoded_draft(own, epoch_offset=3) == draft((), 7, epoch=7)


def test_own_drafts_follow_each_other_without_a_gap() -> None:
    committed = PrefixedTokens(PROMPT)
    own = OwnDrafts(committed)
    assert own.first is None
    assert not own.add(draft((7,), 8)), "the first position is missing"
    assert own.add(draft((), 7))
    assert not own.add(draft((), 7)), "it is there"
    assert not own.add(draft((8,), 9)), "after another text"
    assert own.add(draft((7,), 8))
    assert own.add(draft((7, 8), 9))
    assert [one.token_id for one in own] == [7, 8, 9]
    assert len(own) == 3


def test_a_token_takes_the_first_draft_and_where_it_differs_all() -> None:
    for token, left in ((7, [8]), (3, [])):
        own = OwnDrafts(PrefixedTokens(PROMPT))
        own.add(draft((), 7))
        own.add(draft((7,), 8))
        assert own.advance(token) == draft((), 7)
        assert [one.token_id for one in own] == left
    assert OwnDrafts(PrefixedTokens(PROMPT)).advance(7) is None


def test_a_decided_draft_is_found_until_the_other_side_is_past_it() -> None:
    own = OwnDrafts(PrefixedTokens(PROMPT))
    own.add(draft((), 7))
    own.add(draft((7,), 8))
    own.advance(7)
    assert own.at(2, head()) == draft((), 7)
    assert own.at(3, head(7)) == draft((7,), 8), "not decided yet"
    assert own.at(2, head(1)) is None
    assert own.at(4, head(7, 8)) is None
    own.forget_before(2)
    assert own.at(2, head()) == draft((), 7)
    own.forget_before(3)
    assert own.at(2, head()) is None
    own.clear()
    assert own.first is None


def test_the_newest_of_the_other_side_s_drafts_counts_if_it_is_of_this_text() -> None:
    committed = PrefixedTokens((*PROMPT, 7))
    peer = PeerDrafts(committed)
    peer.add(draft((), 7))
    assert len(peer) == 0, "its position is committed"
    peer.add(draft((8,), 1))
    assert (len(peer), peer.first) == (1, None)
    peer.add(draft((7,), 1))
    peer.add(draft((7,), 2))
    assert (len(peer), peer.first) == (1, draft((7,), 2))
    peer.clear()
    assert peer.first is None


def test_a_token_voids_the_drafts_that_were_drawn_before_it_was_known() -> None:
    committed = PrefixedTokens(PROMPT)
    for token, left in ((7, 3), (3, 1)):
        peer = PeerDrafts(committed)
        peer.add(draft((), 7, epoch=1))
        for length, epoch in ((1, 0), (2, 1), (3, 2)):
            peer.add(draft((7,) * length, 8, epoch))
        assert peer.advance(token) == draft((), 7, epoch=1)
        assert len(peer) == left
    peer = PeerDrafts(committed)
    peer.add(draft((1,), 8))
    assert peer.advance(7) is None
    assert len(peer) == 1, "nothing says that it is void"


def test_a_batch_of_tokens_says_where_it_begins_whose_they_are_and_why_it_ends() -> None:
    request = AggregationRequest(
        *(1, PROMPT, "h", 9, SamplingParams(), 3, 2), AGGREGATION_PRESETS["dragon"]
    )
    text = CommittedText(request, lambda token: False)
    counters = AggregationCounters(None)
    drafts = SideDrafts(Side.CLOUD, text, counters)
    assert drafts.own.add(draft((), 7))
    drafts.peer.add(draft((), 3))
    pair = drafts.first()
    assert (pair.cloud, pair.device) == (draft((), 7), draft((), 3))
    assert (pair.of(Side.CLOUD), pair.of(Side.DEVICE)) == (pair.cloud, pair.device)
    batch = drafts.begin()
    drafts.commit(3, TokenSource.DEVICE, batch)
    assert not batch.reason
    assert counters.stats.drafted == {Side.DEVICE: 1, Side.CLOUD: 1}
    assert counters.stats.accepted == {Side.DEVICE: 1, Side.CLOUD: 0}
    drafts.commit(4, None, batch)
    ended: CommitBatch = batch
    assert (ended.base, ended.prefix, ended.reason) == (2, head(), FinishReason.LENGTH)
    assert (batch.token_ids, batch.token_sources) == ([3, 4], [TokenSource.DEVICE])
    assert drafts.begin().base == 4
    drafts.peer.add(draft((3, 4), 5))
    drafts.clear()
    assert drafts.first().device is None
