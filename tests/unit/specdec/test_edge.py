"""The edge's machine on its own: how drafting, sending and committing start and stop."""

from dataclasses import replace

import numpy as np
import pytest

from tandem.control.estimates import Estimates
from tandem.control.latency_aware import LatencyAware
from tandem.control.least_cost import LeastCost
from tandem.core.errors import FailedPrecondition, ProtocolError
from tandem.core.sparse_payload import FullPayload
from tandem.core.stopping import FinishReason
from tandem.core.tokens import PrefixedTokens, TokenSource
from tandem.specdec.choices import CloudDrafts, Control, Schedule
from tandem.specdec.edge import ALONE_CHUNK, EdgeMachine
from tandem.specdec.events import (
    Commit,
    DraftTask,
    EdgeOutput,
    Finish,
    Interrupt,
    Reconnect,
    Send,
)
from tandem.specdec.liveness import Liveness, LostCloud, Phase
from tandem.specdec.messages import (
    Cancel,
    Drafts,
    GoingAway,
    Open,
    Opened,
    Ping,
    Pong,
    Work,
)
from tandem.specdec.presets import PRESETS
from tandem.specdec.proposers import NO_TEXTS, DraftSource
from tandem.specdec.rounds.messages import (
    FullDistribution,
    NeedFullDistribution,
    Recovered,
)
from tandem.specdec.text import CommittedText
from tests.long_runs import with_long_cases
from tests.virtual_time.cases import model_pair, preset, scheduled
from tests.virtual_time.edge_frames import (
    MODELS,
    SPARSE,
    SPLIT,
    STREAM,
    TIMES,
    connected,
    draft,
    drafts_in_flight,
    drafts_of,
    edge_of,
    frame_of,
    opened_for,
    sent,
    task_of,
    tokens_of,
    verdict_of,
)
from tests.virtual_time.lockstep import Lockstep, request_for

PROBS_OF_TWO = np.array([0.5, 0.5, 0.0], dtype=np.float32)


def estimates_of(edge: EdgeMachine) -> Estimates:
    controller = edge.controller
    assert isinstance(controller, LatencyAware | LeastCost)
    return controller.estimates


def test_connecting_opens_at_the_committed_text() -> None:
    edge = edge_of(preset("coupled", 2))
    (opening,) = sent(edge.connect(0.0))
    assert isinstance(opening, Open)
    assert (opening.base, opening.committed_ids) == (2, ())
    draft(edge, 0, 1)
    edge.receive(verdict_of(edge, 1, True, 2), 0.0)
    assert edge.lost(0.1) == [Reconnect()]
    (again,) = sent(edge.connect(0.2))
    assert (again.base, again.committed_ids) == (4, (0, 2))
    assert again.prefix_hash == edge.committed.prefix
    with pytest.raises(ProtocolError, match="connect in state running"):
        edge.connect(0.3)


def test_drafting_goes_on_without_a_stream_and_is_sent_on_the_next() -> None:
    edge = edge_of(preset("coupled", 2))
    assert draft(edge, 0, 1) == []
    opening, drafted = sent(edge.connect(0.0))
    assert isinstance(opening, Open)
    assert isinstance(drafted, Drafts)
    assert (drafted.base, drafted.token_ids, drafted.end_of_chunk) == (2, (0, 1), True)
    edge.lost(0.1)
    assert sent(edge.connect(0.2))[1] == drafted, "what waits for a verdict is sent again"


def test_frames_without_a_stream_are_dropped() -> None:
    edge = edge_of(preset("coupled", 2))
    assert edge.receive(tokens_of(edge, 1), 0.0) == []
    assert len(edge.committed) == 2


def test_one_draft_work_at_a_time() -> None:
    edge = connected(preset("coupled", 3))
    work = edge.work(0.0)
    assert work == DraftTask(keep=0, token_ids=(1, 2), position=2, count=3)
    assert edge.work(0.0) is None
    assert work is not None
    assert edge.context(work) == (1, 2)
    for wrong in ((), (0, 0, 0, 0)):
        with pytest.raises(ProtocolError, match="3 drafts expected"):
            edge.drafted(work, drafts_of(*wrong), 4, 0.0, 0.0)
    edge.drafted(work, drafts_of(0, 1, 2), 4, 0.0, 0.0)
    assert edge.work(0.0) is None, "a stop-and-wait window is full"


def test_a_rejection_interrupts_the_drafting_that_builds_on_it() -> None:
    edge = connected(scheduled("coupled", Schedule(4, 2, bonus=False)))
    draft(edge, 0, 1)
    stale = task_of(edge)
    outputs = edge.receive(verdict_of(edge, 1, True, 2), 0.0)
    assert outputs == [Commit((0,)), Interrupt(stale), Commit((2,))]
    assert edge.kv_length == 3, "the rejected draft is not in the KV any more"
    fresh = task_of(edge)
    assert (fresh.keep, fresh.token_ids, fresh.position) == (3, (2,), 4)
    assert edge.drafted(stale, drafts_of(0, 0), 6, 0.0, 0.0) == [], "void tokens"
    assert edge.kv_length == 3
    (drafted,) = sent(edge.drafted(fresh, drafts_of(1, 1), 5, 0.0, 0.0))
    assert drafted.base == 4


def test_a_token_of_the_clouds_own_keeps_equal_drafts() -> None:
    edge = connected(scheduled("coupled", Schedule(4, 2)))
    draft(edge, 0, 1)
    assert edge.receive(tokens_of(edge, 0), 0.0) == [Commit((0,))]
    assert drafts_in_flight(edge) == (1,)
    assert edge.receive(tokens_of(edge, 2), 0.0) == [Commit((2,))]
    assert not drafts_in_flight(edge)


def test_a_drawn_token_is_sent_after_the_text_before_it() -> None:
    edge = connected(preset("dssd-full", 2))
    draft(edge, 0, 1)
    target = np.array([0.0, 0.0, 1.0], dtype=np.float32)
    outputs = edge.receive(verdict_of(edge, 0, True, FullPayload(target)), 0.0)
    assert edge.committed.since(2) == (2,)
    assert sent(outputs) == [Recovered(7, 2, PrefixedTokens((1, 2)).prefix, token_id=2)]


def test_nothing_is_drafted_or_sent_on_what_was_rejected() -> None:
    """While the edge waits for the full distribution, what it drafted ahead is void already."""
    chosen = replace(SPLIT, schedule=Schedule(6, 2, bonus=False))
    edge = connected(chosen)
    draft(edge, 2, 1)
    ahead = task_of(edge)
    (need,) = sent(edge.receive(verdict_of(edge, 0, True, SPARSE), 0.0))
    assert isinstance(need, NeedFullDistribution)
    assert need.base == 2
    assert edge.drafted(ahead, drafts_of(2, 2), 5, 0.0, 0.0) == []
    assert edge.work(0.0) is None
    assert edge.receive(GoingAway(*frame_of(edge)), 0.0) == []
    answer = FullDistribution(7, 2, edge.committed.prefix, target_probs=PROBS_OF_TWO)
    outputs = edge.receive(answer, 0.0)
    assert isinstance(sent(outputs)[0], Recovered)
    assert outputs[-1] == Reconnect(lost=False)


def time_passes(edge: EdgeMachine, from_s: float, to_s: float) -> list[EdgeOutput]:
    """What the ticks after `from_s` bring, five a second, the last at `to_s`."""
    steps = round(5 * (to_s - from_s))
    return [output for left in reversed(range(steps)) for output in edge.tick(to_s - left / 5)]


def test_a_silent_cloud_is_pinged_once_then_lost() -> None:
    edge = connected(preset("ar"))
    assert time_passes(edge, 0.0, 0.8) == []
    (ping,) = sent(edge.tick(1.0))
    assert isinstance(ping, Ping)
    assert time_passes(edge, 1.0, 2.4) == []
    edge.receive(Pong(*frame_of(edge), nonce=ping.nonce), 2.5)
    assert time_passes(edge, 2.4, 3.4) == []
    (second,) = sent(time_passes(edge, 3.4, 3.6))
    assert second.nonce != ping.nonce
    assert time_passes(edge, 3.6, 5.4) == []
    assert edge.tick(5.5) == [Reconnect()]
    assert edge.stats.links_lost == 1
    assert edge.stats.loss_noticed_s == pytest.approx(3.0)
    edge.connect(6.0)
    edge.lost(6.5)
    assert edge.stats.links_lost == 2
    assert edge.stats.loss_noticed_s == pytest.approx(3.0), "the longest silence"


@pytest.mark.parametrize("name", ["auto", "coupled", "dsd", "ar", "stream"])
@pytest.mark.parametrize("policy", LostCloud)
def test_a_cloud_that_answers_pings_alone_is_lost(name: str, policy: LostCloud) -> None:
    """It held the request to its deadline, whatever the policy."""
    edge = edge_of(PRESETS[name], policy, max_tokens=40, opened=False)
    pongs: list[int] = []
    streams = 0
    for step in range(3_000):  # ten minutes
        now = step / 5
        if edge.phase is Phase.CONNECTING:
            streams += 1
            outputs = edge.connect(now)
            opened = Opened(*frame_of(edge), 8, frozenset({0}), "scripted")
            outputs += edge.receive(opened, now)
        else:
            outputs = edge.tick(now)
        while (task := edge.work(now)) is not None:
            drafts = drafts_of(*range(1, task.count + 1))
            outputs += edge.drafted(task, drafts, task.position + task.count - 1, 0.01, now)
        pongs += [each.nonce for each in sent(outputs) if isinstance(each, Ping)]
        while pongs and edge.phase is Phase.RUNNING:
            edge.receive(Pong(*frame_of(edge), nonce=pongs.pop()), now)
        if edge.phase is Phase.DONE:
            break
    if policy is LostCloud.WAIT:
        assert edge.phase is Phase.RUNNING
        assert streams > 2
    else:
        assert streams == 2
        ends = FinishReason.LENGTH if policy is LostCloud.EDGE else FinishReason.ERROR
        assert edge.finish_reason is ends


@pytest.mark.parametrize("drafts", [1, 4])
def test_a_cloud_that_waits_for_the_rest_of_a_chunk_owes_no_answer(drafts: int) -> None:
    """As beside a draft model whose engine embeds somebody's images for a minute."""
    edge = connected(PRESETS["picospec-preverify"], LostCloud.FAIL, max_tokens=40, opened=False)
    edge.receive(Opened(*frame_of(edge), 8, frozenset({0}), "scripted"), 0.1)
    task = task_of(edge, 0.1)
    for number in range(drafts):
        edge.drafted(task, drafts_of(1), task.position + number, 0.01, 0.1)
    for tick in range(1, 2_000):
        now = tick / 5
        asked = [each for each in sent(edge.tick(now)) if isinstance(each, Ping)]
        for ping in asked:
            edge.receive(Pong(*frame_of(edge), nonce=ping.nonce), now)
    lost = drafts == 4
    assert (edge.phase is not Phase.RUNNING) is lost


def test_alone_the_edge_commits_what_it_drafted() -> None:
    edge = connected(preset("coupled", 2), LostCloud.EDGE, max_tokens=20)
    draft(edge, 0, 1)
    outputs = time_passes(edge, 0.0, 10.0)
    assert Commit((0, 1), unverified=True) in outputs
    assert edge.phase is Phase.ALONE
    work = task_of(edge, 10.0)
    assert (work.keep, work.token_ids, work.position, work.count) == (3, (1,), 4, ALONE_CHUNK)
    tokens = (2,) * ALONE_CHUNK
    assert edge.drafted(work, drafts_of(*tokens), 11, 0.0, 0.0) == [Commit(tokens, unverified=True)]
    assert edge.stats.unverified_tokens == 2 + ALONE_CHUNK
    assert edge.lost(11.0) == edge.tick(11.0) == []


def predict(edge: EdgeMachine, *token_ids: int) -> list[EdgeOutput]:
    """Do the draft work that is due, with these tokens of the caller's prediction."""
    work = task_of(edge)
    drafts = drafts_of(*token_ids, source=DraftSource.PREDICTION)
    return edge.drafted(work, drafts, work.keep, 0.0, 0.0)


def test_alone_nothing_is_committed_that_the_caller_predicted() -> None:
    """Nobody but the caller has said it: the draft model drafts all that was in flight again."""
    chosen = scheduled("coupled", Schedule(4, 2, bonus=False))
    edge = connected(chosen, LostCloud.EDGE, max_tokens=20, predicted=(1, 1))
    draft(edge, 0, 2)
    predict(edge, 1, 1)
    assert drafts_in_flight(edge) == (0, 2, 1, 1)
    outputs = time_passes(edge, 0.0, 10.0)
    assert not [output for output in outputs if isinstance(output, Commit)]
    work = task_of(edge, 10.0)
    assert (work.position, edge.texts(work), edge.predicts) == (2, NO_TEXTS, False)
    assert (work.keep, work.token_ids) == (1, (2,)), "a pass needs a token to feed"
    assert (edge.stats.accepted_prediction_tokens, edge.stats.rejected_prediction_tokens) == (0, 2)


def test_tokens_of_the_prediction_are_counted_as_they_end() -> None:
    edge = connected(preset("coupled", 3), max_tokens=20, predicted=(0, 1, 2, 0, 1))
    assert edge.predicts
    predict(edge, 0, 1, 2)
    assert edge.kv_length == 0, "no model was fed for them"
    edge.receive(verdict_of(edge, 2, True, 1), 0.0)
    assert (edge.stats.accepted_prediction_tokens, edge.stats.rejected_prediction_tokens) == (2, 1)
    draft(edge, 0, 0, 0)
    edge.receive(verdict_of(edge, 3), 0.0)
    counted = (edge.stats.accepted_prediction_tokens, edge.stats.rejected_prediction_tokens)
    assert counted == (2, 1), "the draft model's own are not among them"


def test_the_cloud_s_own_token_may_confirm_a_predicted_one() -> None:
    edge = connected(STREAM, predicted=(0, 1))
    predict(edge, 0)
    edge.receive(tokens_of(edge, 0), 0.0)
    assert (edge.stats.accepted_prediction_tokens, edge.stats.rejected_prediction_tokens) == (1, 0)
    predict(edge, 1)
    edge.receive(tokens_of(edge, 2), 0.0)
    assert (edge.stats.accepted_prediction_tokens, edge.stats.rejected_prediction_tokens) == (1, 1)


@pytest.mark.parametrize("name", ["ar", "mc-dsd"])
def test_what_drafts_no_chains_has_no_use_for_a_prediction(name: str) -> None:
    assert not edge_of(preset(name), predicted=(0, 1)).predicts


def test_a_chunk_of_predicted_tokens_may_be_as_long_as_the_cloud_takes() -> None:
    edge = edge_of(preset("coupled", 2), max_tokens=40, predicted=(0, 1) * 20, opened=False)
    (opening,) = sent(edge.connect(0.0))
    assert opening.settings.window == 64
    edge.receive(Opened(*frame_of(edge), 32, frozenset(), "scripted"), 0.0)
    work = task_of(edge)
    assert (work.count, work.max_extra) == (2, 30)
    longer = drafts_of(0, 1, 0, 1, 0, source=DraftSource.PREDICTION)
    (frame,) = sent(edge.drafted(work, longer, 0, 0.0, 0.0))
    assert (frame.token_ids, frame.end_of_chunk) == ((0, 1, 0, 1, 0), True)


def test_what_a_grammar_forces_tells_nothing_of_the_draft_model() -> None:
    edge = connected(preset("coupled", 3), max_tokens=20)
    for model in ((), (1,)):
        work = task_of(edge)
        forced = drafts_of(*(0,) * (3 - len(model)), source=DraftSource.GRAMMAR)
        edge.drafted(work, [*drafts_of(*model), *forced], work.keep, 0.02, 0.0)
        edge.receive(verdict_of(edge, 3, outcome=2), 0.0)
        judged = edge.controller.acceptance.judged
        assert (judged, edge.stats.model_drafts) == (len(model),) * 2
    assert (edge.stats.drafted, edge.stats.forced_tokens) == (6, 5)


def test_a_method_without_drafts_drafts_alone() -> None:
    edge = connected(preset("ar"), LostCloud.EDGE, ends=frozenset({2}))
    assert edge.work(0.0) is None
    time_passes(edge, 0.0, 10.0)
    work = task_of(edge, 10.0)
    assert work.ends == {2}
    outputs = edge.drafted(work, drafts_of(0, 2), 3, 0.0, 0.0)
    assert outputs == [Commit((0, 2), unverified=True), Finish(FinishReason.STOP)]


def test_cancelling() -> None:
    edge = connected(preset("coupled", 2))
    edge.work(0.0)
    outputs = edge.cancel()
    assert [type(output) for output in outputs] == [Send, Interrupt, Finish]
    assert isinstance(sent(outputs)[0], Cancel)
    assert edge.finish_reason is FinishReason.CANCELLED
    assert edge.cancel() == []
    assert edge.work(0.0) is None
    assert edge.tick(99.0) == []


def test_a_going_cloud_is_left_between_rounds() -> None:
    edge = connected(preset("coupled", 2))
    draft(edge, 0, 1)
    assert edge.receive(GoingAway(*frame_of(edge)), 0.0) == []
    assert edge.work(0.0) is None, "no new round"
    outputs = edge.receive(verdict_of(edge, 2, outcome=0), 0.0)
    assert outputs == [Commit((0, 1)), Commit((0,)), Reconnect(lost=False)]
    assert edge.phase is Phase.CONNECTING
    assert (edge.stats.departures, edge.stats.links_lost) == (1, 0)


def test_drafts_ready_while_the_cloud_goes_wait_for_the_next() -> None:
    edge = connected(scheduled("coupled", Schedule(4, 2, bonus=False)))
    draft(edge, 0, 1)
    work = task_of(edge)
    edge.receive(GoingAway(*frame_of(edge)), 0.0)
    assert edge.drafted(work, drafts_of(2, 2), 5, 0.0, 0.0) == []
    assert edge.receive(verdict_of(edge, 2), 0.0) == [Commit((0, 1)), Reconnect(lost=False)]
    _, drafted = sent(edge.connect(0.1))
    assert (drafted.base, drafted.token_ids) == (4, (2, 2))


def test_an_idle_edge_leaves_a_going_cloud_at_once() -> None:
    edge = connected(preset("ar"))
    going = GoingAway(*frame_of(edge))
    assert edge.receive(going, 0.0) == [Reconnect(lost=False)]


ENDED = {**{name: preset(name) for name in PRESETS}, "stream, composed": STREAM}


@pytest.mark.parametrize(
    "name",
    with_long_cases(
        ENDED,
        (
            *("ar", "dsd", "dssd", "mc-dsd", "picospec", "coupled", "fsd", "split"),
            *("cloud-draft", "stream, composed"),
        ),
    ),
)
def test_the_target_model_says_what_ends_a_text(name: str) -> None:
    """The draft model may think otherwise: both ends stop by the cloud's word. `make test` has each
    kind of frames; other presets combine them."""
    chosen = ENDED[name]
    models = model_pair(5, sharpness=2.0)
    ended = 0
    for seed in range(6):
        whole = Lockstep(chosen, models, seed=seed).run()
        lockstep = Lockstep(chosen, models, seed=seed, target_ends=frozenset({0}))
        text = lockstep.run()
        assert text == whole[: len(text)]
        assert 0 not in text[:-1]
        assert (text[-1] == 0) == (lockstep.edge.finish_reason is FinishReason.STOP)
        ended += text[-1] == 0
        mistaken = Lockstep(chosen, models, seed=seed, ends=frozenset({0}), target_ends=frozenset())
        assert len(mistaken.run()) == 12
    assert ended > 1


def test_a_commit_tells_which_tokens_the_edge_had_drafted() -> None:
    edge = connected(preset("coupled", 2))
    draft(edge, 0, 1)
    commits = [
        output
        for output in edge.receive(verdict_of(edge, 1, True, 2), 0.0)
        if isinstance(output, Commit)
    ]
    assert [commit.token_sources for commit in commits] == [
        (TokenSource.DRAFT,),
        (TokenSource.TARGET,),
    ]


def test_tokens_of_the_cloud_tell_which_it_had_drafted() -> None:
    edge = connected(preset("cloud-draft"))
    tokens = replace(
        tokens_of(edge, 0, 1, 2), cloud_accepted=2, work=Work(cloud_drafts=4, target_passes=2)
    )
    commits = [each for each in edge.receive(tokens, 0.0) if isinstance(each, Commit)]
    assert [source for commit in commits for source in commit.token_sources] == [
        TokenSource.CLOUD_DRAFT,
        TokenSource.CLOUD_DRAFT,
        TokenSource.TARGET,
    ]
    assert (edge.stats.cloud_drafted, edge.stats.cloud_accepted) == (4, 2)
    assert (edge.stats.drafted, edge.stats.accepted, edge.stats.target_passes) == (0, 0, 2)


def test_drafts_of_the_cloud_overtake_those_of_the_edge_token_by_token() -> None:
    """Those that agree stay in flight, and those after one that does not are void."""
    edge = connected(replace(STREAM, cloud_drafts=CloudDrafts.MODEL))
    for token_id in (0, 1, 2):
        draft(edge, token_id)
    agree = replace(tokens_of(edge, 0, 1), cloud_accepted=2, work=Work(cloud_drafts=2))
    edge.receive(agree, 0.0)
    assert drafts_in_flight(edge) == (2,)
    differ = replace(tokens_of(edge, 1, 0), cloud_accepted=1, work=Work(cloud_drafts=1))
    edge.receive(differ, 0.0)
    assert not drafts_in_flight(edge)
    assert edge.committed.since(2) == (0, 1, 1, 0)


def test_a_cloud_that_drafts_nothing_itself_is_of_an_older_version() -> None:
    edge = connected(preset("cloud-draft"), opened=False)
    opened = Opened(*frame_of(edge), 64, frozenset(), "target")
    with pytest.raises(FailedPrecondition, match="cloud_drafts"):
        edge.receive(opened, 0.0)
    edge.receive(replace(opened, cloud_drafts=CloudDrafts.MODEL), 0.0)
    assert edge.target_name == "target"


def test_a_chunk_that_takes_too_long_to_draft_leaves_as_it_is() -> None:
    """Else the cloud of a slow device would idle until the whole chunk is there."""
    for draft_s, frames in ((0.4, []), (0.6, [((0,), True)])):
        edge = connected(preset("coupled", 4, control=Control.LATENCY_AWARE))
        edge.controller.chunk_budget_s = 0.5
        work = task_of(edge)
        outputs = edge.drafted(work, drafts_of(0), 2, draft_s, 0.0)
        assert [(frame.token_ids, frame.end_of_chunk) for frame in sent(outputs)] == frames


def test_auto_asks_for_the_round_trip_once_a_second() -> None:
    edge = edge_of(PRESETS["auto"], opened=False)
    assert [type(message) for message in sent(edge.connect(0.0))] == [Open]
    asked = sent(edge.receive(Opened(*frame_of(edge), 8, frozenset({0}), "scripted"), 0.1))
    assert asked == [Ping(*frame_of(edge), nonce=1)]
    assert edge.receive(Pong(*frame_of(edge), nonce=1), 0.13) == []
    assert list(edge.measuring.trips_s) == pytest.approx([0.03])
    assert edge.tick(0.2) == []
    assert [type(message) for message in sent(edge.tick(1.15))] == [Ping]
    assert edge.receive(Pong(*frame_of(edge), nonce=1), 1.16) == [], "of an older ping"
    edge.receive(Pong(*frame_of(edge), nonce=2), 1.17)
    assert estimates_of(edge).rtt_s == pytest.approx(0.02)
    edge.lost(1.3)
    assert sent(edge.connect(1.4))[1:] == []


def test_no_text_comes_before_opened() -> None:
    """Whether the cloud can do what is asked for is checked when it takes the session."""
    edge = connected(preset("cloud-draft"), opened=False)
    before = edge.committed.since(0)
    with pytest.raises(ProtocolError, match="Committed before Opened"):
        edge.receive(tokens_of(edge, 1), 0.1)
    assert edge.committed.since(0) == before
    assert edge.receive(GoingAway(*frame_of(edge)), 0.2) == [Reconnect(lost=False)]
    edge.connect(0.3)
    edge.receive(opened_for(edge), 0.4)
    edge.lost(0.5)
    edge.connect(0.6)
    with pytest.raises(ProtocolError, match="Committed before Opened"):
        edge.receive(tokens_of(edge, 1), 0.7)


def test_opened_comes_once_on_a_stream() -> None:
    edge = connected(PRESETS["auto"], opened=False)
    opened = Opened(*frame_of(edge), 8, frozenset({0}), "scripted")
    edge.receive(opened, 0.1)
    with pytest.raises(ProtocolError, match="a second time"):
        edge.receive(opened, 0.2)
    edge.lost(0.3)
    edge.connect(0.4)
    edge.receive(opened, 0.5)


def test_an_answer_of_many_rounds_remembers_the_last_ones() -> None:
    edge = edge_of(PRESETS["auto"])
    for _ in range(5_000):
        edge.measuring.on_ponged(0.03, 0.0)
    assert len(edge.measuring.trips_s) < 2_000


MEASURED = replace(PRESETS["stream"], control=Control.LATENCY_AWARE)
"""Its controller asks what a draft step takes."""


def text(ignore_eos: bool = False) -> CommittedText:
    return CommittedText(
        (1, 2),
        max_tokens=4,
        eos_token_ids=frozenset({0}),
        ignore_eos=ignore_eos,
        completes_stop=lambda token: token == 9,
    )


def test_an_answer_ends_with_its_last_token_an_end_or_a_stop_string() -> None:
    assert text().append((1, 2)) == ((1, 2), None)
    assert text().append((1, 2, 1, 2, 1)) == ((1, 2, 1, 2), FinishReason.LENGTH)
    assert text().append((1, 0, 1)) == ((1, 0), FinishReason.STOP)
    assert text().append((1, 9, 1)) == ((1, 9), FinishReason.STOP)
    assert text().append((1, 2, 1, 0)) == ((1, 2, 1, 0), FinishReason.STOP)


@pytest.mark.parametrize(("room", "length"), [(2, 2), (4, 4), (9, 4)])
def test_less_room_shortens_an_answer_and_more_does_not_lengthen_it(room: int, length: int) -> None:
    limited = text()
    limited.limit(room)
    assert limited.append((1,) * 9) == ((1,) * length, FinishReason.LENGTH)
    assert len(limited.tokens) == 2 + length


@pytest.mark.parametrize(("kv_length", "measured"), [(19, True), (12, True), (11, False)])
def test_steps_that_few_tokens_were_fed_with_are_measured(kv_length: int, measured: bool) -> None:
    """Eight of the twenty before the first draft at most, however long the text is."""
    long = tuple(number % 3 for number in range(20))
    request = replace(request_for(MEASURED, MODELS, max_tokens=40), prompt_ids=long)
    edge = EdgeMachine(request, Liveness(LostCloud.WAIT, TIMES, now=0.0))
    edge.adopt_prefix(kv_length)
    edge.connect(0.0)
    work = task_of(edge)
    edge.drafted(work, drafts_of(0), 20, 0.01, 0.0)
    assert (estimates_of(edge).draft.value is not None) is measured
