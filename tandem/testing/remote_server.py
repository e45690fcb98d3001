"""A server in the words of vLLM and of SGLang whose model is scripted, for tests: what it computes
is known, and it can be told to fail in each way that a real one may.

It takes token ids alone and has no tokenizer; everything else of the two routes that the engine
`remote` uses is there."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

from tandem.testing.context_engine import Distribution

Fault = Callable[[Any], Any]
"""Takes an answer's JSON and returns what is sent in its place."""


@dataclass(eq=False)
class FakeServer:
    """What the server does, and what was seen. `pass_s`: seconds of a pass; `status`: answered to
    everything that asks for tokens, with `retry_after` and `location` where they are set."""

    probs: Distribution
    vocabulary_size: int
    dialect: str = "vllm"
    """Or sglang; whoever speaks another one has neither's routes."""
    model: str = "fake"
    root: str | None = None
    """Where it says that it has the model from."""
    more_models: tuple[str, ...] = ()
    context_length: int = 4096
    max_logprobs: int = 20
    pass_s: float = 0.0
    status: int = 200
    retry_after: str = ""
    location: str = ""
    refusals: int = 10**9
    """How often `status` is answered before all is well."""
    key: str = ""
    tokenize: Callable[[str], list[int]] | None = None
    corrupt: Fault = lambda answer: answer
    stream_ends_after: int = 10**9
    asked: list[dict[str, Any]] = field(default_factory=list)
    streams_left: int = 0
    """Streams whose client went away before their end."""
    tls: ssl.SSLContext | None = None
    connections: set[socket.socket] = field(default_factory=set)
    url: str = ""

    def hang_up(self) -> None:
        """Close all connections, as a server does that begins anew."""
        for connection in list(self.connections):
            with suppress(OSError):  # the client was quicker
                connection.shutdown(socket.SHUT_RDWR)

    def top(self, context: tuple[int, ...], count: int) -> list[tuple[int, float]]:
        """Return the likeliest tokens after a text, with their log-probabilities."""
        if self.pass_s:
            time.sleep(self.pass_s)
        with np.errstate(divide="ignore"):
            logprobs = np.log(np.asarray(self.probs(context), np.float64))
        best = np.argsort(-logprobs, kind="stable")[:count]
        return [(int(token), max(-1e30, float(logprobs[token]))) for token in best]


@contextmanager
def serving(server: FakeServer) -> Iterator[FakeServer]:
    """Serve on a free port of this machine while the context is open."""

    class Handler(_Handler):
        fake = server

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    scheme = "http"
    if server.tls is not None:
        scheme = "https"
        # Shaken by the thread of a connection, not by the one that accepts them all.
        http.socket = server.tls.wrap_socket(
            http.socket, server_side=True, do_handshake_on_connect=False
        )
    server.url = f"{scheme}://127.0.0.1:{http.server_address[1]}"
    thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    fake: FakeServer
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        self.fake.connections.add(self.connection)

    def finish(self) -> None:
        self.fake.connections.discard(self.connection)
        super().finish()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:  # the base class's name
        fake = self.fake
        if self.path == "/v1/models" and not self._has_key():
            self._answer(401, {"error": "Unauthorized"})
        elif self.path == "/v1/models":
            about = {"object": "model", "max_model_len": fake.context_length, "root": fake.root}
            entries = [{"id": name, **about} for name in (fake.model, *fake.more_models)]
            self._answer(200, {"object": "list", "data": entries})
        elif self.path == "/server_info" and fake.dialect == "sglang":
            self._answer(200, {"context_length": fake.context_length})
        else:
            self._answer(404, {"detail": "Not Found"})

    def do_POST(self) -> None:  # the base class's name
        fake = self.fake
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize" and fake.tokenize is not None:
            self._answer(200, {"tokens": fake.tokenize(body["prompt"])})
            return
        route = {"vllm": "/v1/completions", "sglang": "/generate"}.get(fake.dialect)
        if self.path != route:
            self._answer(404, {"detail": "Not Found"})
        elif not self._has_key():
            self._answer(401, {"error": "Unauthorized"})
        elif fake.status != 200 and fake.refusals:
            fake.refusals -= 1
            told = {"Retry-After": fake.retry_after, "Location": fake.location}
            headers = {name: words for name, words in told.items() if words}
            self._answer(fake.status, {"error": {"message": "come again"}}, headers)
        else:
            fake.asked.append(body)
            (self._vllm if fake.dialect == "vllm" else self._sglang)(body)

    def _has_key(self) -> bool:
        key = self.fake.key
        return not key or self.headers["Authorization"] == f"Bearer {key}"

    def _vllm(self, body: Mapping[str, Any]) -> None:
        fake = self.fake
        count = body["logprobs"]
        if count > fake.max_logprobs:
            why = f"Requested sample logprobs of {count}, which is greater than max allowed: "
            self._answer(400, {"error": {"message": f"{why}{fake.max_logprobs}"}})
            return
        texts = [tuple(token_ids) for token_ids in body["prompt"]]
        if body.get("stream"):
            written = self._written(texts[0], body["max_tokens"], count)
            self._stream({"choices": [_choice(0, [step])]} for step in written)
            return
        choices = [
            _choice(number, list(self._written(text, body["max_tokens"], count)))
            for number, text in enumerate(texts)
        ]
        self._answer(200, {"choices": choices})

    def _sglang(self, body: Mapping[str, Any]) -> None:
        fake = self.fake
        text = tuple(body["input_ids"])
        count = body["top_logprobs_num"]
        sampling = body["sampling_params"]
        written = self._written(text, sampling["max_new_tokens"], count)
        if body.get("stream"):
            self._stream(self._cumulative(written))
            return
        (step,) = list(written)
        about: dict[str, Any] = {"output_top_logprobs": [_triples(step[1])]}
        if "logprob_start_len" in body:
            first = body["logprob_start_len"] + 1
            rows = [fake.top(text[:position], count) for position in range(first, len(text))]
            about["input_top_logprobs"] = [None, *map(_triples, rows)]
        self._answer(200, {"output_ids": [step[0]], "meta_info": about})

    def _cumulative(self, written: Iterator[Any]) -> Iterator[Any]:
        token_ids, rows = [], []
        for token_id, row in written:
            token_ids.append(token_id)
            rows.append(_triples(row))
            yield {"output_ids": token_ids, "meta_info": {"output_top_logprobs": rows}}

    def _written(self, text: tuple[int, ...], tokens: int, count: int) -> Iterator[Any]:
        """Yield each token of the likeliest continuation with its row."""
        for _ in range(tokens):
            row = self.fake.top(text, count)
            yield row[0][0], row
            text = (*text, row[0][0])

    def _stream(self, events: Iterator[Any]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        try:
            for number, event in enumerate(events):
                if number == self.fake.stream_ends_after:
                    self.close_connection = True
                    return
                line = f"data: {json.dumps(self.fake.corrupt(event))}\n\n"
                self.wfile.write(line.encode())
                self.wfile.flush()
            self.wfile.write(b"data: [DONE]\n\n")
        except OSError:
            self.fake.streams_left += 1
        self.close_connection = True

    def _answer(self, status: int, answer: Any, headers: Mapping[str, str] | None = None) -> None:
        text = json.dumps(self.fake.corrupt(answer) if status == 200 else answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text)


def _choice(number: int, steps: list[Any]) -> dict[str, Any]:
    return {
        "index": number,
        "token_ids": [token_id for token_id, _ in steps],
        "logprobs": {
            "top_logprobs": [
                {f"token_id:{other}": logprob for other, logprob in row} for _, row in steps
            ]
        },
    }


def _triples(row: list[tuple[int, float]]) -> list[Any]:
    return [[logprob, token_id, None] for token_id, logprob in row]
