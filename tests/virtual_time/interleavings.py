"""Both machines under every order of events that two streams permit: the edge hands over drafts, a
frame arrives up or down, a pass ends, an exit of one speaks, and the stream may break.

What happens next is chosen by an opponent who sees all that was drawn so far, in either machine and
on the way. `likeliest` plays for it: of every text it gives the largest probability that any way of
choosing can bring about. Where that is the target's own for every text, no order, and no delay that
depends on what was drawn, changes the distribution of the answer: the probabilities of all texts
sum up to one however it chooses.

It knows nothing of how the machines tell live frames from void ones."""

from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from tandem.control.controller import Controller
from tandem.core.randomness import RandomSource
from tandem.specdec.choices import Control
from tandem.specdec.edge_stats import EdgeStats
from tandem.specdec.measuring import Measuring
from tandem.specdec.messages import Work
from tandem.specdec.presets import Preset
from tests.exact import ExactRandom
from tests.virtual_time.cases import ModelPair, TokenIds
from tests.virtual_time.exact_models import NumberPerDecision
from tests.virtual_time.lockstep import Lockstep, Pace
from tests.virtual_time.machine_state import state_of

Texts = dict[TokenIds, Fraction]


class Interleaved(Lockstep):
    """Both machines, and what may happen next to them."""

    def __init__(
        self,
        chosen: Preset,
        models: ModelPair,
        *,
        rng: RandomSource | None = None,
        losses: int = 0,
        **case: Any,
    ) -> None:
        """`losses`: how often the stream breaks at most."""
        pace = Pace(cloud_draft=0)
        super().__init__(chosen, models, rng=rng, pace=pace, **case)
        self._losses = losses
        self._begin()

    def events(self) -> Iterator[str]:
        """What may happen next."""
        yield from (f"draft {number}" for number in range(len(self._drafting)))
        if self._up:
            yield "up"
        if self._down:
            yield "down"
        if self._speaking:
            yield "exit"
        if self._judging:
            yield "pass"
        if self._losses and self.cloud is not None:
            yield "lose"

    def happen(self, event: str) -> None:
        match event.split():
            case ["draft", number]:
                self._hand_over(self._drafting[int(number)])
            case ["up"]:
                self._receive_at_cloud(self._up.popleft()[1])
            case ["down"]:
                self._receive_at_edge(self._down.popleft()[1])
            case ["exit"]:
                self._hear_exit(*self._speaking.pop(0)[1:])
            case ["pass"]:
                assert self._judging is not None
                assert self.cloud is not None
                verification = self._judging[1]
                self._judging, self._speaking = None, []
                self._send_down(self.cloud.complete(verification, Work(verify_s=0.01)))
            case ["lose"]:
                self._losses -= 1
                self._speaking = []
                self._apply(self.edge.lost(0.0))
        self._begin()

    def _begin(self) -> None:
        """Begin the tasks and the pass that are due: what they bring comes when it will."""
        if self.edge.finish_reason is None:
            self._draft_on()
            if self.cloud is not None and self._judging is None:
                self._begin_pass(self.cloud)

    def state(self) -> str:
        """All that decides what may follow."""
        fixed = self.edge.request.preset.control is Control.FIXED
        apart = (EdgeStats, NumberPerDecision, *((Controller, Measuring) if fixed else ()))
        parts = [
            self.edge,
            self.cloud,
            [message for _, message in self._up],
            [message for _, message in self._down],
            [(job.work, job.drafts, job.handed) for job in self._drafting],
            self._judging and self._judging[1],
            [verdict for *_, verdict in self._speaking],
            self._losses,
            self.committed,
        ]
        return repr(state_of(parts, apart))


class Opponent:
    """Looks for the order of events that makes each text likeliest."""

    def __init__(self, chosen: Preset, models: ModelPair, **case: Any) -> None:
        self.states = 0
        """Different states from which the answer may go on in several ways."""
        self._case = chosen, models, case
        self._known: dict[str, Texts] = {}

    def likeliest(self) -> Texts:
        """The largest probability of every text."""
        return self._once_happened((), (), Fraction(1))

    def _once_happened(
        self, events: tuple[str, ...], path: tuple[int, ...], probability: Fraction
    ) -> Texts:
        """The same after these events: the mean over what is drawn at the last of them. `path` was
        drawn before, with this `probability`."""
        mean: defaultdict[TokenIds, Fraction] = defaultdict(Fraction)
        paths = [path]
        while paths:
            drawn = paths.pop()
            chance = ExactRandom(drawn, once=False)
            numbers = NumberPerDecision(chance)
            chosen, models, case = self._case
            machines = Interleaved(chosen, models, rng=numbers, **case)
            for event in events:
                machines.happen(event)
            for depth in range(len(drawn), len(chance.taken)):
                before = tuple(chance.taken[:depth])
                paths += [(*before, branch) for branch in range(1, chance.widths[depth])]
            if machines.edge.finish_reason is not None:
                mean[tuple(machines.committed)] += chance.probability / probability
                continue
            state = machines.state() + repr(numbers.known())
            if state not in self._known:
                self._known[state] = self._from(machines, events, chance)
            for text, mass in self._known[state].items():
                mean[text] += mass * chance.probability / probability
        return dict(mean)

    def _from(self, machines: Interleaved, events: tuple[str, ...], chance: ExactRandom) -> Texts:
        """The same from a state on, whichever event comes next there."""
        best: Texts = {}
        choices = list(machines.events())
        assert choices, f"the machines wait for each other after {events}"
        self.states += len(choices) > 1
        for event in choices:
            texts = self._once_happened((*events, event), tuple(chance.taken), chance.probability)
            for text, mass in texts.items():
                best[text] = max(mass, best.get(text, Fraction(0)))
        return best
