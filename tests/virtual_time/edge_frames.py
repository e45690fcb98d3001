"""An edge machine by hand, and frames as an honest cloud would send them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tandem.core.sparse_payload import SparsePayload
from tandem.specdec.choices import Schedule
from tandem.specdec.edge import EdgeMachine
from tandem.specdec.events import Drafted, DraftTask, EdgeOutput, Send
from tandem.specdec.liveness import Liveness, LivenessTimes, LostCloud
from tandem.specdec.messages import Committed, Opened, Work
from tandem.specdec.presets import MAX_DRAFT_LENGTH, Preset
from tandem.specdec.proposers import DraftSource
from tests.virtual_time.cases import TokenIds, opposed_pair, preset, scheduled
from tests.virtual_time.lockstep import request_for

MODELS = opposed_pair()
V = MODELS.vocabulary_size
TIMES = LivenessTimes(ping_after_s=1.0, dead_after_s=3.0, give_up_after_s=10.0)
PROBS = np.full(V, 1 / V, dtype=np.float32)
SPLIT = preset("dssd", 2, payload_top=1, payload_tail_draws=0)
STREAM = scheduled("coupled", Schedule(4, 1, decode_when_idle=True))


def edge_of(
    chosen: Preset,
    lost_cloud: LostCloud = LostCloud.WAIT,
    ends: frozenset[int] = frozenset(),
    max_tokens: int = 12,
    predicted: TokenIds | None = None,
    seed: int = 1,
    prompt_ids: TokenIds = (1, 2),
    remembered: Sequence[TokenIds] = (),
    opened: bool = True,
) -> EdgeMachine:
    """An edge; `opened`: the cloud takes each stream of it at once."""
    request = request_for(
        chosen,
        MODELS,
        seed=seed,
        prompt_ids=prompt_ids,
        ends=ends,
        max_tokens=max_tokens,
        predicted=predicted,
        remembered=remembered,
    )
    make = OpenedEdge if opened else EdgeMachine
    return make(request, Liveness(lost_cloud, TIMES, now=0.0))


def connected(chosen: Preset, *others: Any, **options: Any) -> EdgeMachine:
    """An edge, as `edge_of` makes it, on its first stream."""
    edge = edge_of(chosen, *others, **options)
    edge.connect(0.0)
    return edge


class OpenedEdge(EdgeMachine):
    """An edge whose cloud takes each stream at once."""

    def connect(self, now: float) -> list[EdgeOutput]:
        outputs = super().connect(now)
        return [*outputs, *self.receive(opened_for(self), now)]


def opened_for(edge: EdgeMachine) -> Opened:
    """What an honest cloud says first."""
    request = edge.request
    return Opened(
        *frame_of(edge),
        MAX_DRAFT_LENGTH,
        request.eos_token_ids,
        "target",
        cloud_drafts=request.preset.cloud_drafts,
    )


def draft(edge: EdgeMachine, *token_ids: int) -> list[EdgeOutput]:
    """Do the draft work that is due, with these tokens."""
    work = task_of(edge)
    return edge.drafted(work, drafts_of(*token_ids), work.position + len(token_ids) - 1, 0.01, 0.0)


def task_of(edge: EdgeMachine, now: float = 0.0) -> DraftTask:
    """The draft work that is due."""
    task = edge.work(now)
    assert task is not None
    return task


def drafts_of(*token_ids: int, source: DraftSource = DraftSource.MODEL) -> list[Drafted]:
    return [Drafted(token_id, PROBS, source=source) for token_id in token_ids]


def drafts_in_flight(edge: EdgeMachine) -> tuple[int, ...]:
    """The drafts that no message has settled, sent or not; of a tree, its first branch."""
    return edge._drafting.in_flight.token_ids


def sent(outputs: list[EdgeOutput]) -> list[Any]:
    return [output.message for output in outputs if isinstance(output, Send)]


def verdict_of(
    edge: EdgeMachine, accepted: int, rejected: bool = False, outcome: Any = None
) -> Committed:
    """What an honest cloud would commit now that it has judged drafts; `outcome`: the token after
    the accepted ones, or what to draw it from."""
    token_ids = (outcome,) if isinstance(outcome, int) else ()
    tokens = (*drafts_in_flight(edge)[:accepted], *token_ids)
    return Committed(
        edge.request.session,
        len(edge.committed),
        edge.committed.prefix_with(tokens),
        accepted,
        token_ids,
        Work(drafts=accepted + rejected),
        draw_from=None if isinstance(outcome, int) else outcome,
    )


def tokens_of(edge: EdgeMachine, *token_ids: int) -> Committed:
    """Tokens that the cloud made without drafts of the edge."""
    return Committed(
        edge.request.session,
        len(edge.committed),
        edge.committed.prefix_with(token_ids),
        token_ids=token_ids,
    )


def frame_of(edge: EdgeMachine) -> tuple[int, int, int]:
    return (edge.request.session, len(edge.committed), edge.committed.prefix)


NOTHING = np.array([], dtype=np.int64)
SPARSE = SparsePayload(NOTHING, PROBS[:0], 1.0, NOTHING, PROBS[:0])
