"""A target model on a server that is there already: an unmodified vLLM or SGLang, asked over HTTP.

Its weights are nowhere near: a folder or a hub name gives the tokenizer, the chat template and the
sizes, and what the server says of itself must agree with them."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from tandem.backends.interface import EngineFailed
from tandem.backends.model_source import LoadedModel, ModelChoice, ServerChoice, find_source
from tandem.core.errors import InvalidArgument, TandemError
from tandem.core.extras import install_command
from tandem.core.known_logits import decidable_defaults
from tandem.telemetry.logging import get_logger

if TYPE_CHECKING:
    from tandem.backends.remote.dialects import Dialect
    from tandem.backends.remote.server import RemoteServer

log = get_logger(__name__)

MOST_KNOWN = 64
"""Tokens of a row that are asked for, where the server tells of more."""
USUALLY_KNOWN = (20, 5, 1)
"""What is tried of a server that refuses more without saying what it would allow."""
ALLOWED = re.compile(r"max allowed: (\d+)")
COMPARED = (
    "The quick brown fox jumps over the lazy dog.",
    "  def f(x):\n\treturn x ** 2  # naïve, 中文 и русский\n",
    "1234567890 ½ €100 🙂 <|endoftext|> [INST] </s>",
)
"""What both tokenizers are to make the same ids of."""


def load(choice: ModelChoice) -> LoadedModel:
    """Connect to the server of the choice. Raises InvalidArgument naming the field."""
    if choice.server is None:
        raise InvalidArgument("engine", "'remote' needs target_url, the address of a server")
    if choice.drafts:
        raise InvalidArgument("engine", "'remote' runs target models only")
    if choice.exits not in ("none", "auto"):
        raise InvalidArgument("exits", "the engine 'remote' does not support early exits")
    server = _server(choice.server)
    try:
        return _connected(choice, choice.server, server)
    except BaseException:
        server.close()
        raise


def _server(place: ServerChoice) -> RemoteServer:
    from tandem.backends.remote.server import RemoteServer

    return RemoteServer(
        place.url, key=place.key, certificates=place.certificates, silent_s=place.silent_s
    )


def served_model(place: ServerChoice) -> str:
    """Return what the server says that its model is: a folder or a hub name, else what it calls
    the model. Raises InvalidArgument("target_url") where it cannot be asked, or has several."""
    server = _server(place)
    try:
        entries = server.run(_models(server)).result()
    except InvalidArgument:
        raise
    except TandemError as error:
        raise InvalidArgument("target_url", f"{place.url}: {error}") from error
    finally:
        server.close()
    if len(entries) > 1:
        names = ", ".join(str(entry["id"]) for entry in entries)
        raise InvalidArgument("target_url", f"{place.url} serves several models: {names}; name one")
    return str(entries[0].get("root") or entries[0]["id"])


def _connected(choice: ModelChoice, place: ServerChoice, server: RemoteServer) -> LoadedModel:
    try:
        from tandem.backends.model_description import (
            default_sampling_of,
            load_tokenizer,
            model_name_of,
            text_config_of,
        )
    except ModuleNotFoundError as error:
        why = f"'remote' needs the extra remote ({error}): {install_command('remote')}"
        raise InvalidArgument("engine", why) from error
    from tandem.backends.remote.engine import RemoteEngine

    tokenizer = load_tokenizer(choice.source, choice.revision)
    source = find_source(choice.source, choice.revision)
    config = text_config_of(source)
    size = int(config.vocab_size)
    try:
        dialect = server.run(_dialect(server)).result()
        said = server.run(_served(server, choice.source)).result()
        served, context_length, _ = said
        known = server.run(_known_tokens(server, dialect, served, size)).result()
        server.run(_check_vocabulary(server, served, tokenizer)).result()
    except InvalidArgument:
        raise
    except TandemError as error:
        raise InvalidArgument("target_url", f"{place.url}: {error}") from error

    async def check() -> None:
        """Raise EngineFailed unless the server is what it was."""
        try:
            found = await _served(server, served)
            if found != said:
                raise InvalidArgument("target_url", f"it serves {found}, not {said}")
            await _check_vocabulary(server, served, tokenizer)
        except InvalidArgument as error:
            # Callers read the error; where the server has its model from is nothing to them.
            log.warning("the target's server is another one than before", reason=error.why)
            raise EngineFailed("the target's server is another one than before") from error

    engine = RemoteEngine(
        server,
        dialect,
        served_name=served,
        model_name=model_name_of(choice.source),
        vocabulary_size=tokenizer.model_size,
        vocabulary_hash=tokenizer.vocabulary_hash,
        context_length=context_length or _context_length(config),
        known_tokens=known,
        logits=size,
        check=check,
        eos_token_ids=frozenset(
            token_id for token_id in tokenizer.eos_token_ids if token_id < tokenizer.model_size
        ),
    )
    log.info(
        "connected to the target's server",
        server=dialect.name,
        model=served,
        known_tokens=known,
        context_length=engine.context_length,
    )
    content = f"remote:{place.url}:{served}"
    recommended = default_sampling_of(source, engine.vocabulary_size)
    defaults = decidable_defaults(recommended, known=known)
    return LoadedModel(engine, tokenizer, lambda: content, defaults)


async def _dialect(server: RemoteServer) -> Dialect:
    from tandem.backends.remote.dialects import Sglang, Vllm

    for path in ("/server_info", "/get_server_info"):
        if isinstance(await server.get(path), dict):
            return Sglang()
    return Vllm()


async def _models(server: RemoteServer) -> list[dict[str, Any]]:
    models = await server.get("/v1/models")
    entries = models.get("data") if isinstance(models, dict) else None
    listed = [entry for entry in entries or () if isinstance(entry, dict) and entry.get("id")]
    if not listed:
        raise InvalidArgument("target_url", "the server lists no model at /v1/models")
    return listed


async def _served(server: RemoteServer, name: str) -> tuple[str, int, str]:
    """Return what the server calls the model, how long a text may be (0: not said), and where it
    has the model from."""
    listed = await _models(server)
    wanted = [entry for entry in listed if name in (entry["id"], entry.get("root"))]
    if not wanted and len(listed) > 1:
        names = ", ".join(str(entry["id"]) for entry in listed)
        raise InvalidArgument("model", f"the server does not serve {name!r}, but {names}")
    entry = (wanted or listed)[0]
    length = entry.get("max_model_len")
    most = length if isinstance(length, int) and length > 0 else 0
    return str(entry["id"]), most, str(entry.get("root"))


async def _known_tokens(server: RemoteServer, dialect: Dialect, served: str, size: int) -> int:
    """Return how many tokens of a position the server tells of, by asking for them."""
    from tandem.backends.remote.dialects import RowsWanted
    from tandem.backends.remote.server import RefusedByServer

    most = min(MOST_KNOWN, size)
    tried = [most, *(count for count in USUALLY_KNOWN if count < most)]
    while tried:
        wanted = RowsWanted((0, 0), 2, tried[0])
        body = dialect.rows_body(wanted, model=served, salt="of the engine itself")
        try:
            answer = await server.post(dialect.path(), body)
        except RefusedByServer as error:
            if error.status == HTTPStatus.NOT_FOUND:
                why = f"the server has no {dialect.path()}: it is neither vLLM nor SGLang"
                raise InvalidArgument("target_url", why) from error
            if error.status != HTTPStatus.BAD_REQUEST or len(tried) == 1:
                raise
            allowed = ALLOWED.search(str(error))
            tried = tried[1:] if allowed is None else [max(1, int(allowed[1]))]
            continue
        dialect.rows(answer, wanted)
        return tried[0]
    raise AssertionError("the last one returns or raises")


async def _check_vocabulary(server: RemoteServer, served: str, tokenizer: Any) -> None:
    """Raise InvalidArgument("model") where the server makes other ids of a text."""
    for text in COMPARED:
        body = {"model": served, "prompt": text, "add_special_tokens": False}
        try:
            answer = await server.post("/tokenize", body)
        except TandemError as error:
            log.warning("the server's vocabulary cannot be compared", reason=str(error))
            return
        theirs = answer.get("tokens") if isinstance(answer, dict) else None
        if theirs != tokenizer.mark_ids(text):
            why = f"the tokenizer is another one than the server's: {text!r} differs"
            raise InvalidArgument("model", why)


def _context_length(config: Any) -> int:
    length = getattr(config, "max_position_embeddings", None)
    if not isinstance(length, int):
        raise InvalidArgument("target_url", "says no length of a text, nor does the configuration")
    return length
