"""The expected seconds of a token in rounds (stop and wait), in closed form, for every shape of a
round and every truncation of what is sent of it.

A round drafts layer by layer, sends its drafts as one frame, waits for the verdict, and yields the
drafts on the accepted path and one token more. With A_l the probability that one of the candidates
of layer l is accepted after those above it were, a round of L layers takes

    L·draft + latency + up·(bytes of the frame) + wait + pass(nodes) + down·E[bytes of the verdict]

seconds for 1 + Σ_l A_1·…·A_l tokens. What is truncated off a draft distribution changes acceptance
by at most its mass σ (TSLT, theorem 3.2); see `kept_share`. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul

from tandem.control.conditions import PairTimes
from tandem.control.config import DEFAULT_CONFIG, TINY, ControllerConfig
from tandem.control.link_times import LinkTimes


@dataclass(frozen=True, slots=True)
class RoundSetting:
    """What a round drafts. `widths`: of each layer, the candidates that follow each node; all 1 for
    a chain. `kept`: entries that are kept of a draft distribution before the draw; 0: all."""

    widths: tuple[int, ...]
    kept: int = 0

    @property
    def is_chain(self) -> bool:
        return set(self.widths) == {1}


@dataclass(frozen=True, slots=True)
class CutTail:
    """Means over draft distributions of which some entries are kept: how many are sent, and the
    probability of all others."""

    entries: float
    mass: float


@dataclass(frozen=True, slots=True)
class RoundBytes:
    """Bytes of a round's messages. `node`: of a draft token in a frame; `entry`: of an entry of a
    distribution, of which each expanded node brings one; `verdict` and `rejection`: of the answer
    that accepts all drafts, and of one that rejects."""

    frame: float
    node: float
    entry: float = 0.0
    verdict: float = 0.0
    rejection: float = 0.0


@dataclass(frozen=True, slots=True)
class RoundConditions:
    """What rounds are computed from. Rates are of a node's first candidate where it is the first
    draft of a round, where it is a later one, and of a further candidate after those before it were
    refused. They were measured while a mass of `seen_cut` was truncated; `tails`: what each
    truncation keeps and cuts, by the entries kept, without those that were never seen."""

    pair: PairTimes
    link: LinkTimes
    bytes: RoundBytes
    first_rate: float
    later_rate: float
    further_rate: float = 0.0
    wait_s: float = 0.0
    seen_cut: float = 0.0
    tails: Mapping[int, CutTail] = field(default_factory=dict)


def kept_share(mass: float) -> float:
    """Return the share of acceptance that is left once such a mass is truncated.

    A share of acceptance as large as the mass lies in the tail and is lost. What is left is
    renormalised: where the draft model is less sure of a token than the target, on half of what
    they have in common, acceptance gains as much again. So half is lost of a small mass, and more
    of a large one, which leaves less to gain. With the demo pair `tandem bench truncation` has 0.54
    to 0.78 times the mass for masses of 0.04 to 0.33, and this 0.54 to 0.83."""
    return 1 - mass * min(1.0, 0.5 + mass)


def round_costs(
    widths: Sequence[int],
    kept: int,
    conditions: RoundConditions,
    config: ControllerConfig = DEFAULT_CONFIG,
) -> Iterator[float]:
    """Yield the seconds of a token in rounds of the first layer of `widths`, of the first two, and
    so on."""
    tail = conditions.tails.get(kept, CutTail(0.0, conditions.seen_cut))
    share = kept_share(tail.mass) / max(kept_share(conditions.seen_cut), TINY)
    sizes = conditions.bytes
    tokens = reaches = 1.0
    nodes = expanded = 0
    layer = 1
    for depth, width in enumerate(widths, start=1):
        expanded += layer
        layer *= width
        nodes += layer
        rate = share * (conditions.later_rate if depth > 1 else conditions.first_rate)
        accepts = 1 - (1 - rate) * (1 - share * conditions.further_rate) ** (width - 1)
        reaches *= min(config.surest, max(0.0, accepts))
        tokens += reaches
        up_bytes = sizes.frame + nodes * sizes.node + expanded * tail.entries * sizes.entry
        down_bytes = reaches * sizes.verdict + (1 - reaches) * sizes.rejection
        seconds = depth * conditions.pair.draft_s + conditions.wait_s
        seconds += conditions.pair.verify_s(nodes)
        seconds += conditions.link.exchange_s(up_bytes, down_bytes)
        yield seconds / tokens


@dataclass(frozen=True, slots=True)
class RoundOptions:
    """What is chosen from. `shapes`: widths by layer; `ends_early`: each may also end after any of
    its layers. `sizes`: entries that may be kept of a distribution. `most_nodes`: drafts that a
    frame may bring."""

    shapes: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...] = (0,)
    ends_early: bool = True
    most_nodes: int = 64


def cheapest_round(
    options: RoundOptions, conditions: RoundConditions, config: ControllerConfig = DEFAULT_CONFIG
) -> tuple[RoundSetting, float] | None:
    """Return the setting of least expected cost, and its seconds of a token; None where no shape is
    small enough. Sizes of which no tail was seen are left out."""
    best: tuple[RoundSetting, float] | None = None
    for kept in (size for size in options.sizes if size in conditions.tails):
        for widths in options.shapes:
            nodes = accumulate(accumulate(widths, mul))
            costs = zip(nodes, round_costs(widths, kept, conditions, config), strict=True)
            for depth, (drafts, cost_s) in enumerate(costs, start=1):
                ends = options.ends_early or depth == len(widths)
                if ends and drafts <= options.most_nodes and (best is None or cost_s < best[1]):
                    best = RoundSetting(widths[:depth], kept), cost_s
    return best


def round_cost(
    setting: RoundSetting, conditions: RoundConditions, config: ControllerConfig = DEFAULT_CONFIG
) -> float:
    """Return the seconds of a token with one setting."""
    return list(round_costs(setting.widths, setting.kept, conditions, config))[-1]
