"""Answers that survive their callers' connections: nothing is lost, nobody else finds them, and
they are kept for a bounded time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx2
import pytest

from tandem.core.errors import ResourceExhausted
from tandem.gateway.app import GatewaySettings, make_app
from tandem.gateway.event_stream import Write
from tandem.gateway.kept_answers import KeptAnswer, KeptAnswers
from tandem.gateway.server import HttpServer
from tandem.generation.client import Generated
from tandem.generation.request import GenerationRequest
from tandem.net.access_keys import KEY_BYTES, key_line, new_key, parse_keys
from tandem.net.scopes import Scope
from tandem.telemetry.metrics import Metrics, new_registry
from tandem_api.common.v1 import generation_pb2 as pb
from tests.gateway.http_suite import MODEL, TIMEOUT_S, NoTexts, chat_body
from tests.services.scripted_suite import until

CHAT = "/v1/chat/completions"
STREAMS = "/v1/tandem/streams"
RESPONSES = "/v1/responses"
RESUMABLE = chat_body(stream=True, tandem={"resumable": True})
BACKGROUND = {"model": MODEL, "input": "hello", "background": True}
TEXT = "abcdefghij"
OWNER, OTHER = (new_key(bytes([number]) * KEY_BYTES) for number in (7, 8))
KEYS = parse_keys(
    f"{key_line('owner', OWNER, {Scope.GENERATE})}\n{key_line('other', OTHER, {Scope.GENERATE})}"
)
GONE_S = 0.2


@dataclass
class Waiting(NoTexts):
    """Says the first four letters of `TEXT`, and the others once `resumed` is set."""

    resumed: asyncio.Event = field(default_factory=asyncio.Event)
    running: int = 0
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    refusal: Exception | None = None

    def __post_init__(self) -> None:
        self.begun.set()

    async def stream(
        self, request: GenerationRequest, timeout_s: float
    ) -> AsyncGenerator[Generated]:
        await self.begun.wait()
        if self.refusal is not None:
            raise self.refusal
        self.running += 1
        answer = Generated(preset="auto", session="s", prompt_tokens=3)
        try:
            for place, letter in enumerate(TEXT):
                if place == 4:
                    await self.resumed.wait()
                answer.take(pb.Committed(text=letter, token_ids=[place]), 0.0)
                yield answer
            answer.end(pb.Summary(finish_reason="stop", preset="auto", tokens=len(TEXT)), 0.1)
            yield answer
        finally:
            self.running -= 1


@dataclass(frozen=True)
class Served:
    suite: Waiting
    http: httpx2.AsyncClient

    async def begun(self) -> list[str]:
        """The ids of the first three events of a stream, whose connection is closed then."""
        ids = []
        async with self.http.stream("POST", CHAT, json=RESUMABLE) as answer:
            assert answer.status_code == 200
            async for line in answer.aiter_lines():
                if line.startswith("id: "):
                    ids.append(line.removeprefix("id: "))
                if len(ids) == 3:
                    break
        return ids

    async def begun_address(self) -> str:
        """Where a stream that has begun is taken up."""
        return address_of(await self.begun())

    async def idle(self) -> None:
        await self.running(0)

    async def running(self, count: int) -> None:
        """Return once so many answers are under way."""
        await until(lambda: self.suite.running == count)

    async def response(self, number: str, status: str) -> dict[str, Any]:
        """The response once it has this status."""
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                found: dict[str, Any] = (await self.http.get(f"{RESPONSES}/{number}")).json()
                if found["status"] == status:
                    return found
                await asyncio.sleep(0.005)


@asynccontextmanager
async def served(kept_s: float | None = None, keys: bool = False) -> AsyncIterator[Served]:
    suite = Waiting()
    with pytest.MonkeyPatch.context() as patch:
        if kept_s is not None:
            patch.setattr("tandem.gateway.app.KeptAnswers", partial(KeptAnswers, kept_s=kept_s))
        settings = GatewaySettings(keys=(lambda: KEYS) if keys else None)
        app = make_app(suite, Metrics(new_registry(), "device"), settings)
        headers = {"Authorization": f"Bearer {OWNER}"}
        async with (
            HttpServer(app, "127.0.0.1", 0) as server,
            httpx2.AsyncClient(base_url=server.url, headers=headers, timeout=TIMEOUT_S) as http,
        ):
            yield Served(suite, http)
            suite.resumed.set()


def address_of(ids: list[str]) -> str:
    return f"{STREAMS}/{ids[0].rpartition(':')[0]}"


def texts(stream: str) -> str:
    """The text that the events of a chat make up."""
    lines = (line.removeprefix("data: ") for line in stream.splitlines() if "data: " in line)
    chunks = [json.loads(line) for line in lines if line != "[DONE]"]
    choices = (choice for chunk in chunks for choice in chunk["choices"])
    return "".join(choice["delta"].get("content") or "" for choice in choices)


async def test_a_stream_goes_on_without_its_caller_and_is_taken_up_after_the_last_event() -> None:
    async with served() as here:
        ids = await here.begun()
        assert here.suite.running == 1
        here.suite.resumed.set()
        await here.idle()
        address = address_of(ids)
        whole = (await here.http.get(address)).text
        assert texts(whole) == TEXT
        assert whole.endswith("data: [DONE]\n\n")
        rest = (await here.http.get(address, headers={"Last-Event-ID": ids[2]})).text
        assert whole.endswith(rest)
        assert rest == whole[whole.index(f"id: {ids[2]}") :].partition("\n\n")[2]
        assert (await here.http.get(f"{address}?starting_after=2")).text == rest
        of_another = {"Last-Event-ID": "other:2"}
        assert (await here.http.get(address, headers=of_another)).text == whole
        too_long = await here.http.get(address, headers={"Last-Event-ID": "9" * 257})
        assert too_long.status_code == 400
        assert too_long.json()["error"]["param"] == "last_event_id"


async def test_a_stream_is_taken_up_while_it_goes_on_by_several_readers() -> None:
    async with served() as here:
        ids = await here.begun()
        address = address_of(ids)
        readers = [asyncio.create_task(here.http.get(address)) for _ in range(3)]
        await asyncio.sleep(0.05)
        here.suite.resumed.set()
        first, *others = [(await reader).text for reader in readers]
        assert texts(first) == TEXT
        assert others == [first, first]


async def test_what_is_not_to_survive_ends_with_its_connection() -> None:
    async with served() as here:
        body = chat_body(stream=True)
        async with here.http.stream("POST", CHAT, json=body) as answer:
            lines = answer.aiter_lines()
            first = json.loads((await anext(lines)).removeprefix("data: "))
            assert here.suite.running == 1
        await here.idle()
        assert (await here.http.get(f"{STREAMS}/{first['id']}")).status_code == 404


@pytest.mark.parametrize("what", ["stream", "response"])
async def test_nobody_but_its_owner_finds_an_answer(what: str) -> None:
    async with served(keys=True) as here:
        if what == "stream":
            address = await here.begun_address()
        else:
            made = (await here.http.post(RESPONSES, json=BACKGROUND)).json()
            address = f"{RESPONSES}/{made['id']}"
        here.suite.resumed.set()
        stranger = {"Authorization": f"Bearer {OTHER}"}
        refused = await here.http.get(address, headers=stranger)
        unknown = await here.http.get(f"{address[:-4]}0000", headers=stranger)
        assert (refused.status_code, unknown.status_code) == (404, 404)
        assert refused.json()["error"]["code"] == unknown.json()["error"]["code"] == "not_found"
        assert (await here.http.delete(address, headers=stranger)).status_code == 404
        assert (await here.http.get(address)).status_code == 200


async def test_an_answer_that_nobody_reads_ends_and_is_forgotten() -> None:
    async with served(kept_s=GONE_S) as here:
        ids = await here.begun()
        assert here.suite.running == 1
        await here.idle()  # though it would wait for ever
        address = address_of(ids)
        assert (await here.http.get(address)).status_code == 404


async def test_an_answer_is_kept_while_somebody_reads_it() -> None:
    async with served(kept_s=GONE_S) as here:
        ids = await here.begun()
        address = address_of(ids)
        reading = asyncio.create_task(here.http.get(address))
        await asyncio.sleep(3 * GONE_S)
        assert here.suite.running == 1
        here.suite.resumed.set()
        assert texts((await reading).text) == TEXT


async def test_a_key_alone_may_have_all_places_and_two_share_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tandem.gateway.kept_answers.MOST_KEPT", 4)
    other = {"Authorization": f"Bearer {OTHER}"}

    async def asked(**more: Any) -> httpx2.Response:
        return await here.http.post(RESPONSES, json=BACKGROUND, **more)

    async with served(keys=True) as here:
        made = [(await asked()).json()["id"] for _ in range(4)]
        assert (await asked()).status_code == (await asked(headers=other)).status_code == 429
        await here.running(4)
        for number in made[:2]:
            assert (await here.http.delete(f"{RESPONSES}/{number}")).json()["deleted"]
        refused = await asked()
        assert refused.status_code == 200, "it has two of four, and one is left"
        refused = await asked()
        assert refused.status_code == 429, "the last one is left to whom has none"
        assert "holds 3 of 4" in refused.json()["error"]["message"]
        assert (await asked(headers=other)).status_code == 200
        await here.running(4)


async def test_events_that_are_not_kept_any_more_are_said_to_be_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tandem.gateway.kept_answers.MOST_BYTES", 2000)
    async with served() as here:
        ids = await here.begun()
        here.suite.resumed.set()
        await here.idle()
        address = address_of(ids)
        gone = await here.http.get(address)
        assert (gone.status_code, gone.json()["error"]["code"]) == (410, "events_dropped")
        (place,) = [int(word) for word in gone.json()["error"]["message"].split() if word.isdigit()]
        rest = (await here.http.get(f"{address}?starting_after={place - 1}")).text
        assert rest.startswith(f"id: {ids[0].rpartition(':')[0]}:{place}\n")
        assert rest.endswith("data: [DONE]\n\n")


async def test_a_response_in_the_background_is_there_when_it_is_asked_for() -> None:
    async with served() as here:
        here.suite.begun.clear()
        made = (await here.http.post(RESPONSES, json=BACKGROUND)).json()
        assert (made["status"], made["background"]) == ("queued", True)
        here.suite.begun.set()
        await here.response(made["id"], "in_progress")
        here.suite.resumed.set()
        done = await here.response(made["id"], "completed")
        assert done["output"][0]["content"][0]["text"] == TEXT
        events = (await here.http.get(f"{RESPONSES}/{made['id']}?stream=true")).text
        after = (await here.http.get(f"{RESPONSES}/{made['id']}?stream=true&starting_after=1")).text
        assert events.endswith(after)
        assert "response.created" in events
        assert "response.created" not in after
        assert after.endswith("data: [DONE]\n\n")


async def test_a_response_that_is_deleted_ends() -> None:
    async with served() as here:
        made = (await here.http.post(RESPONSES, json=BACKGROUND)).json()
        await here.running(1)
        gone = (await here.http.delete(f"{RESPONSES}/{made['id']}")).json()
        assert gone == {"id": made["id"], "object": "response", "deleted": True}
        await here.idle()
        assert (await here.http.get(f"{RESPONSES}/{made['id']}")).status_code == 404


async def test_a_response_that_is_cancelled_ends_and_keeps_what_was_said() -> None:
    async with served() as here:
        made = (await here.http.post(RESPONSES, json=BACKGROUND)).json()
        address = f"{RESPONSES}/{made['id']}"
        async with here.http.stream("GET", f"{address}?stream=true") as reading:
            lines = reading.aiter_lines()
            heard = ""
            while heard != TEXT[:4]:
                line = await anext(lines)
                if line.startswith("data: "):
                    heard += json.loads(line.removeprefix("data: ")).get("delta") or ""
            cancelled = (await here.http.post(f"{address}/cancel")).json()
            last = [line async for line in lines if line.startswith("data: ")][-1]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "cancelled"
        assert (cancelled["status"], cancelled["error"]) == ("cancelled", None)
        (said,) = cancelled["output"]
        assert (said["status"], said["content"][0]["text"]) == ("incomplete", TEXT[:4])
        await here.idle()
        assert (await here.http.get(address)).json() == cancelled
        assert (await here.http.post(f"{address}/cancel")).json() == cancelled
        assert (await here.http.delete(address)).json()["deleted"]


async def test_a_response_is_cancelled_before_it_began() -> None:
    async with served() as here:
        here.suite.begun.clear()
        made = (await here.http.post(RESPONSES, json=BACKGROUND)).json()
        cancelled = (await here.http.post(f"{RESPONSES}/{made['id']}/cancel")).json()
        assert (cancelled["status"], cancelled["output"]) == ("cancelled", [])
        here.suite.begun.set()
        found = (await here.http.get(f"{RESPONSES}/{made['id']}")).json()
        assert (found["status"], here.suite.running) == ("cancelled", 0)


async def test_cancelling_changes_nothing_of_a_response_that_has_ended() -> None:
    async with served() as here:
        here.suite.resumed.set()
        made = (await here.http.post(RESPONSES, json=BACKGROUND)).json()
        done = await here.response(made["id"], "completed")
        again = (await here.http.post(f"{RESPONSES}/{made['id']}/cancel")).json()
        assert (again["status"], again["output"]) == ("completed", done["output"])


async def test_nobody_but_its_owner_cancels_a_response() -> None:
    async with served(keys=True) as here:
        made = (await here.http.post(RESPONSES, json=BACKGROUND)).json()
        stranger = {"Authorization": f"Bearer {OTHER}"}
        address = f"{RESPONSES}/{made['id']}/cancel"
        refused = await here.http.post(address, headers=stranger)
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "not_found")
        here.suite.resumed.set()
        await here.response(made["id"], "completed")


async def test_a_stream_that_is_deleted_ends() -> None:
    async with served() as here:
        address = await here.begun_address()
        number = address.rpartition("/")[2]
        assert here.suite.running == 1
        gone = (await here.http.delete(address)).json()
        assert gone == {"id": number, "object": "stream", "deleted": True}
        await here.idle()
        assert (await here.http.get(address)).status_code == 404


async def test_a_response_in_the_background_that_is_refused_has_failed() -> None:
    async with served() as here:
        here.suite.refusal = ResourceExhausted("all is in use")
        made = await here.http.post(RESPONSES, json=BACKGROUND)
        assert made.status_code == 200
        failed = await here.response(made.json()["id"], "failed")
        assert failed["error"] == {"code": "rate_limit_exceeded", "message": "all is in use"}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, chat_body(tandem={"resumable": True}), "tandem.resumable"),
        (RESPONSES, {**BACKGROUND, "store": False}, "background"),
        (RESPONSES, {"model": MODEL, "input": "a", "tandem": {"resumable": True}}, "tandem."),
    ],
)
async def test_what_cannot_be_kept_is_refused(path: str, body: dict[str, Any], param: str) -> None:
    async with served() as here:
        here.suite.resumed.set()
        refused = await here.http.post(path, json=body)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"].startswith(param)


async def test_a_message_is_taken_up_with_the_header_of_its_api() -> None:
    body = {**RESUMABLE, "max_tokens": 9}
    async with served(keys=True) as here:
        here.suite.resumed.set()
        headers = {"x-api-key": OWNER}
        async with httpx2.AsyncClient(base_url=here.http.base_url, headers=headers) as http:
            whole = await http.post("/v1/messages", json=body)
            number = whole.text.partition("id: ")[2].partition(":")[0]
            again = await http.get(f"{STREAMS}/{number}")
            assert (whole.status_code, again.status_code) == (200, 200)
            assert again.text == whole.text


async def test_answers_that_begin_at_once_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem.gateway.kept_answers.MOST_KEPT", 2)
    async with served(keys=True) as here:
        here.suite.begun.clear()
        asking = [asyncio.create_task(here.http.post(CHAT, json=RESUMABLE)) for _ in range(6)]
        await asyncio.wait(asking, timeout=0.3)
        here.suite.begun.set()
        here.suite.resumed.set()
        statuses = sorted([(await each).status_code for each in asking])
        assert statuses == [200, 200, 429, 429, 429, 429]


async def test_answers_that_were_read_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem.gateway.kept_answers.MOST_KEPT", 2)
    async with served(keys=True) as here:
        here.suite.resumed.set()
        for _ in range(4):
            stream = await here.http.post(CHAT, json=RESUMABLE)
            assert (stream.status_code, texts(stream.text)) == (200, TEXT)
        made = [(await here.http.post(RESPONSES, json=BACKGROUND)).json()["id"] for _ in range(2)]
        await asyncio.sleep(0.05)
        await here.idle()
        assert (await here.http.post(CHAT, json=RESUMABLE)).status_code == 429, "nobody read them"
        await here.response(made[0], "completed")
        assert (await here.http.post(CHAT, json=RESUMABLE)).status_code == 200
        assert (await here.http.get(f"{RESPONSES}/{made[0]}")).status_code == 404
        assert (await here.http.get(f"{RESPONSES}/{made[1]}")).status_code == 200


async def test_who_reads_what_is_deleted_gets_an_error() -> None:
    async with served() as here:
        made = (await here.http.post(RESPONSES, json=BACKGROUND)).json()
        address = f"{RESPONSES}/{made['id']}"
        reading = asyncio.create_task(here.http.get(f"{address}?stream=true"))
        await asyncio.wait([reading], timeout=0.2)
        await here.http.delete(address)
        last = json.loads((await reading).text.rstrip().rpartition("data: ")[2])
        assert last["error"]["code"] == "deleted"


async def test_who_reads_too_slowly_gets_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem.gateway.kept_answers.MOST_BYTES", 1500)
    read = KeptAnswer.read

    async def slowly(answer: KeptAnswer, place: int, write: Write) -> None:
        async def write_slowly(event: bytes) -> None:
            await asyncio.sleep(0.05)
            await write(event)

        await read(answer, place, write_slowly)

    monkeypatch.setattr(KeptAnswer, "read", slowly)
    async with served() as here:
        address = await here.begun_address()
        reading = asyncio.create_task(here.http.get(address))
        await asyncio.wait([reading], timeout=0.1)
        here.suite.resumed.set()
        last = json.loads((await reading).text.rstrip().rpartition("data: ")[2])
        assert last["error"]["code"] == "events_dropped"


async def test_an_answer_ends_with_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem.gateway.kept_answers.RECHECK_S", 0.05)
    async with served(keys=True) as here:
        assert (await here.http.post(RESPONSES, json=BACKGROUND)).status_code == 200
        await here.running(1)
        others = parse_keys(key_line("other", OTHER, {Scope.GENERATE}))
        monkeypatch.setattr("tests.gateway.test_kept_answers.KEYS", others)
        await here.idle()
