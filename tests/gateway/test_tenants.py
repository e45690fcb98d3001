"""Two HTTP keys on one edge: what one asked is nothing to the other."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tandem.backends.interface import KV_BLOCK
from tandem.net.access_keys import key_line
from tandem.net.scopes import Scope
from tandem.runtime.tenant_memories import MemoryLimits
from tandem.services.aggregator.config import AggregatorSettings
from tandem.settings import SettingsError, load_settings
from tandem.testing.scripted import ScriptedEngine, noisy_probs, scripted_probs
from tandem_api.verifier.v1 import verifier_pb2
from tests.gateway.http_suite import TIMEOUT_S, HttpSuite, http_suite
from tests.services.scripted_suite import CONTEXT, EOS, VOCABULARY, sample
from tests.wire_tap import WireTap, wire_tap

NAMES = ("alice", "bob", "carol")
KEYS = {name: f"tandem-{name[0] * 43}" for name in NAMES}
TEXT = "".join(chr(97 + number % 23) for number in range(3 * KV_BLOCK + 5))


def keeping_engines() -> tuple[ScriptedEngine, ScriptedEngine]:
    """Draft and target, of which sessions leave copies."""
    probs = scripted_probs(1, VOCABULARY, sharpness=9.0)
    noisy = noisy_probs(probs, scripted_probs(2, VOCABULARY, sharpness=9.0), 0.3)
    common: dict[str, Any] = {"context_length": CONTEXT, "eos_token_ids": EOS, "copies": True}
    return ScriptedEngine(VOCABULARY, noisy, **common), ScriptedEngine(VOCABULARY, probs, **common)


@dataclass(frozen=True, slots=True)
class Edge:
    """One edge with a key for each of `NAMES`."""

    served: HttpSuite
    callers: dict[str, httpx2.AsyncClient]

    async def cached_tokens(self, caller: str, prompt: str = TEXT, **more: Any) -> int:
        """What the answer to this caller says that was kept; drafted on the device too."""
        body = {
            "model": "scripted",
            "prompt": prompt,
            "max_tokens": 4,
            "ignore_eos": True,
            "tandem": {"preset": "coupled"},
            **more,
        }
        answer = await self.callers[caller].post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        await self.served.suite.idle()
        usage = answer.json()["usage"]
        assert usage["prompt_tokens"] == len(prompt)
        found: int = usage["prompt_tokens_details"]["cached_tokens"]
        return found

    async def remembered_tokens(self, caller: str) -> int:
        """Of an answer to this caller, how many were drafted from what is remembered, and right."""
        body = {
            "model": "scripted",
            "prompt": TEXT[:24],
            "max_tokens": 60,
            "temperature": 0,
            "ignore_eos": True,
            "tandem": {"preset": "coupled"},
        }
        answer = await self.callers[caller].post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        await self.served.suite.idle()
        assert self.served.suite.memory is not None
        await self.served.suite.memory.learned()
        figures = answer.json()["choices"][0]["tandem"]
        return int(figures.get("accepted_memory_tokens") or 0)

    def found_on_the_device(self) -> float:
        name = "tandem_prefix_hit_tokens_total"
        return sample(self.served.suite.edge_metrics, name, model_name="scripted")


@asynccontextmanager
async def edge(
    folder: Path,
    path: Callable[[str], AbstractAsyncContextManager[str]] | None = None,
    **settings: Any,
) -> AsyncIterator[Edge]:
    keys = folder / "keys"
    keys.write_text("\n".join(key_line(name, KEYS[name], {Scope.GENERATE}) for name in NAMES))
    draft, target = keeping_engines()
    async with AsyncExitStack() as stack:
        suite = http_suite(target, draft=draft, path=path, http_keys_file=keys, **settings)
        served = await stack.enter_async_context(suite)
        callers = {}
        for name, key in KEYS.items():
            headers = {"Authorization": f"Bearer {key}"}
            client = httpx2.AsyncClient(base_url=served.url, headers=headers, timeout=TIMEOUT_S)
            callers[name] = await stack.enter_async_context(client)
        yield Edge(served, callers)


async def test_a_tenant_cannot_read_another_s_prompt_by_guessing_it(tmp_path: Path) -> None:
    async with edge(tmp_path) as served:
        assert await served.cached_tokens("alice") == 0
        assert await served.cached_tokens("bob") == 0
        assert await served.cached_tokens("bob", TEXT[: KV_BLOCK + 1] + "another end") == KV_BLOCK
        assert served.found_on_the_device() == KV_BLOCK, "bob's own"
        assert await served.cached_tokens("alice") == 3 * KV_BLOCK
        assert served.found_on_the_device() == 4 * KV_BLOCK


async def test_tenants_share_where_they_are_named(tmp_path: Path) -> None:
    async with edge(tmp_path, share_prefixes="alice,bob") as served:
        assert await served.cached_tokens("alice") == 0
        assert await served.cached_tokens("bob") == 3 * KV_BLOCK
        assert served.found_on_the_device() == 3 * KV_BLOCK
        assert await served.cached_tokens("carol") == 0


async def test_not_to_be_stored_concerns_the_memory_and_the_document_says_what_it_does_not(
    tmp_path: Path,
) -> None:
    """The prefix cache keeps the prompt for its tenant alone."""
    async with edge(tmp_path) as served:
        assert await served.cached_tokens("alice", store=False) == 0
        assert await served.cached_tokens("alice") == 3 * KV_BLOCK
        assert await served.cached_tokens("bob") == 0
        answer = await served.callers["alice"].get("/openapi.json")
        fields = [
            schema["properties"]["store"]["description"]
            for schema in answer.json()["components"]["schemas"].values()
            if "description" in schema.get("properties", {}).get("store", {})
        ]
        assert len(fields) == 3
        assert all("prefix cache keeps the prompt" in field for field in fields)


async def test_who_shares_prefixes_does_not_share_what_is_remembered(tmp_path: Path) -> None:
    async with edge(tmp_path, share_prefixes="*", memory=MemoryLimits()) as served:
        first = await served.remembered_tokens("alice")
        again = await served.remembered_tokens("alice")
        assert again > first, "of the answer before"
        assert await served.remembered_tokens("bob") == first


async def test_all_share_where_that_is_said(tmp_path: Path) -> None:
    async with edge(tmp_path, share_prefixes="*") as served:
        assert await served.cached_tokens("alice") == 0
        assert await served.cached_tokens("carol") == 3 * KV_BLOCK


async def test_the_cloud_is_told_no_name_and_no_more_than_who_is_the_same(tmp_path: Path) -> None:
    taps: list[WireTap] = []

    @asynccontextmanager
    async def tapped(address: str) -> AsyncIterator[str]:
        async with wire_tap(address) as tap:
            taps.append(tap)
            yield tap.address

    seen = []
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        async with edge(folder, tapped) as served:
            for name in ("alice", "bob", "alice"):
                await served.cached_tokens(name)
        opened = [
            frame.open
            for frame in taps[number].messages(verifier_pb2.VerifyRequest)
            if frame.HasField("open")
        ]
        seen.append([bytes(each.tenant) for each in opened])
        for name in NAMES:
            assert name.encode() not in taps[number].everything
            assert not any(name.encode() in each.SerializeToString() for each in opened)
    for alice, bob, alice_again in seen:
        assert alice == alice_again != bob
        assert len(alice) == len(bob) == 16
    assert not set(seen[0]) & set(seen[1]), "another edge's ids for the same names"


async def test_without_keys_all_are_one_tenant(tmp_path: Path) -> None:
    draft, target = keeping_engines()
    async with http_suite(target, draft=draft) as served:
        one = Edge(served, {"anybody": served.http})
        assert await one.cached_tokens("anybody") == 0
        assert await one.cached_tokens("anybody") == 3 * KV_BLOCK


@pytest.mark.parametrize(
    ("text", "why"),
    [("alice", "second name"), ("alice,bob;bob,carol", "once"), ("a b,c", "not the name of a key")],
)
def test_a_bad_share_stops_the_start_and_is_named(
    text: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TANDEM_SHARE_PREFIXES", text)
    with pytest.raises(SettingsError) as refusal:
        load_settings(AggregatorSettings, {})
    assert str(refusal.value).startswith("TANDEM_SHARE_PREFIXES: must ")
    assert why in str(refusal.value)
