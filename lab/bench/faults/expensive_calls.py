"""What a caller over HTTP may ask for that is dear: the requests of one tenant who asks for nothing
else, kind by kind. Every request differs from those before it, so that nothing is kept of them."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import string
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from lab.bench.faults.http_caller import answered

AT_ONCE = 16
AGAIN_S = 0.1
CALL_S = 60.0
OPTIONAL_RULES = 9000
LONG_CHARACTERS = 60_000
"""Of a text that is not refused unread where the context is 1024 tokens or more."""
DOCUMENT_WORDS = 3000
TURNS = 800
"""Pairs of turns of a letter each."""
RARE_LETTERS = 16_000
MANY_AT_ONCE = 40
"""Of calls that take no answer."""
EMBEDDED = 128
"""Texts of one request for embeddings."""
WINDOWED = 4
WINDOWED_WORDS = 1000
"""Of a text that an embedding model reads in a dozen windows."""
CONTEXT_TOKENS = 1024
"""Of the demo pair."""
ANSWER_TOKENS = 64

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Expensive:
    """A kind of request: where it goes, and the body of the one with this number. `modest`: what
    others ask for of this kind, where that is no answer."""

    path: str
    body: Callable[[int], Body]
    at_once: int = AT_ONCE
    modest: Callable[[int], Body] | None = None


@dataclass(frozen=True, slots=True)
class Served:
    """What the models of the suite are called."""

    model: str
    embedding: str = ""


def expensive_calls(served: Served) -> Mapping[str, Expensive]:
    """Return the expensive calls by the names of their arms."""
    completions = "/v1/completions"
    chat = "/v1/chat/completions"
    # Drawn once: who presses shares the cores with whom he presses, and has better to do.
    rare = "".join(map(chr, random.Random(1).choices(range(0x4E00, 0x9000), k=RARE_LETTERS)))
    text = words(LONG_CHARACTERS // 6, 1)
    picture = base64.b64encode(random.Random(1).randbytes(1_200_000)).decode()
    request: Body = {"model": served.model, "prompt": "A list of things"}

    def grammars(number: int) -> Body:
        """Return a request with a grammar of optional rules: a row of the parser holds all of them
        at once. Some requests have far too many rules, some as many as are accepted, and in some
        the rules come only later in the text."""
        rules = " ".join(["rule?"] * (OPTIONAL_RULES, 2000, 300)[number % 3])
        begin = f'"{number}" ' if number % 2 else ""
        grammar = f'start: {begin}rest\nrest: {rules}\nrule: "x{number % 7}" | "y"'
        return {**request, "max_tokens": 64, "guided_grammar": grammar}

    def choices(number: int) -> Body:
        return {**request, "max_tokens": 256, "n": 8, "seed": number, "ignore_eos": True}

    def logprobs(number: int) -> Body:
        return {**request, "max_tokens": 256, "logprobs": 5, "seed": number, "ignore_eos": True}

    def images(number: int) -> Body:
        pixels = f"{number:08d}{picture}"
        shown = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{pixels}"}}
        said = {"role": "user", "content": [{"type": "text", "text": "What is it?"}, shown]}
        return {"model": served.model, "messages": [said], "max_tokens": 16}

    def embeddings(number: int) -> Body:
        texts = [words(100, number * EMBEDDED + offset) for offset in range(EMBEDDED)]
        return {"model": served.embedding, "input": texts}

    def windows(number: int) -> Body:
        """Return long texts, each of which takes many passes of the embedding model."""
        texts = [words(WINDOWED_WORDS, number * WINDOWED + offset) for offset in range(WINDOWED)]
        return {"model": served.embedding, "input": texts}

    def contexts(number: int) -> Body:
        """Return a request that needs the KV cache of a whole context."""
        source = random.Random(number)
        prompt = [source.randrange(100, 1000) for _ in range(CONTEXT_TOKENS - ANSWER_TOKENS)]
        return {**request, "prompt": prompt, "max_tokens": ANSWER_TOKENS, "ignore_eos": True}

    def documents(number: int) -> Body:
        rows = "".join(
            f"<tr><td>{word}</td></tr>" for word in words(DOCUMENT_WORDS, number).split()
        )
        return {"name": f"greedy{number % 50}.html", "content": f"<table>{rows}</table>"}

    def tokenising(number: int) -> Body:
        prompt = turned(text, number)
        return {"model": served.model, "prompt": prompt, "return_token_strs": True}

    def turns(number: int) -> Body:
        """Return a conversation whose turns cost far more than their letters."""
        said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "a"}] * TURNS
        return {
            "model": served.model,
            "messages": [*said, {"role": "user", "content": str(number)}],
        }

    def letters(number: int) -> Body:
        """Return a text of letters that a vocabulary has no tokens for."""
        return {"model": served.model, "prompt": turned(rare, number)}

    def few_tokenised(number: int) -> Body:
        return {"model": served.model, "prompt": f"A list of {number} things"}

    def few_counted(number: int) -> Body:
        said = {"role": "user", "content": f"A list of {number} things"}
        return {"model": served.model, "messages": [said]}

    def few_embedded(number: int) -> Body:
        return {"model": served.embedding, "input": f"A list of {number} things"}

    def small_document(number: int) -> Body:
        return {"name": "mine", "content": f"A list of {number} things"}

    bodies = {
        "grammars": Expensive(completions, grammars),
        "choices": Expensive(completions, choices),
        "logprobs": Expensive(completions, logprobs),
        "images": Expensive(chat, images),
        "contexts": Expensive(completions, contexts),
        "embeddings": Expensive("/v1/embeddings", embeddings, modest=few_embedded),
        "windows": Expensive("/v1/embeddings", windows, modest=few_embedded),
        "documents": Expensive("/v1/tandem/documents", documents, modest=small_document),
        "tokenising": Expensive("/tokenize", tokenising, modest=few_tokenised),
        "turns": Expensive("/v1/messages/count_tokens", turns, MANY_AT_ONCE, modest=few_counted),
        "letters": Expensive("/tokenize", letters, MANY_AT_ONCE, modest=few_tokenised),
    }
    if not served.embedding:
        del bodies["embeddings"], bodies["windows"]
    return bodies


def words(count: int, seed: int) -> str:
    """Return `count` random words of five letters."""
    source = random.Random(seed)
    return " ".join("".join(source.choices(string.ascii_lowercase, k=5)) for _ in range(count))


def turned(text: str, number: int) -> str:
    """Return the text from another letter on, and then its beginning."""
    first = number % len(text)
    return text[first:] + text[:first]


async def press(call: Expensive, host: str, port: int, key: str) -> None:
    """Send the call again and again, `at_once` at a time, until cancelled. Refusals are no reason
    to stop."""
    numbers = iter(range(1_000_000_000))

    async def again() -> None:
        while True:
            body = await asyncio.to_thread(lambda: json.dumps(call.body(next(numbers))).encode())
            with suppress(OSError, ValueError, TimeoutError):
                async with asyncio.timeout(CALL_S):
                    await answered(host, port, call.path, body, key)
            await asyncio.sleep(AGAIN_S)

    await asyncio.gather(*(again() for _ in range(call.at_once)))
