"""What a session chooses for its next round, by what its rounds so far have shown."""

from __future__ import annotations

from tandem.control.estimates import Estimates
from tandem.control.link_times import LinkEstimate
from tandem.control.round_choice import RoundChooser
from tandem.control.round_cost import RoundOptions, RoundSetting
from tandem.core.tails import Tail

DRAFT_S = 0.024
FIRST_S = 0.072
FURTHER_S = 0.003
CHAINS = RoundOptions(((1,) * 32,))
FOUR = RoundSetting((1,) * 4)
SIZES = (32, 320, 2560)


class Rounds:
    """Rounds of a session whose link and models take declared times."""

    def __init__(
        self, chooser: RoundChooser, rtt_s: float, up_bytes_per_s: float, node_bytes: int
    ) -> None:
        self.chooser = chooser
        self.now = 0.0
        self._estimates = Estimates()
        self._link = LinkEstimate()
        self._rtt_s = rtt_s
        self._up_s = 1 / up_bytes_per_s
        self._node_bytes = node_bytes
        self._link.exchanged(30, 30, rtt_s + 30 * self._up_s)

    def judge(self, ranks: tuple[int, ...], refused: int, carries_probs: bool = False) -> None:
        """Draft, send and hear of one more round."""
        setting = self.chooser.setting
        nodes = len(setting.widths)
        size = 30 + nodes * self._node_bytes
        self._estimates.drafted(nodes, nodes * DRAFT_S, self.now, busy=False, branches=False)
        entries = nodes * setting.kept
        self.chooser.sent(nodes, nodes if carries_probs else 0, entries or nodes, size)
        trip_s = self._rtt_s + size * self._up_s
        pass_s = FIRST_S + nodes * FURTHER_S
        self._estimates.tripped(trip_s, self.now)
        self._estimates.passed(pass_s, nodes, self.now, busy=False)
        self._link.exchanged(size, 40, trip_s)
        self.now += nodes * DRAFT_S + trip_s + pass_s
        self.chooser.judged(ranks, refused, 40)
        self.chooser.choose(self._estimates, self._link, self.now)


def chains(rtt_s: float, up_bytes_per_s: float = 1e9, node_bytes: int = 3) -> Rounds:
    return Rounds(RoundChooser(FOUR, CHAINS), rtt_s, up_bytes_per_s, node_bytes)


def test_rounds_begin_as_the_preset_says() -> None:
    assert RoundChooser(FOUR, CHAINS).setting == FOUR


def test_accepted_drafts_and_a_far_cloud_make_rounds_longer() -> None:
    near, far = chains(rtt_s=0.0), chains(rtt_s=0.3)
    for rounds in (near, far):
        for _ in range(20):
            rounds.judge((0,) * len(rounds.chooser.setting.widths), 0)
    assert len(far.chooser.setting.widths) > 8
    assert len(far.chooser.setting.widths) > len(near.chooser.setting.widths)


def test_refused_drafts_make_rounds_short() -> None:
    rounds = chains(rtt_s=0.03)
    for _ in range(40):
        rounds.judge((), 1)
    assert rounds.chooser.setting == RoundSetting((1,))


def test_a_narrow_uplink_makes_rounds_short_after_a_few() -> None:
    """A whole distribution of 32,000 words takes half a second at 1 Mbit/s."""
    rounds = chains(rtt_s=0.03, up_bytes_per_s=125_000, node_bytes=64_000)
    for _ in range(4):
        rounds.judge((0, 0), 1)
    assert len(rounds.chooser.setting.widths) < 4


def truncating(up_bytes_per_s: float) -> Rounds:
    start = RoundSetting((1,) * 4, 320)
    options = RoundOptions((start.widths,), sizes=SIZES, ends_early=False)
    chooser = RoundChooser(start, options)
    return Rounds(chooser, 0.03, up_bytes_per_s, node_bytes=3 + 3 * 320)


def test_a_truncation_follows_the_uplink_and_the_mass_that_it_cuts_off() -> None:
    tails = (Tail(32, 0.30), Tail(320, 0.10), Tail(2560, 0.01))
    kept = []
    for up_bytes_per_s in (1e9, 40_000):
        rounds = truncating(up_bytes_per_s)
        for _ in range(4):
            rounds.chooser.cut(tails)
            rounds.judge((0, 0), 1, carries_probs=True)
        kept.append(rounds.chooser.setting.kept)
    assert kept == [2560, 32]


def test_what_no_draft_has_shown_is_not_chosen() -> None:
    """Before tails are known, and where a truncation cuts nothing off, there is nothing to gain."""
    rounds = truncating(1e9)
    rounds.judge((0, 0), 1, carries_probs=True)
    assert rounds.chooser.setting.kept == 320
    for _ in range(4):
        rounds.chooser.cut((Tail(1, 0.0),) * 3)
        rounds.judge((0, 0), 1, carries_probs=True)
    assert rounds.chooser.setting.kept == 320


def test_second_candidates_that_are_right_keep_a_tree_wide() -> None:
    trees = RoundOptions(((1,) * 8, (2, 1, 1), (2, 2, 1), (2, 2, 2)))
    wide, narrow = (
        Rounds(RoundChooser(RoundSetting((2, 2, 2)), trees), 0.1, 1e9, 3) for _ in range(2)
    )
    for _ in range(30):
        wide.judge((1,), 2)
        narrow.judge((0, 0), 2)
    assert wide.chooser.setting.widths[0] == 2
    assert narrow.chooser.setting.is_chain


def test_a_shell_that_tells_no_sizes_has_nothing_chosen() -> None:
    chooser = RoundChooser(FOUR, CHAINS)
    for number in range(20):
        chooser.judged((0, 0, 0, 0), 0, 0)
        chooser.choose(Estimates(), LinkEstimate(), float(number))
    assert chooser.setting == FOUR
