"""The edge's machine on its own: what a cloud could get wrong, how drafting starts and stops."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tandem.core.errors import ProtocolError
from tandem.core.sparse_answer import SparseAnswer
from tandem.core.stopping import FinishReason
from tandem.policy.presets import PRESETS, Preset, Schedule
from tandem.protocol.edge import ALONE_CHUNK, EdgeMachine, Phase
from tandem.protocol.liveness import Liveness, LivenessTimes, LostCloud
from tandem.protocol.messages import (
    Cancel,
    CloudMessage,
    Draft,
    FullAnswer,
    FullLaw,
    GoingAway,
    NeedFullLaw,
    Open,
    Opened,
    Outcome,
    Ping,
    Pong,
    Recovered,
    Tokens,
    Verdict,
)
from tandem.protocol.outputs import (
    Commit,
    Drafted,
    DraftWork,
    EdgeOutput,
    Finish,
    Interrupt,
    Reconnect,
    Send,
)
from tandem.protocol.prefixes import PrefixedTokens, PrefixMismatch
from tests.protocol.cases import model_pair, opposed_pair, preset, scheduled
from tests.protocol.lockstep import Lockstep, request_for

MODELS = opposed_pair()
V = MODELS.vocabulary_size
TIMES = LivenessTimes(ping_after_s=1.0, dead_after_s=3.0, give_up_after_s=10.0)
LAW = np.full(V, 1 / V, dtype=np.float32)

BadFrame = tuple[Callable[[Any], CloudMessage], type[Exception]]


def full_law_of(frame: Verdict | Tokens | FullLaw) -> FullLaw:
    return FullLaw(frame.session, frame.epoch, frame.base, frame.prefix, target_probs=LAW)


BAD_FRAMES: dict[str, BadFrame] = {
    "another session": (lambda m: replace(m, session=m.session + 1), ProtocolError),
    "before the text's end": (lambda m: replace(m, base=m.base - 1), ProtocolError),
    "beyond the text's end": (lambda m: replace(m, base=m.base + 1), ProtocolError),
    "another text": (lambda m: replace(m, prefix=m.prefix ^ 1), PrefixMismatch),
    "a full law unasked": (full_law_of, ProtocolError),
}
BAD_VERDICTS: dict[str, BadFrame] = {
    **BAD_FRAMES,
    "judges more than was sent": (lambda m: replace(m, accepted=9), ProtocolError),
    "judges one more than was sent": (
        lambda m: replace(m, accepted=2, rejected=True),
        ProtocolError,
    ),
    "accepts less than nothing": (lambda m: replace(m, accepted=-1), ProtocolError),
    "judges nothing": (lambda m: replace(m, accepted=0, rejected=False), ProtocolError),
    "an older epoch": (lambda m: replace(m, epoch=m.epoch - 1), ProtocolError),
    "a later epoch": (lambda m: replace(m, epoch=m.epoch + 1), ProtocolError),
    "token V": (lambda m: replace(m, outcome=V), ProtocolError),
    "token -1": (lambda m: replace(m, outcome=-1), ProtocolError),
    "refuses and says nothing": (
        lambda m: replace(
            m, accepted=0, rejected=True, epoch=m.epoch + 1 - m.rejected, outcome=None
        ),
        ProtocolError,
    ),
    "a law with nothing to draw": (
        lambda m: replace(
            m, accepted=1, rejected=False, epoch=m.epoch - m.rejected, outcome=FullAnswer(LAW)
        ),
        ProtocolError,
    ),
}
BAD_TOKENS: dict[str, BadFrame] = {
    **BAD_FRAMES,
    "token V": (lambda m: replace(m, token_ids=(V,)), ProtocolError),
    "token -1": (lambda m: replace(m, token_ids=(-1,)), ProtocolError),
    "tokens not hashed": (lambda m: replace(m, token_ids=(*m.token_ids, 0)), PrefixMismatch),
}
BAD_LAWS: dict[str, BadFrame] = {
    **{name: bad for name, bad in BAD_FRAMES.items() if name != "a full law unasked"},
    "a law too short": (lambda m: replace(m, target_probs=LAW[1:]), ProtocolError),
    "another law": (
        lambda m: replace(m, target_probs=np.eye(V, dtype=np.float32)[m.target_probs.argmax()]),
        ProtocolError,
    ),
    "a verdict while drawing": (
        lambda m: Verdict(m.session, m.epoch, m.base, m.prefix, 1, False, None),
        ProtocolError,
    ),
    "tokens while drawing": (
        lambda m: Tokens(m.session, m.epoch, m.base, m.prefix, token_ids=()),
        ProtocolError,
    ),
}
SPLIT = preset("dssd", 2, answer_top=1, answer_tail_draws=0)
STREAM = scheduled("coupled", Schedule(4, 1, decode_when_idle=True))
BAD = [
    *(
        (preset(name, 2), Verdict, bad)
        for name in ("dsd", "dssd-full", "coupled")
        for bad in BAD_VERDICTS
    ),
    *((SPLIT, Verdict, bad) for bad in BAD_VERDICTS),
    *((preset("ar"), Tokens, bad) for bad in BAD_TOKENS),
    *((STREAM, Tokens, bad) for bad in BAD_TOKENS),
    *((SPLIT, FullLaw, bad) for bad in BAD_LAWS),
]
TABLES: dict[type, dict[str, BadFrame]] = {
    Verdict: BAD_VERDICTS,
    Tokens: BAD_TOKENS,
    FullLaw: BAD_LAWS,
}


def state_of(edge: EdgeMachine) -> tuple[Any, ...]:
    """Everything a frame could have changed, but for the sign of life."""
    return (
        edge.phase,
        edge.epoch,
        edge.committed.since(0),
        edge.kv_length,
        repr(edge.stats),
        edge._in_flight.token_ids,
        edge._in_flight.sent,
        edge._recovery.waits,
        edge._work,
    )


@pytest.mark.parametrize(
    ("chosen", "kind", "name"),
    BAD,
    ids=[f"{chosen.name}-{kind.__name__}-{name}" for chosen, kind, name in BAD],
)
def test_bad_frames_change_nothing(chosen: Preset, kind: type, name: str) -> None:
    """And the right frame afterwards is taken as if nothing had been."""
    change, error = TABLES[kind][name]
    tried = 0

    def disturb(edge: EdgeMachine, message: CloudMessage) -> bool:
        nonlocal tried
        if isinstance(message, kind) and edge.phase is Phase.RUNNING:
            before = state_of(edge)
            with pytest.raises(error) as caught:
                edge.receive(change(message), 0.0)
            assert type(caught.value) is error
            assert state_of(edge) == before
            tried += 1
        return True

    calm = Lockstep(chosen, MODELS).run()
    assert Lockstep(chosen, MODELS, to_edge=disturb).run() == calm
    assert tried > 0


@pytest.mark.parametrize(
    "chosen", [*PRESETS.values(), SPLIT, STREAM], ids=lambda chosen: chosen.name
)
def test_a_resync_after_any_bad_frame_gives_the_same_text(chosen: Preset) -> None:
    calm = Lockstep(chosen, MODELS).run()
    for nth in range(12):
        heard = 0

        def break_stream(edge: EdgeMachine, message: CloudMessage, nth: int = nth) -> bool:
            nonlocal heard
            heard += 1
            if heard != nth or edge.phase is not Phase.RUNNING:
                return True
            with pytest.raises(ProtocolError):
                edge.receive(replace(message, session=99), 0.0)
            return False

        assert Lockstep(chosen, MODELS, to_edge=break_stream).run() == calm, nth


def edge_of(
    chosen: Preset,
    lost_cloud: LostCloud = LostCloud.WAIT,
    ends: frozenset[int] = frozenset(),
    max_tokens: int = 12,
) -> EdgeMachine:
    request = request_for(chosen, MODELS, ends=ends, max_tokens=max_tokens)
    return EdgeMachine(request, Liveness(lost_cloud, TIMES, now=0.0))


def draft(edge: EdgeMachine, *token_ids: int) -> list[EdgeOutput]:
    """Do the draft work that is due, with these tokens."""
    work = edge.work(0.0)
    assert work is not None
    return edge.drafted(work, drafts_of(*token_ids), work.position + len(token_ids) - 1, 0.01)


def drafts_of(*token_ids: int) -> list[Drafted]:
    return [Drafted(token_id, LAW) for token_id in token_ids]


def sent(outputs: list[EdgeOutput]) -> list[Any]:
    return [output.message for output in outputs if isinstance(output, Send)]


def verdict_of(
    edge: EdgeMachine, accepted: int, rejected: bool = False, outcome: Any = None
) -> Verdict:
    """A verdict as an honest cloud would send it now."""
    tokens = edge._in_flight.token_ids[:accepted]
    if isinstance(outcome, int):
        tokens += (outcome,)
    return Verdict(
        edge.request.session,
        edge.epoch + rejected,
        len(edge.committed),
        edge.committed.prefix_with(tokens),
        accepted,
        rejected,
        outcome,
    )


def tokens_of(edge: EdgeMachine, *token_ids: int) -> Tokens:
    return Tokens(
        edge.request.session,
        edge.epoch,
        len(edge.committed),
        edge.committed.prefix_with(token_ids),
        token_ids=token_ids,
    )


def frame_of(edge: EdgeMachine) -> tuple[int, int, int, int]:
    return (edge.request.session, edge.epoch, len(edge.committed), edge.committed.prefix)


LAW_OF_TWO = np.array([0.5, 0.5, 0.0], dtype=np.float32)
NOTHING = np.array([], dtype=np.int64)
SPARSE = SparseAnswer(NOTHING, LAW[:0], 1.0, NOTHING, LAW[:0])


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("dsd", FullAnswer(LAW)),
        ("coupled", SPARSE),
        ("dssd", 0),
        ("dssd", FullAnswer(LAW)),
        ("dssd-full", 0),
        ("dssd-full", SPARSE),
        ("dssd-full", FullAnswer(LAW[1:])),
    ],
)
def test_answers_the_preset_does_not_name(name: str, outcome: Outcome) -> None:
    edge = edge_of(preset(name, 2))
    edge.connect(0.0)
    draft(edge, 0, 1)
    before = state_of(edge)
    with pytest.raises(ProtocolError):
        edge.receive(verdict_of(edge, 0, True, outcome), 0.0)
    assert state_of(edge) == before


def test_connecting_opens_at_the_committed_text() -> None:
    edge = edge_of(preset("coupled", 2))
    (opening,) = sent(edge.connect(0.0))
    assert isinstance(opening, Open)
    assert (opening.base, opening.committed_ids, opening.epoch) == (2, (), 0)
    draft(edge, 0, 1)
    edge.receive(verdict_of(edge, 1, True, 2), 0.0)
    assert edge.lost(0.1) == [Reconnect()]
    (again,) = sent(edge.connect(0.2))
    assert (again.base, again.committed_ids, again.epoch) == (4, (0, 2), 1)
    assert again.prefix == edge.committed.prefix
    with pytest.raises(ProtocolError, match="connect in state running"):
        edge.connect(0.3)


def test_drafting_goes_on_without_a_stream_and_is_sent_on_the_next() -> None:
    edge = edge_of(preset("coupled", 2))
    assert draft(edge, 0, 1) == []
    opening, drafted = sent(edge.connect(0.0))
    assert isinstance(opening, Open)
    assert isinstance(drafted, Draft)
    assert (drafted.base, drafted.token_ids, drafted.end_of_chunk) == (2, (0, 1), True)
    edge.lost(0.1)
    assert sent(edge.connect(0.2))[1] == drafted, "what waits for a verdict is sent again"


def test_frames_without_a_stream_are_dropped() -> None:
    edge = edge_of(preset("coupled", 2))
    assert edge.receive(tokens_of(edge, 1), 0.0) == []
    assert len(edge.committed) == 2


def test_one_draft_work_at_a_time() -> None:
    edge = edge_of(preset("coupled", 3))
    edge.connect(0.0)
    work = edge.work(0.0)
    assert work == DraftWork(keep=0, token_ids=(1, 2), position=2, count=3)
    assert edge.work(0.0) is None
    assert work is not None
    assert edge.context(work) == (1, 2)
    for wrong in ((), (0, 0, 0, 0)):
        with pytest.raises(ProtocolError, match="3 drafts wanted"):
            edge.drafted(work, drafts_of(*wrong), 4, 0.0)
    edge.drafted(work, drafts_of(0, 1, 2), 4, 0.0)
    assert edge.work(0.0) is None, "a stop-and-wait window is full"


def test_a_work_cut_short_is_made_whole_before_it_is_sent() -> None:
    """A chunk is a chunk, however the drafting was divided."""
    edge = edge_of(preset("coupled", 3))
    edge.connect(0.0)
    assert draft(edge, 0) == []
    work = edge.work(0.0)
    assert work is not None
    assert (work.keep, work.token_ids, work.position, work.count) == (2, (0,), 3, 2)
    (drafted,) = sent(edge.drafted(work, drafts_of(1, 2), 4, 0.0))
    assert drafted.token_ids == (0, 1, 2)


def test_an_end_of_text_closes_a_chunk_unless_that_would_tell() -> None:
    edge = edge_of(preset("dsd", 4), ends=frozenset({0}))
    edge.connect(0.0)
    work = edge.work(0.0)
    assert work is not None
    assert work.ends == {0}
    (drafted,) = sent(edge.drafted(work, drafts_of(2, 0), 3, 0.0))
    assert drafted.token_ids == (2, 0)
    assert edge.work(0.0) is None, "nothing is drafted after it"

    edge = edge_of(scheduled("dsd", Schedule(4, 4, decode_when_idle=True)), ends=frozenset({0}))
    edge.connect(0.0)
    work = edge.work(0.0)
    assert work is not None
    assert work.ends == frozenset()
    assert edge.drafted(work, drafts_of(2, 0), 3, 0.0) == []
    rest = edge.work(0.0)
    assert rest is not None
    assert rest.count == 2


def test_chunks_go_out_until_the_window_is_full() -> None:
    edge = edge_of(scheduled("coupled", Schedule(4, 2, bonus=False)))
    edge.connect(0.0)
    first, second = sent(draft(edge, 0, 1)), sent(draft(edge, 2, 0))
    assert [frame.base for frame in (*first, *second)] == [2, 4]
    assert second[0].prefix == edge.committed.prefix_with((0, 1))
    assert edge.work(0.0) is None
    edge.receive(verdict_of(edge, 2), 0.0)
    work = edge.work(0.0)
    assert work is not None
    assert (work.position, work.count) == (6, 2)


def test_drafts_do_not_pass_the_length_limit() -> None:
    edge = edge_of(preset("coupled", 8), max_tokens=3)
    edge.connect(0.0)
    work = edge.work(0.0)
    assert work is not None
    assert work.count == 3
    (drafted,) = sent(edge.drafted(work, drafts_of(0, 1, 2), 4, 0.0))
    assert len(drafted.token_ids) == 3


def test_a_refusal_interrupts_the_drafting_that_builds_on_it() -> None:
    edge = edge_of(scheduled("coupled", Schedule(4, 2, bonus=False)))
    edge.connect(0.0)
    draft(edge, 0, 1)
    stale = edge.work(0.0)
    assert stale is not None
    outputs = edge.receive(verdict_of(edge, 1, True, 2), 0.0)
    assert outputs == [Commit((0,)), Interrupt(), Commit((2,))]
    assert edge.epoch == 1
    assert edge.kv_length == 3, "the refused draft is not in the KV any more"
    fresh = edge.work(0.0)
    assert fresh is not None
    assert (fresh.keep, fresh.token_ids, fresh.position) == (3, (2,), 4)
    assert edge.drafted(stale, drafts_of(0, 0), 6, 0.0) == [], "void tokens"
    assert edge.kv_length == 3
    (drafted,) = sent(edge.drafted(fresh, drafts_of(1, 1), 5, 0.0))
    assert (drafted.epoch, drafted.base) == (1, 4)


def test_a_token_of_the_clouds_own_keeps_equal_drafts() -> None:
    edge = edge_of(scheduled("coupled", Schedule(4, 2)))
    edge.connect(0.0)
    draft(edge, 0, 1)
    assert edge.receive(tokens_of(edge, 0), 0.0) == [Commit((0,))]
    assert (edge.epoch, edge._in_flight.token_ids) == (0, (1,))
    assert edge.receive(tokens_of(edge, 2), 0.0) == [Commit((2,))]
    assert (edge.epoch, edge._in_flight.token_ids) == (1, ())


def test_drafts_that_were_never_sent_end_no_epoch() -> None:
    edge = edge_of(scheduled("coupled", Schedule(4, 2)))
    edge.connect(0.0)
    draft(edge, 0)
    edge.receive(tokens_of(edge, 1), 0.0)
    assert (edge.epoch, edge._in_flight.token_ids) == (0, ())


def test_a_drawn_token_is_told_in_the_new_epoch() -> None:
    edge = edge_of(preset("dssd-full", 2))
    edge.connect(0.0)
    draft(edge, 0, 1)
    target = np.array([0.0, 0.0, 1.0], dtype=np.float32)
    outputs = edge.receive(verdict_of(edge, 0, True, FullAnswer(target)), 0.0)
    assert edge.committed.since(2) == (2,)
    assert sent(outputs) == [Recovered(7, 1, 2, PrefixedTokens((1, 2)).prefix, token_id=2)]


def test_nothing_is_drafted_or_sent_on_what_was_refused() -> None:
    """While the edge waits for the full law, what it drafted ahead is void already."""
    chosen = replace(SPLIT, schedule=Schedule(6, 2, bonus=False))
    edge = edge_of(chosen)
    edge.connect(0.0)
    draft(edge, 0, 1)
    ahead = edge.work(0.0)
    assert ahead is not None
    (need,) = sent(edge.receive(verdict_of(edge, 0, True, SPARSE), 0.0))
    assert isinstance(need, NeedFullLaw)
    assert (need.epoch, need.base) == (1, 2)
    assert edge.drafted(ahead, drafts_of(2, 2), 5, 0.0) == []
    assert edge.work(0.0) is None
    assert edge.receive(GoingAway(*frame_of(edge), grace_s=1.0), 0.0) == []
    answer = FullLaw(7, 1, 2, edge.committed.prefix, target_probs=LAW_OF_TWO)
    outputs = edge.receive(answer, 0.0)
    assert isinstance(sent(outputs)[0], Recovered)
    assert outputs[-1] == Reconnect()


def test_a_silent_cloud_is_pinged_once_then_lost() -> None:
    edge = edge_of(preset("ar"))
    edge.connect(0.0)
    assert edge.tick(0.9) == []
    (ping,) = sent(edge.tick(1.0))
    assert isinstance(ping, Ping)
    assert edge.tick(2.0) == []
    edge.receive(Pong(*frame_of(edge), nonce=ping.nonce), 2.5)
    assert edge.tick(3.4) == []
    (second,) = sent(edge.tick(3.5))
    assert second.nonce != ping.nonce
    assert edge.tick(5.5) == [Reconnect()]
    assert edge.stats.links_lost == 1
    assert edge.stats.loss_noticed_s == pytest.approx(3.0)


def test_giving_up_also_when_streams_open_that_stay_silent() -> None:
    edge = edge_of(preset("ar"), LostCloud.FAIL)
    edge.connect(0.0)
    now_s = 0.0
    outputs: list[EdgeOutput] = []
    while edge.phase is not Phase.DONE:
        now_s += 0.5
        outputs = edge.tick(now_s)
        if edge.phase is Phase.CONNECTING:
            edge.connect(now_s)
    assert now_s == 10.0
    assert outputs[-1] == Finish(FinishReason.ERROR)


def test_alone_the_edge_commits_what_it_drafted() -> None:
    edge = edge_of(preset("coupled", 2), LostCloud.EDGE, max_tokens=20)
    edge.connect(0.0)
    draft(edge, 0, 1)
    outputs = edge.tick(10.0)
    assert Commit((0, 1), unverified=True) in outputs
    assert edge.phase is Phase.ALONE
    work = edge.work(10.0)
    assert work is not None
    assert (work.keep, work.token_ids, work.position, work.count) == (3, (1,), 4, ALONE_CHUNK)
    tokens = (2,) * ALONE_CHUNK
    assert edge.drafted(work, drafts_of(*tokens), 11, 0.0) == [Commit(tokens, unverified=True)]
    assert edge.stats.unverified_tokens == 2 + ALONE_CHUNK
    assert edge.lost(11.0) == edge.tick(11.0) == []


def test_a_method_without_drafts_drafts_alone() -> None:
    edge = edge_of(preset("ar"), LostCloud.EDGE, ends=frozenset({2}))
    edge.connect(0.0)
    assert edge.work(0.0) is None
    edge.tick(10.0)
    work = edge.work(10.0)
    assert work is not None
    assert work.ends == {2}
    outputs = edge.drafted(work, drafts_of(0, 2), 3, 0.0)
    assert outputs == [Commit((0, 2), unverified=True), Finish(FinishReason.STOP)]


def test_cancelling() -> None:
    edge = edge_of(preset("coupled", 2))
    edge.connect(0.0)
    edge.work(0.0)
    outputs = edge.cancel()
    assert [type(output) for output in outputs] == [Send, Interrupt, Finish]
    assert isinstance(sent(outputs)[0], Cancel)
    assert edge.finish_reason is FinishReason.CANCELLED
    assert edge.cancel() == []
    assert edge.work(0.0) is None
    assert edge.tick(99.0) == []


def test_a_going_cloud_is_left_between_rounds() -> None:
    edge = edge_of(preset("coupled", 2))
    edge.connect(0.0)
    draft(edge, 0, 1)
    assert edge.receive(GoingAway(*frame_of(edge), grace_s=1.0), 0.0) == []
    assert edge.work(0.0) is None, "no new round"
    outputs = edge.receive(verdict_of(edge, 2, outcome=0), 0.0)
    assert outputs == [Commit((0, 1)), Commit((0,)), Reconnect()]
    assert edge.phase is Phase.CONNECTING
    assert (edge.stats.departures, edge.stats.links_lost) == (1, 0)


def test_drafts_ready_while_the_cloud_goes_wait_for_the_next() -> None:
    edge = edge_of(scheduled("coupled", Schedule(4, 2, bonus=False)))
    edge.connect(0.0)
    draft(edge, 0, 1)
    work = edge.work(0.0)
    assert work is not None
    edge.receive(GoingAway(*frame_of(edge), grace_s=1.0), 0.0)
    assert edge.drafted(work, drafts_of(2, 2), 5, 0.0) == []
    assert edge.receive(verdict_of(edge, 2), 0.0) == [Commit((0, 1)), Reconnect()]
    _, drafted = sent(edge.connect(0.1))
    assert (drafted.base, drafted.token_ids) == (4, (2, 2))


def test_an_idle_edge_leaves_a_going_cloud_at_once() -> None:
    edge = edge_of(preset("ar"))
    edge.connect(0.0)
    assert edge.receive(GoingAway(*frame_of(edge), grace_s=1.0), 0.0) == [Reconnect()]


@pytest.mark.parametrize("chosen", [*PRESETS.values(), STREAM], ids=lambda chosen: chosen.name)
def test_the_target_model_says_what_ends_a_text(chosen: Preset) -> None:
    """The draft model may think otherwise: both ends stop by the cloud's word."""
    models = model_pair(5, sharpness=2.0)
    ended = 0
    for seed in range(12):
        whole = Lockstep(chosen, models, seed=seed).run()
        told = Lockstep(chosen, models, seed=seed, target_ends=frozenset({0}))
        text = told.run()
        assert text == whole[: len(text)]
        assert 0 not in text[:-1]
        assert (text[-1] == 0) == (told.edge.finish_reason is FinishReason.STOP)
        ended += text[-1] == 0
        mistaken = Lockstep(chosen, models, seed=seed, ends=frozenset({0}), target_ends=frozenset())
        assert len(mistaken.run()) == 12
    assert ended > 3


def test_opened_changes_nothing_when_ends_are_ignored() -> None:
    request = replace(request_for(preset("ar"), MODELS), ignore_eos=True)
    edge = EdgeMachine(request, Liveness(LostCloud.WAIT, TIMES, now=0.0))
    edge.connect(0.0)
    opened = Opened(*frame_of(edge), 8, 64, frozenset({0}), "scripted")
    assert edge.receive(opened, 0.0) == []
    assert edge.receive(tokens_of(edge, 0), 0.0) == [Commit((0,))]
    assert edge.phase is Phase.RUNNING
