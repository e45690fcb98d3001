"""Callers whose answers are known beforehand, while services are killed or stopped and the link
goes dead."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from lab.bench.faults.fleet import PromiseBroken
from lab.bench.faults.suite_members import WholeSuite, whole_suite
from lab.bench.faults.text_history import OK, Answered, noticed_s, tokens_again_s
from lab.bench.harness.models import Models
from lab.bench.harness.texts import prompts
from lab.bench.harness.workload import ANSWER_TIMEOUT_S
from tandem.core.probs import SamplingParams
from tandem.generation.client import AggregatorClient
from tandem.generation.request import GenerationRequest
from tandem.net.status import Rejected
from tandem.specdec.liveness import LostCloud
from tandem.specdec.messages import GenerationParams

MODEL = "1:0.3"
"""Of the scripted back end: exact arithmetic, so a resumed text is the same to the last bit."""
PACES = {"verifier": (0.012, 0.001), "drafter": (0.005, 0.0)}
MAX_TOKENS = 120
SETTLE_S = 30.0
TWO_SIDED = "dragon-coupled"
PRESETS = ("coupled", "dssd", "tslt")
REMEMBERING = ("dsd", "dssd", "coupled", "cloud-draft")
"""Presets whose drafts come from earlier texts too, on the edge or in the cloud."""
MEMORY_TOKENS = 100_000
OF_CLOUD = ("verifier", "cloud-aggregator", "link")
"""Whose faults the edge has to notice by itself."""


@dataclass(frozen=True, slots=True)
class ServiceFault:
    """One fault; `over_s` is when its cause had ended, `restart_s` what starting the process again
    took before that."""

    service: str
    kind: str
    began_s: float
    over_s: float
    restart_s: float | None = None


@dataclass(slots=True)
class TextsArm:
    """The suite, its callers and what they got. Use `texts_arm`."""

    suite: WholeSuite
    requests: Sequence[GenerationRequest]
    undisturbed: dict[int, list[int]] = field(default_factory=dict)
    answers: list[Answered] = field(default_factory=list)
    faults: list[ServiceFault] = field(default_factory=list)
    _rests: bool = False

    @property
    def address(self) -> str:
        return self.suite.address("aggregator")

    async def killed(self, service: str, source: random.Random) -> None:
        """Kill the service with SIGKILL at a random moment of running answers, and start it again
        at once."""
        await self._flowing()
        await asyncio.sleep(source.uniform(0.0, 0.5))
        began_s = time.monotonic()
        await self.suite.fleet.kill(service)
        gone_s = time.monotonic()
        over_s = await self.suite.fleet.start(service)
        await self._note(ServiceFault(service, "kill -9", began_s, over_s, over_s - gone_s))

    async def blackholed(self, source: random.Random) -> None:
        """Let nothing pass the link for 1 to 5 s; connections stay open."""
        await self._flowing()
        began_s = time.monotonic()
        self.suite.link.cut()
        try:
            await asyncio.sleep(source.uniform(1.0, 5.0))
        finally:
            self.suite.link.restore()
        await self._note(ServiceFault("link", "blackhole", began_s, time.monotonic()))

    async def stalled(self, service: str, source: random.Random) -> None:
        """Let the service compute and answer nothing for 1 to 5 s; connections stay open."""
        await self._flowing()
        began_s = time.monotonic()
        pid = self.suite.fleet.pid(service)
        os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(source.uniform(1.0, 5.0))
        finally:
            os.kill(pid, signal.SIGCONT)
        await self._note(ServiceFault(service, "stall", began_s, time.monotonic()))

    async def rested(self, reached: Callable[[], bool]) -> None:
        """Let callers ask nothing until `reached` holds: a draft model learns between answers."""
        self._rests = True
        try:
            await _until(reached)
        finally:
            self._rests = False

    async def without_descriptors(self, service: str, source: random.Random) -> None:
        """Let the service open nothing more for a moment, in which a new caller comes."""
        await self._flowing()
        began_s = time.monotonic()
        self.suite.fleet.limit(service, "descriptors", 3)
        try:
            async with AggregatorClient(self.address) as client:
                await self._ask(client, -1, 0)
            await asyncio.sleep(source.uniform(0.2, 0.6))
        finally:
            self.suite.fleet.limit(service, "descriptors", None)
        await self._note(ServiceFault(service, "descriptors", began_s, time.monotonic()))

    def reported_s(self, fault: ServiceFault) -> float | None:
        until_s = min((f.began_s for f in self.faults if f.began_s > fault.began_s), default=inf)
        return noticed_s(self.answers, fault.began_s, until_s, fault.service in OF_CLOUD)

    def flows_s(self, fault: ServiceFault) -> float:
        return tokens_again_s(self.answers, range(len(self.requests)), fault.over_s)

    async def call(self, caller: int, stop: asyncio.Event) -> None:
        """Send the caller's request again and again until `stop` is set."""
        while not stop.is_set():
            async with AggregatorClient(self.address) as client:
                for _ in range(20):
                    while self._rests:
                        await asyncio.sleep(0.05)
                    answer = await self._ask(client, caller, caller)
                    if answer.status != OK:
                        await asyncio.sleep(0.05)
                    if stop.is_set():
                        break

    async def learn(self) -> None:
        """Ask for the text of every request twice while nothing is broken, and keep it. Raises
        PromiseBroken if the two differ: a text must depend on nothing but its request."""
        numbers = range(len(self.requests))
        async with AggregatorClient(self.address) as client:
            first, second = [
                await asyncio.gather(*(self._ask(client, -1, number) for number in numbers))
                for _ in range(2)
            ]
        for one, other in zip(first, second, strict=True):
            if one.status != OK or one.token_ids != other.token_ids:
                ends = [f"{answer.status} {answer.why}".strip() for answer in (one, other)]
                raise PromiseBroken(f"request {one.request} has no fixed answer: {ends}")
            self.undisturbed[one.request] = one.token_ids

    async def _ask(self, client: AggregatorClient, caller: int, request: int) -> Answered:
        answer = Answered(caller, request, time.monotonic())
        self.answers.append(answer)
        try:
            async for result in client.stream(self.requests[request], ANSWER_TIMEOUT_S):
                answer.arrived(result.token_ids, time.monotonic())
                if result.summary is not None:
                    answer.status = OK
                    answer.links_lost = result.summary.links_lost
                    answer.loss_noticed_s = result.summary.loss_noticed_s
                    answer.resumes = result.summary.resumes
        except Rejected as error:
            answer.status = error.code.name
            answer.why = str(error)
        answer.ended_s = time.monotonic()
        return answer

    async def _flowing(self) -> None:
        """Wait until every caller has had tokens of an answer that still runs."""

        def all_flow() -> bool:
            running = {a.caller for a in self.answers if a.ended_s == inf and a.arrivals_s}
            return running >= set(range(len(self.requests)))

        await _until(all_flow)

    async def _note(self, fault: ServiceFault) -> None:
        """Record the fault, and wait until every caller has had a token again."""
        self.faults.append(fault)
        await _until(lambda: self.flows_s(fault) < inf)


@asynccontextmanager
async def texts_arm(
    place: Path, seed: int, learning: Models | None = None
) -> AsyncIterator[TextsArm]:
    """Run the suite, and a caller for each request, while the context is open; the callers end with
    it. The pair is scripted, or `learning`: both sides then remember texts, the draft learns from
    them, and all answers are the target's likeliest, which no draft may change."""
    settings: dict[str, dict[str, object]] = {
        name: {"pace-first-s": first_s, "pace-further-s": more_s}
        for name, (first_s, more_s) in PACES.items()
    }
    if learning is None:
        for flags in settings.values():
            flags |= {"engine": "scripted", "model": MODEL}
        requests = _requests(seed)
    else:
        settings["verifier"] |= {"model": learning.target, "cloud-draft": learning.draft}
        settings["verifier"] |= {"cloud-memory-tokens": MEMORY_TOKENS}
        settings["drafter"] |= {"model": learning.draft, "memory-tokens": MEMORY_TOKENS}
        settings["drafter"] |= {"learn": "true", "learn-folder": place / "learning"}
        requests = _greedy_requests()
    async with whole_suite(place, settings) as suite:
        arm = TextsArm(suite, requests)
        stop = asyncio.Event()
        await arm.learn()
        callers = asyncio.gather(*(arm.call(number, stop) for number in range(len(arm.requests))))
        try:
            yield arm
        finally:
            stop.set()
            await callers


def _requests(seed: int) -> list[GenerationRequest]:
    """Return one request for each preset that waits for a lost cloud, the one of answers from
    documents included, and one that does not wait."""
    plans = [(preset, LostCloud.WAIT) for preset in (*PRESETS, TWO_SIDED)]
    plans.append((PRESETS[0], LostCloud.FAIL))
    return [
        GenerationRequest(
            "A list of things",
            preset,
            GenerationParams(max_tokens=MAX_TOKENS, seed=seed + number, ignore_eos=True),
            lost_cloud=policy,
            overrides=() if preset == TWO_SIDED else ("draft_length=2",),
        )
        for number, (preset, policy) in enumerate(plans)
    ]


def _greedy_requests() -> list[GenerationRequest]:
    params = GenerationParams(
        sampling=SamplingParams(temperature=0.0), max_tokens=MAX_TOKENS, ignore_eos=True
    )
    return [
        GenerationRequest(prompt, preset, params, lost_cloud=LostCloud.WAIT)
        for prompt, preset in zip(prompts(len(REMEMBERING)), REMEMBERING, strict=True)
    ]


async def _until(reached: Callable[[], bool]) -> None:
    """Wait until `reached` holds, at most for SETTLE_S; what was not reached shows in the
    figures."""
    deadline_s = time.monotonic() + SETTLE_S
    while not reached() and time.monotonic() < deadline_s:
        await asyncio.sleep(0.02)
