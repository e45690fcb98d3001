"""What a controller hears of the conversation of a request."""

from __future__ import annotations

from tandem.control.controller import Answer, Controller
from tandem.specdec.measuring import Measuring
from tandem.specdec.messages import Committed, Work
from tandem.specdec.observers import Settled
from tandem.specdec.presets import PRESETS
from tandem.specdec.proposers import DraftSource
from tests.virtual_time.edge_frames import MODELS, drafts_of
from tests.virtual_time.lockstep import request_for


class Hears(Controller):
    """Keeps what it hears."""

    on = True

    def __init__(self) -> None:
        super().__init__(PRESETS["auto"].schedule)
        self.answers: list[Answer] = []

    def on_committed(self, answer: Answer, now: float) -> None:
        self.answers.append(answer)


NO_WORK = Work()


def measuring(preset: str) -> Measuring:
    made = Measuring(request_for(PRESETS[preset], MODELS), 0.0)
    made.on_connected(0.0)
    return made


def committed(accepted: int, *token_ids: int, base: int = 7, work: Work = NO_WORK) -> Committed:
    return Committed(7, base, 0, accepted=accepted, token_ids=token_ids, work=work)


def test_a_controller_hears_of_the_draft_model_s_drafts_and_of_tokens_without_any() -> None:
    """A token that the cloud decoded itself is held against the draft in flight, if there is one;
    drafts from a text, and those after a wrong one, tell nothing."""
    auto = measuring("auto")
    auto.controller = hears = Hears()
    work = Work(verify_s=0.05, queue_s=0.01, batch_size=2, target_passes=1, cloud_drafts=3)
    auto.on_committed(committed(0, 1, 2, work=work), Settled(0, False, False), (), 1.0)
    drafts = [*drafts_of(1, source=DraftSource.MEMORY), *drafts_of(2, 1, 2)]
    work = Work(verify_s=0.05, target_passes=2, drafts=2)
    auto.on_committed(committed(2, 2, work=work), Settled(2, True, True), drafts, 1.5)
    auto.on_committed(committed(0, 1, 2), Settled(1, True, False), drafts_of(1, 1), 2.0)
    assert hears.answers == [
        Answer(
            2,
            undrafted=2,
            verify_s=0.05,
            sessions=2,
            rows=3,
            reads_prompt=True,
        ),
        Answer(3, accepted=1, rejected=1, gap_s=0.5, verify_s=0.05, rows=2),
        Answer(2, accepted=1, rejected=1, gap_s=0.5),
    ]
