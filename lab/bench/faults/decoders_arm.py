"""Answers from documents while the decoders of both sides cannot keep keys and values on disk.

What they keep is a copy of what they can compute again, so a failing disk may cost nothing but
time: an answer under a fault is the one without it, and so is the one after a restart, which reads
what files there are.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from lab.bench.faults.documents_arm import DiskFault
from lab.bench.faults.fail_points import KINDS, Switches, can_fail
from lab.bench.faults.fleet import PromiseBroken
from lab.bench.faults.suite_members import WholeSuite, side_of, whole_suite
from lab.bench.faults.text_history import OK, Answered
from lab.bench.harness.models import Models
from tandem.generation.client import AggregatorClient
from tandem.generation.request import GenerationRequest
from tandem.net.retriever_client import RetrieverClient, Upload
from tandem.net.status import Rejected
from tandem.specdec.messages import GenerationParams

DECODERS = ("drafter", "verifier")
LOGGED = "keys and values are not kept on disk"
MAX_TOKENS = 8
ANSWER_S = 60.0
NOTICED_S = 20.0
PRESET = "dragon-coupled"


@dataclass(slots=True)
class DecodersArm:
    """A suite of real models, and the answer to each question with whole disks."""

    suite: WholeSuite
    switches: dict[str, Switches]
    answers: list[Answered] = field(default_factory=list)
    undisturbed: dict[int, list[int]] = field(default_factory=dict)
    faults: list[tuple[str, DiskFault]] = field(default_factory=list)
    """With the service."""

    @property
    def breakable(self) -> tuple[str, ...]:
        """What of the disks can be made to fail here."""
        return (*KINDS, "write") if self.switches else ("write",)

    async def disturbed(self, kind: str) -> None:
        """Have both decoders decode a new document while their disks fail in this way, and record
        the fault of each."""
        question = len(self.undisturbed)
        for side in ("device", "cloud"):
            await self._put(side, question)
        before = {name: self._reported(name) for name in DECODERS}
        began_s = time.monotonic()
        try:
            self._break(kind, True)
            await self._ask(question)
            reported_s = {
                name: await self._noticed(name, before[name], began_s) for name in DECODERS
            }
        finally:
            self._break(kind, False)
        over_s = time.monotonic()
        after = await self._ask(question)
        self.undisturbed[question] = after.token_ids
        flows_s = after.arrivals_s[0] - over_s if after.arrivals_s else inf
        for name in DECODERS:
            fault = DiskFault(kind, began_s, over_s, None, reported_s[name], flows_s)
            self.faults.append((name, fault))

    async def restarted(self) -> None:
        """Restart the decoders and ask all questions again: they know what is on their disks."""
        for name in DECODERS:
            await self.suite.fleet.kill(name)
            await self.suite.fleet.start(name)
        for question in self.undisturbed:
            await self._ask(question)

    def _break(self, kind: str, broken: bool) -> None:
        for name in DECODERS:
            if kind == "write":
                self.suite.fleet.limit(name, "file size", 0 if broken else None)
            else:
                self.switches[name].set(kind, broken)

    def _reported(self, name: str) -> int:
        return self.suite.fleet.logged(name, LOGGED)

    async def _noticed(self, name: str, before: int, began_s: float) -> float:
        """Return the seconds from `began_s` until the decoder's log reports the fault. If it does
        not within NOTICED_S, the fault had no effect: return infinity."""
        while time.monotonic() < began_s + NOTICED_S:
            if self._reported(name) > before:
                return time.monotonic() - began_s
            await asyncio.sleep(0.02)
        return inf

    async def _put(self, side: str, question: int) -> None:
        address = self.suite.address(f"{side}-retriever")
        text = f"Question{question} of the {side} has answer {question * 7919 % 1000}. " * 4
        async with RetrieverClient(address) as client:
            async for answer in client.ingest([Upload(f"q{question}", text.encode())]):
                if answer.reason:
                    raise PromiseBroken(f"{answer.document_id} was refused: {answer.reason}")

    async def _ask(self, question: int) -> Answered:
        request = GenerationRequest(
            prompt=f"What is the answer to question{question}?",
            preset=PRESET,
            params=GenerationParams(max_tokens=MAX_TOKENS, seed=question, ignore_eos=True),
            query=f"question{question}",
            documents=1,
        )
        answer = Answered(0, question, time.monotonic())
        self.answers.append(answer)
        try:
            async with AggregatorClient(self.suite.address("aggregator")) as client:
                async for result in client.stream(request, ANSWER_S):
                    answer.arrived(result.token_ids, time.monotonic())
            answer.status = OK
        except Rejected as error:
            answer.status = error.code.name
            answer.why = str(error)
        answer.ended_s = time.monotonic()
        return answer


@asynccontextmanager
async def decoders_arm(place: Path, models: Models) -> AsyncIterator[DecodersArm]:
    """Yield a running suite whose decoders keep keys and values in folders on disks that can be
    made to fail."""
    folders = {name: place / f"{side_of(name)}-kv" for name in DECODERS}
    switches = {
        name: Switches.create(place / f"{name}.switches", folder)
        for name, folder in folders.items()
        if can_fail()
    }
    model = {"drafter": models.draft, "verifier": models.target}
    settings: dict[str, dict[str, object]] = {
        name: {"model": model[name], "document-kv-folder": folders[name]} for name in DECODERS
    }
    async with whole_suite(place, settings, switches=switches) as suite:
        yield DecodersArm(suite, switches)
