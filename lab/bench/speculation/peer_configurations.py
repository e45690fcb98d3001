"""Who answers in a comparison: a preset of a running suite, or a policy of another program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from lab.bench.harness.peer_process import PeerProcess
from lab.bench.harness.report import Row, make_row
from lab.bench.harness.suite import Suite
from lab.bench.harness.workload import answers_row, one_after_another, requests
from lab.machine import pin
from tandem.core.probs import SamplingParams
from tandem.generation.client import Generated
from tandem.net.process import run_loop

THREADS = (1, 2)


@dataclass(slots=True)
class TandemConfiguration:
    """A preset of the running suite, with further choices of it; `threads` names the cores that
    the two sides have."""

    suite: Suite
    preset: str
    draft_length: int | None
    temperature: float
    overrides: tuple[str, ...] = ()
    threads: str = "1 + 1"
    answers: list[Generated] = field(default_factory=list)

    def take_turn(self, texts: Sequence[str], max_tokens: int, seed: int) -> None:
        sampling = SamplingParams(temperature=self.temperature)
        options = (self.preset, self.draft_length, max_tokens, seed, sampling, self.overrides)
        pin(0, self.suite.edge_cores)
        self.answers += run_loop(one_after_another(self.suite, requests(texts, *options)))

    def row(self) -> Row:
        row = answers_row(self.preset, self.draft_length, self.answers)
        return row | {"method": self.preset, "threads": self.threads}


@dataclass(slots=True)
class PeerConfiguration:
    """A policy of a peer; None is the target alone. `methods` names what it does alone, with a
    draft model, and by looking drafts up."""

    peer: PeerProcess
    threads: int
    policy: int | str | dict[str, int] | None
    temperature: float
    methods: tuple[str, str, str] = ("hf-plain", "hf-assisted", "hf-lookup")
    answers: list[dict[str, Any]] = field(default_factory=list)

    def take_turn(self, texts: Sequence[str], max_tokens: int, seed: int) -> None:
        self.answers.append(
            self.peer.answer(
                {
                    "prompts": list(texts),
                    "max_tokens": max_tokens,
                    "temperature": self.temperature,
                    "seed": seed,
                    "assistant": self.policy,
                }
            )
        )

    def row(self) -> Row:
        sums = {name: sum(answer[name] for answer in self.answers) for name in _SUMMED}
        first_s = [moment for answer in self.answers for moment in answer["first_s"]]
        tokens = sums["tokens"]
        drafted = sums["drafted"]
        alone, assisted, looking_up = self.methods
        # A pass yields its accepted drafts and one token more.
        accepted = tokens - sums["target_passes"]
        return make_row(
            preset=None,
            method=alone
            if self.policy is None
            else looking_up
            if isinstance(self.policy, dict)
            else assisted,
            draft_length=self.policy["lookup"] if isinstance(self.policy, dict) else self.policy,
            threads=self.threads,
            tokens_per_s=tokens / sums["duration_s"],
            tpot_s=sums["decoding_s"] / (tokens - len(first_s)),
            ttft_s=median(first_s),
            acceptance_rate=accepted / drafted if drafted else None,
            target_passes_per_token=sums["target_passes"] / tokens,
            prompts=len(first_s),
            tokens=tokens,
        )


_SUMMED = ("tokens", "duration_s", "decoding_s", "target_passes", "drafted")
