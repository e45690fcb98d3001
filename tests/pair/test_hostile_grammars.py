"""What a hostile grammar costs before it is refused, over HTTP: processor time and memory of the
whole suite. Some are refused; the others are answered, or refused where they became too much."""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from tandem.suite.embedded import EmbeddedSuite
from tandem.suite.models import ModelPair

pytestmark = pytest.mark.asyncio(loop_scope="module")
CPU_S = 1.0
MEGABYTES = 100.0
"""Of one request, on any machine; the dearest take 0.3 s and 50 MB."""
TRIES = 3
"""What else this process does, or two services that compile at once, only adds to a measurement."""
STATUS = Path("/proc/self/status")
REFERENCES = Path("/proc/self/clear_refs")


def nested(depth: int, inner: dict[str, Any], **more: Any) -> dict[str, Any]:
    for _ in range(depth):
        inner = {"type": "array", "items": inner, **more}
    return inner


def laughing(word: str) -> dict[str, Any]:
    """Each of 30 levels has the one below nine times."""
    levels = {f"a{n}": {word: [{"$ref": f"#/$defs/a{n - 1}"}] * 9} for n in range(1, 30)}
    return {"$ref": "#/$defs/a29", "$defs": {"a0": {"pattern": "x+"}, **levels}}


def properties(count: int, **more: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {f"p{n}": {"type": "integer"} for n in range(count)},
        **more,
    }


PATTERNS = [{"pattern": f"x{n}y"} for n in range(60)]
REFUSED: dict[str, dict[str, Any]] = {
    "a deep text": {"guided_json": '{"items":' * 5000 + "{}" + "}" * 5000},
    "a huge text": {"guided_json": json.dumps({"enum": ["x" * 90_000]})},
    "an enumeration of 30,000": {"guided_json": json.dumps({"enum": list(range(30_000))})},
    "many optional properties": properties(2000),
    "nothing but itself": {"$ref": "#"},
    "round in a ring": {"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}},
    "patterns at once": {"type": "string", "allOf": PATTERNS},
    "patterns at once, inside": {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "string", **p}}} for p in PATTERNS
        ]
    },
    "patterns at once, by reference": laughing("allOf")
    | {"allOf": [{"$ref": f"#/$defs/p{n}"} for n in range(60)]}
    | {"$defs": {**laughing("allOf")["$defs"], **{f"p{n}": p for n, p in enumerate(PATTERNS)}}},
    "patterns at once, in a grammar": {
        "guided_grammar": "start: a\na: %json " + json.dumps({"type": "string", "allOf": PATTERNS})
    },
    "choices of all of": {
        "allOf": [
            {"anyOf": [{"type": "object", "properties": {f"{a}{n}": {"const": 1}}} for a in "ab"]}
            for n in range(22)
        ]
    },
    "intersections": {
        "guided_grammar": "start: A\nA: " + " & ".join(f"/.*{n}.*/" for n in range(200))
    },
    "a huge range": {"type": "integer", "minimum": -(10**300), "maximum": 10**300},
    "a huge divisor": {"type": "integer", "multipleOf": 982451653},
    "classes": {"guided_regex": "[^a]*" * 1200},
    "brackets": {"guided_regex": "(" * 5000 + "a" + ")" * 5000},
    "elsewhere": {"$ref": "http://localhost:1/schema"},
}
BOUNDED: dict[str, dict[str, Any]] = {
    "deep arrays": nested(90, {"const": 1}, minItems=1),
    "a million items": {"type": "array", "minItems": 10**9},
    "items of items": nested(12, {"const": 1}, minItems=1000, maxItems=1000),
    "for ever": {
        "$ref": "#/$defs/a",
        "$defs": {"a": properties(0, properties={"a": {"$ref": "#/$defs/a"}}, required=["a"])},
    },
    "choices of choices": laughing("anyOf"),
    "a long text": {"type": "string", "minLength": 10**6},
    "a long word": {"guided_json": json.dumps({"enum": ["x" * 30_000]})},
    "an enumeration": {"enum": [f"v{n}" for n in range(7000)]},
    "many properties": properties(1500, required=[f"p{n}" for n in range(1500)]),
    "states": {"guided_regex": "(a|b)*a(a|b){25}"},
    "counts of counts": {"guided_regex": "((a{0,100}){0,100}){0,100}"},
    "a count": {"guided_regex": "a{1000000}"},
    "repeats of repeats": {"guided_regex": "(((x+)+)+)+y"},
    "anything and anything": {"guided_regex": "(.*a){30}"},
    "ambiguous": {"guided_grammar": 'start: start start | "a"'},
    "rules": {
        "guided_grammar": "start: "
        + " | ".join(f"r{n}" for n in range(2500))
        + "\n"
        + "\n".join(f'r{n}: "x{n}" start?' for n in range(2500))
    },
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http(pair: ModelPair) -> AsyncIterator[httpx2.AsyncClient]:
    async with (
        EmbeddedSuite(pair, http=True) as suite,
        httpx2.AsyncClient(base_url=suite.http_url, timeout=120) as found,
    ):
        await ask(found, {"guided_regex": "a"})  # what every first grammar brings along
        yield found


async def ask(http: httpx2.AsyncClient, constraint: dict[str, Any]) -> httpx2.Response:
    body = {"model": "demo-target", "prompt": "Say: ", "max_tokens": 4, "seed": 1, **constraint}
    return await http.post("/v1/completions", json=body)


@pytest.mark.parametrize("name", [*REFUSED, *BOUNDED])
async def test_no_grammar_costs_much(http: httpx2.AsyncClient, name: str) -> None:
    for number in range(TRIES):
        answer, cpu_s, megabytes = await cost(http, spelled({**REFUSED, **BOUNDED}[name], number))
        if name in REFUSED or answer.status_code != 200:
            assert answer.status_code == 400, answer.text
            param = answer.json()["error"]["param"]
            assert param is not None
            assert param.startswith("guided_")
        chosen = await ask(http, {"guided_choice": ["yes"]})
        assert chosen.json()["choices"][0]["text"] == "yes"
        if cpu_s < CPU_S and megabytes < MEGABYTES:
            return
    raise AssertionError(f"{cpu_s:.2f} s and {megabytes:.0f} MB, {TRIES} times too much")


def spelled(constraint: dict[str, Any], number: int) -> dict[str, Any]:
    """The same in other words, which a service that keeps compiled grammars compiles anew."""
    if not any(name.startswith("guided_") for name in constraint):
        constraint = {"guided_json": constraint}
    ((kind, source),) = constraint.items()
    if not number:
        return constraint
    if kind == "guided_regex":
        return {kind: "(" * number + source + ")" * number}
    if kind == "guided_grammar":
        return {kind: source + "\n" * number}
    try:
        schema = json.loads(source) if isinstance(source, str) else source
    except RecursionError:
        return constraint
    return {kind: {"title": f"spelling {number}", **schema}}


async def cost(
    http: httpx2.AsyncClient, constraint: dict[str, Any]
) -> tuple[httpx2.Response, float, float]:
    """The answer, and what it cost this process: seconds of computing and, on Linux, megabytes at
    most at once."""
    watched = STATUS.exists()
    if watched:
        REFERENCES.write_text("5")  # the peak begins here
    before, began_s = memory("VmRSS") if watched else 0.0, time.process_time()
    answer = await ask(http, constraint)
    cpu_s = time.process_time() - began_s
    return answer, cpu_s, memory("VmHWM") - before if watched else 0.0


def memory(name: str) -> float:
    """Megabytes."""
    found = re.search(rf"{name}:\s+(\d+) kB", STATUS.read_text())
    assert found is not None
    return int(found[1]) / 1024
