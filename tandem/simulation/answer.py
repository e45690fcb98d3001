"""One answer in virtual time, with the figures a real one would be measured by.

Invariant: a pure function of its arguments; the same seed gives the same answer to the last bit.
Must not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from tandem.core.errors import InvalidArgument
from tandem.core.laws import Sampling
from tandem.engine.base import Engine
from tandem.netem.link_model import link_from
from tandem.netem.simulator import ModelTimes, simulate
from tandem.policy.presets import Preset
from tandem.protocol.liveness import LivenessTimes
from tandem.protocol.outputs import EdgeRequest, EdgeStats
from tandem.simulation.pair_laws import EngineLaws, ExitLaws, LawOf
from tandem.simulation.wire_sizes import WireSizes

NEVER_LOST = LivenessTimes(dead_after_s=3600.0, give_up_after_s=3600.0)
"""These links are not cut. A padded law takes longer to travel than the machine, which knows the
size of its own, waits for a sign of life."""


@dataclass(frozen=True, slots=True)
class SimulatedPair:
    """Two models over one vocabulary: `context -> law` after `sampling`. The target's early exits,
    if it has any, wait for `exit_depths` of its pass."""

    vocabulary_size: int
    draft_law: LawOf
    target_law: LawOf
    sampling: Sampling
    context_length: int = 1 << 20
    exit_laws: tuple[LawOf, ...] = ()
    exit_depths: tuple[float, ...] = ()


def simulated_pair(draft: Engine, target: Engine, sampling: Sampling) -> SimulatedPair:
    """Two engines as functions of a context. Raises InvalidArgument when their vocabularies
    differ."""
    if draft.vocabulary_hash != target.vocabulary_hash:
        raise InvalidArgument("draft", "its vocabulary is not the target's")
    exits = ExitLaws(target, sampling) if target.exit_depths else None
    return SimulatedPair(
        target.vocabulary_size,
        EngineLaws(draft, sampling),
        EngineLaws(target, sampling),
        sampling,
        min(draft.context_length, target.context_length),
        tuple(exits.exit_law(index) for index in range(len(target.exit_depths))) if exits else (),
        target.exit_depths,
    )


@dataclass(frozen=True, slots=True)
class Conditions:
    """Step times of the hardware, and the link: round trip in seconds, 10⁶ bit/s each way."""

    times: ModelTimes
    rtt_s: float = 0.0
    mbps: float | None = None
    jitter_s: float = 0.0
    padded_vocabulary: int | None = None


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer and its cost in virtual time.

    `ttft_s` and `last_commit_s` count from the request; bytes include every message of the session;
    `refused` counts the verdicts that refuse a draft.
    """

    token_ids: tuple[int, ...]
    ttft_s: float
    last_commit_s: float
    uplink_bytes: int
    downlink_bytes: int
    refused: int
    stats: EdgeStats

    @property
    def tpot_s(self) -> float | None:
        """(last commit − first commit)/(tokens − 1); None for fewer than two tokens."""
        if len(self.token_ids) < 2:
            return None
        return (self.last_commit_s - self.ttft_s) / (len(self.token_ids) - 1)


def simulate_answer(
    preset: Preset,
    pair: SimulatedPair,
    conditions: Conditions,
    prompt_ids: tuple[int, ...],
    max_tokens: int,
    seed: int,
) -> Answered:
    """An answer of exactly `max_tokens` tokens. InvalidArgument names a bad setting."""
    preset = preset.fitted(pair.vocabulary_size)
    preset.validate()
    if not prompt_ids:
        raise InvalidArgument("prompt", "has no tokens")
    if max_tokens < 1:
        raise InvalidArgument("max_tokens", f"must be at least 1, is {max_tokens}")
    if len(prompt_ids) + max_tokens > pair.context_length:
        raise InvalidArgument(
            "max_tokens",
            f"{len(prompt_ids)} + {max_tokens} tokens exceed the context of {pair.context_length}",
        )
    request = EdgeRequest(
        session=1,
        prompt_ids=prompt_ids,
        vocabulary_hash="simulated",
        vocabulary_size=pair.vocabulary_size,
        sampling=pair.sampling,
        seed=seed,
        max_tokens=max_tokens,
        preset=preset,
        ignore_eos=True,
    )
    sizes = WireSizes(preset, pair.vocabulary_size, conditions.padded_vocabulary)
    done = simulate(
        request,
        pair.draft_law,
        pair.target_law,
        link_from(conditions.rtt_s, conditions.mbps, conditions.jitter_s, seed),
        conditions.times,
        liveness_times=NEVER_LOST,
        size_of=sizes.size_of,
        exit_laws=pair.exit_laws,
        exit_depths=pair.exit_depths or None,
    )
    return Answered(
        done.token_ids,
        ttft_s=done.commits[0][0],
        last_commit_s=done.commits[-1][0],
        uplink_bytes=sizes.uplink_bytes,
        downlink_bytes=sizes.downlink_bytes,
        refused=sizes.refused,
        stats=done.stats,
    )
