"""One answer in virtual time, with its latencies and bytes. Invariant: a pure function of its
arguments; the same seed gives the same answer to the last bit."""

from __future__ import annotations

from dataclasses import dataclass

from tandem.core.errors import InvalidArgument
from tandem.netem.link_model import link_from
from tandem.simulation.model_pair import SimulatedPair
from tandem.simulation.simulator import ModelTimes, simulate
from tandem.simulation.wire_sizes import WireSizes
from tandem.specdec.events import EdgeRequest, EdgeStats
from tandem.specdec.liveness import LivenessTimes
from tandem.specdec.messages import GenerationParams
from tandem.specdec.presets import Preset

NEVER_LOST = LivenessTimes(dead_after_s=3600.0, give_up_after_s=3600.0)
"""These links are not cut; a padded distribution takes longer than the machine would wait."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """Step times of the hardware, and the link: round trip in seconds, 10⁶ bit/s each way."""

    times: ModelTimes
    rtt_s: float = 0.0
    mbps: float | None = None
    jitter_s: float = 0.0
    padded_vocabulary: int | None = None


@dataclass(frozen=True, slots=True)
class SimulatedAnswer:
    """An answer and its cost in virtual time. `ttft_s` and `last_commit_s` count from the request;
    bytes are those of every message; `rejections` counts the verdicts that reject a draft."""

    token_ids: tuple[int, ...]
    ttft_s: float
    last_commit_s: float
    uplink_bytes: int
    downlink_bytes: int
    rejections: int
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
) -> SimulatedAnswer:
    """An answer of exactly `max_tokens` tokens. InvalidArgument names a bad setting."""
    preset = preset.fitted(pair.vocabulary_size)
    preset.validate()
    if not prompt_ids:
        raise InvalidArgument("prompt", "has no tokens")
    if max_tokens < 1:
        raise InvalidArgument("max_tokens", f"must be at least 1, is {max_tokens}")
    if len(prompt_ids) + max_tokens > pair.context_length:
        why = f"{len(prompt_ids)} + {max_tokens} tokens exceed the context of {pair.context_length}"
        raise InvalidArgument("max_tokens", why)
    request = EdgeRequest(
        session=1,
        prompt_ids=prompt_ids,
        vocabulary_hash="simulated",
        vocabulary_size=pair.vocabulary_size,
        params=GenerationParams(
            sampling=pair.sampling, seed=seed, max_tokens=max_tokens, ignore_eos=True
        ),
        preset=preset,
    )
    sizes = WireSizes(preset, pair.vocabulary_size, conditions.padded_vocabulary)
    done = simulate(
        request,
        pair.draft_probs,
        pair.target_probs,
        link_from(conditions.rtt_s, conditions.mbps, conditions.jitter_s, seed),
        conditions.times,
        liveness_times=NEVER_LOST,
        size_of=sizes.size_of,
        exit_distributions=pair.exit_distributions,
        exit_depths=pair.exit_depths or None,
    )
    return SimulatedAnswer(
        done.token_ids,
        ttft_s=done.commits[0][0],
        last_commit_s=done.commits[-1][0],
        uplink_bytes=sizes.uplink_bytes,
        downlink_bytes=sizes.downlink_bytes,
        rejections=sizes.rejections,
        stats=done.stats,
    )
