"""Chooses, round by round, what a session in stop and wait drafts: how many tokens, in which shape,
and how much of each draft distribution is kept.

Costs are those of `round_cost`, from what the session measures: steps and passes (`Estimates`), its
link (`LinkEstimate`), the bytes of its frames, which candidates were accepted, and the mass that
each truncation would cut off. The setting changes where another one is clearly cheaper.

Exactness. A setting is chosen between rounds, before anything of the next one is drawn, from times,
sizes and outcomes of rounds that are over. The distribution that a draft is drawn from is the one
that it is judged by, whatever was cut off it before. So every token follows the target's
distribution. Under a rule whose text depends on the drafts it depends on the setting too, and so on
times; there a draft must not be sent earlier for what it says (`Preset.timing_dependent`): a random
number that a discarded draft has shown would else decide how its position is judged again.

Invariant: pure, `now` is passed in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf

from tandem.control.config import DEFAULT_CONFIG, ControllerConfig
from tandem.control.estimates import AcceptanceKnown, AcceptanceRate, Estimates
from tandem.control.link_times import LinkEstimate
from tandem.control.round_cost import (
    CutTail,
    RoundBytes,
    RoundConditions,
    RoundOptions,
    RoundSetting,
    cheapest_round,
    round_cost,
)
from tandem.core.tails import Tail


class RoundChooser:
    """One request's. `setting` is that of the next round."""

    def __init__(
        self,
        start: RoundSetting,
        options: RoundOptions,
        *,
        acceptance: AcceptanceKnown | None = None,
        config: ControllerConfig = DEFAULT_CONFIG,
    ) -> None:
        """Begin with a setting, before anything is measured.

        Args:
            start: the preset's own setting.
            options: what is chosen from.
            acceptance: what earlier answers showed of first candidates.
            config: the numbers that are given."""
        self.setting = start
        self.changes = 0
        self._options = options
        self._config = config
        # Around the best setting costs are flat, so noise in a rate costs more than following it
        # late: it is of four times as many drafts as where schedules are compared.
        longer = replace(config, sentence_tokens=4 * config.sentence_tokens)
        self._first = AcceptanceRate(longer, acceptance)
        guess = AcceptanceKnown(config.prior_further_acceptance, config.few_tokens)
        self._further = AcceptanceRate(longer, guess)
        self._node_bytes = _Mean(config.keep)
        self._entry_bytes = _Mean(config.keep)
        self._entries = _Mean(config.keep)
        self._verdict_bytes = _Mean(config.keep)
        self._rejection_bytes = _Mean(config.keep)
        self._tails = {size: _MeanTail(config.keep) for size in options.sizes}
        self._seen_cut = _Mean(config.keep)
        self._chose_at = -inf

    @property
    def wanted_tails(self) -> tuple[int, ...]:
        """The sizes of which tails are wanted, of one draft distribution a round; none where the
        truncation is not chosen."""
        sizes = self._options.sizes
        return sizes if len(sizes) > 1 else ()

    def limit(self, most_nodes: int) -> None:
        """Choose no round of more drafts than that: the cloud would refuse it."""
        self._options = replace(self._options, most_nodes=most_nodes)

    # What happens to rounds.

    def cut(self, tails: Sequence[Tail]) -> None:
        """Record what each of `wanted_tails` would cut off a draft distribution."""
        for size, tail in zip(self.wanted_tails, tails, strict=True):
            self._tails[size].add(tail)

    def sent(self, nodes: int, distributions: int, entries: int, size_bytes: int) -> None:
        """Record a frame of `nodes` drafts. `distributions`: that it carries; `entries`: of all of
        them, where only some are sent, else as many as distributions."""
        payload = max(0.0, size_bytes - self._config.frame_bytes)
        if not distributions:
            self._node_bytes.add(payload / nodes)
            return
        self._entries.add(entries / distributions)
        self._entry_bytes.add(max(0.0, payload - nodes * self._config.token_bytes) / entries)

    def judged(self, ranks: Sequence[int], refused: int, size_bytes: int) -> None:
        """Record a verdict of `size_bytes`. `ranks`: of the drafts on the accepted path, each among
        the candidates of its node; `refused`: candidates after them, none of which was accepted; 0
        where all layers were."""
        for rank in ranks:
            self._add(rank + 1, accepted=True)
        if refused:
            self._add(refused, accepted=False)
        (self._rejection_bytes if refused else self._verdict_bytes).add(size_bytes)
        if (cut := self._tail(self.setting.kept)) is not None:
            self._seen_cut.add(cut.mass)

    def _add(self, candidates: int, *, accepted: bool) -> None:
        """Record a node of which `candidates` were judged, the last one `accepted`."""
        first_accepted = accepted and candidates == 1
        self._first.add(int(first_accepted), int(not first_accepted))
        for candidate in range(2, candidates + 1):
            right = accepted and candidate == candidates
            self._further.add(int(right), int(not right))

    # The choice.

    def choose(self, estimates: Estimates, link: LinkEstimate, now: float) -> None:
        """Choose the setting of the next round, where enough was measured for that."""
        conditions = self._conditions(estimates, link, now)
        if conditions is None or now - self._chose_at < self._config.choose_every_s:
            return
        self._chose_at = now
        choice = cheapest_round(self._options, conditions, self._config)
        if choice is None:
            return
        best, best_s = choice
        used_s = round_cost(self.setting, conditions, self._config)
        if best != self.setting and best_s < (1 - self._config.negligible) * used_s:
            self.setting = best
            self.changes += 1

    def _conditions(
        self, estimates: Estimates, link: LinkEstimate, now: float
    ) -> RoundConditions | None:
        """Return what was measured; None before all of it was."""
        measured = estimates.conditions(now)
        sizes = self._bytes()
        tails = self._known_tails()
        if measured is None or link.times is None or sizes is None or not tails:
            return None
        first_rate, later_rate = self._first.by_position()
        return RoundConditions(
            pair=measured.pair,
            link=link.times,
            bytes=sizes,
            first_rate=first_rate,
            later_rate=later_rate,
            further_rate=self._further.rate,
            wait_s=measured.wait_s,
            seen_cut=self._seen_cut.value or 0.0,
            tails=tails,
        )

    def _bytes(self) -> RoundBytes | None:
        config = self._config
        verdict = self._verdict_bytes.value
        rejection = self._rejection_bytes.value
        if verdict is None and rejection is None:
            return None
        usual = config.frame_bytes
        entry = self._entry_bytes.value
        node = self._node_bytes.value
        if entry is None and node is None:
            return None
        return RoundBytes(
            frame=config.frame_bytes,
            node=config.token_bytes if node is None else node,
            entry=entry or 0.0,
            verdict=usual if verdict is None else verdict,
            rejection=usual if rejection is None else rejection,
        )

    def _known_tails(self) -> Mapping[int, CutTail]:
        """Return what each truncation keeps and cuts, as far as it is known."""
        known = {size: self._tail(size) for size in self._options.sizes}
        return {size: tail for size, tail in known.items() if tail is not None}

    def _tail(self, size: int) -> CutTail | None:
        if not self.wanted_tails:  # its acceptance was measured as it is
            return CutTail(self._entries.value or 0.0, 0.0)
        return self._tails[size].value if size in self._tails else None


class _Mean:
    """A mean in which each value weighs `keep` times as much as the one after it."""

    def __init__(self, keep: float) -> None:
        self._keep = keep
        self._sum = self._weight = 0.0

    @property
    def value(self) -> float | None:
        return self._sum / self._weight if self._weight else None

    def add(self, value: float) -> None:
        self._sum = self._keep * self._sum + value
        self._weight = self._keep * self._weight + 1


class _MeanTail:
    """The mean tail of one truncation."""

    def __init__(self, keep: float) -> None:
        self._entries = _Mean(keep)
        self._mass = _Mean(keep)

    @property
    def value(self) -> CutTail | None:
        entries = self._entries.value
        mass = self._mass.value
        return None if entries is None or mass is None else CutTail(entries, mass)

    def add(self, tail: Tail) -> None:
        self._entries.add(tail.entries)
        self._mass.add(tail.mass)
