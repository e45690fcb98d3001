"""The HTTP client of `tandem chat`: OpenAI's API and the field `tandem`. Invariant: leaving an
answer's iterator early closes its connection, which cancels the answer on every service."""

import json
import ssl
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import httpx2

from tandem.core.errors import InvalidArgument, TandemError
from tandem.net.own_side import is_loopback

CONNECT_TIMEOUT_S = 10.0


@dataclass(slots=True)
class Reply:
    """An answer as far as it came; `tandem` has the figures of a finished one."""

    preset: str
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    unverified: list[int] = field(default_factory=list)
    token_sources: list[str] = field(default_factory=list)
    token_texts: list[str] = field(default_factory=list)
    ttft_s: float | None = None
    finish_reason: str | None = None
    tandem: dict[str, Any] = field(default_factory=dict)

    def take(self, choice: Mapping[str, Any], elapsed_s: float) -> None:
        """Add a chunk of the stream."""
        self.text += choice["delta"].get("content") or ""
        statistics = choice.get("tandem") or {}
        for token in statistics.get("provenance", ()):
            if token["source"] == "edge":
                self.unverified.append(len(self.token_ids))
            self.token_ids.append(token["id"])
            self.token_sources.append(token["source"] or "")
            self.token_texts += [token["text"]] if "text" in token else []
        if self.token_ids and self.ttft_s is None:
            self.ttft_s = elapsed_s
        if choice["finish_reason"] is not None:
            self.finish_reason = choice["finish_reason"]
            self.tandem = {name: statistics[name] for name in statistics if name != "provenance"}


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A model as the server lists it. `default_sampling`: what it takes for settings that a request
    leaves out, where the model's makers recommend something, by the names of request fields."""

    name: str
    default_sampling: Mapping[str, float | int] = field(default_factory=dict)


class ChatClient:
    """Use as a context manager. Every failure is a TandemError whose line says what to do."""

    def __init__(
        self, endpoint: str, key: str | None, timeout_s: float, ca: Path | None = None
    ) -> None:
        """Prepare to call `endpoint`, which is as `base_url` returns it. `ca`: a file of the
        authorities to check its certificate by, instead of the system's. Raises
        InvalidArgument("ca")."""
        self._endpoint = endpoint
        self._http = httpx2.Client(
            base_url=endpoint,
            headers={} if key is None else {"Authorization": f"Bearer {key}"},
            verify=_trusted(endpoint, ca),
            timeout=httpx2.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S),
            # No proxy stands between a machine and itself.
            trust_env=not is_loopback(httpx2.URL(endpoint).host),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        self._http.close()

    def model(self) -> str:
        """Return the name of the model that answers there."""
        return self.card().name

    def card(self) -> ModelCard:
        """Ask the endpoint which model answers there, and with which sampling settings by
        default."""
        try:
            answer = self._http.get("/v1/models")
        except httpx2.HTTPError as error:
            raise self._unreachable(error) from error
        self._check(answer)
        try:
            card = answer.json()["data"][0]
            described = card.get("tandem") or {}
            return ModelCard(str(card["id"]), described.get("default_sampling") or {})
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise self._no_openai() from None

    def answer(
        self, messages: Sequence[Mapping[str, str]], **asking: Any
    ) -> Generator[Reply, None, None]:
        """Yield the growing reply after each chunk; the last one has its finish reason."""
        tandem = {**asking.pop("tandem", {}), "provenance": True}
        body = {"messages": list(messages), "stream": True, "tandem": tandem, **asking}
        reply = Reply(tandem.get("preset") or "")
        began_s = time.monotonic()
        try:
            with self._http.stream("POST", "/v1/chat/completions", json=body) as answer:
                if answer.status_code != 200:
                    answer.read()
                self._check(answer)
                for chunk in self._events(answer):
                    if "error" in chunk:
                        why = chunk["error"].get("message", "failed")
                        raise TandemError(f"{self._endpoint}: {why}")
                    for choice in chunk.get("choices", ()):
                        reply.take(choice, time.monotonic() - began_s)
                        yield reply
        except httpx2.HTTPError as error:
            raise self._unreachable(error) from error
        if reply.finish_reason is None:
            raise TandemError(f"{self._endpoint} closed the connection in the middle of the answer")

    def _check(self, answer: httpx2.Response) -> None:
        if answer.status_code == 200:
            return
        words = f"{answer.reason_phrase}; is an aggregator serving HTTP there?"
        with suppress(ValueError, KeyError, TypeError, RecursionError):
            words = answer.json()["error"]["message"]
        if answer.status_code == 401:
            words = f"{words} Set a valid key with --call-key-file"
        raise TandemError(f"{self._endpoint}: {answer.status_code}: {words}")

    def _events(self, answer: httpx2.Response) -> Iterator[dict[str, Any]]:
        for line in answer.iter_lines():
            content = line.removeprefix("data: ")
            if content is not line and content != "[DONE]":
                try:
                    event = json.loads(content)
                except (ValueError, RecursionError):
                    event = None
                if not isinstance(event, dict):
                    raise self._no_openai()
                yield event

    def _no_openai(self) -> TandemError:
        return TandemError(f"{self._endpoint} does not speak OpenAI's API")

    def _unreachable(self, error: httpx2.HTTPError) -> TandemError:
        why = str(error) or type(error).__name__
        if isinstance(error, httpx2.RemoteProtocolError):
            why = f"{why}; if that port is one of gRPC, give that of HTTP, by default 8000"
            return TandemError(f"{self._endpoint}: {why}")
        if "CERTIFICATE_VERIFY_FAILED" in why:
            return TandemError(f"{self._endpoint}: {why}; set its authority with --ca")
        return TandemError(f"{self._endpoint}: {why}; is an aggregator serving HTTP there?")


def base_url(endpoint: str, insecure: bool) -> str:
    """Return `endpoint`, a URL or HOST:PORT, as a URL without the path of the API. Raises
    InvalidArgument."""
    given = endpoint if "://" in endpoint else f"http://{endpoint}"
    try:
        url = httpx2.URL(given)
    except httpx2.InvalidURL as error:
        raise InvalidArgument("endpoint", f"{endpoint!r} is not a URL: {error}") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise InvalidArgument("endpoint", f"{endpoint!r} is neither URL nor HOST:PORT")
    if url.scheme == "http" and not (insecure or is_loopback(url.host)):
        why = "is on another machine and has no TLS; use https://, or allow this with --insecure"
        raise InvalidArgument("endpoint", f"{given} {why}")
    return given.rstrip("/").removesuffix("/v1")


def _trusted(endpoint: str, ca: Path | None) -> ssl.SSLContext | bool:
    if ca is None:
        return True
    if not endpoint.startswith("https://"):
        raise InvalidArgument("ca", f"{endpoint} does not use TLS; leave out --ca")
    try:
        return ssl.create_default_context(cafile=ca)
    except OSError as error:  # ssl's errors are among these
        why = "must be PEM certificates of authorities"
        raise InvalidArgument("ca", f"{ca}: {why} ({error.strerror or error})") from error
