"""What comes from files and HTTP bodies as targets: extraction, requests, stored formats. As in
`wire_targets`, nothing passes but what is declared.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from starlette.requests import Request

from tandem.backends.cross_vocabulary.pairing import load_target_tokenizer
from tandem.backends.gguf_check import read_templates
from tandem.backends.image_files import decode_image, image_sizes
from tandem.backends.interface import KvFileRefused, KvOrigin
from tandem.backends.model_files import check_model_folder, check_weights, tokenizer_parts
from tandem.backends.model_trial import try_model
from tandem.core.errors import InvalidArgument
from tandem.core.foreign_words import MOST_CHARACTERS, cleaned, in_quotes
from tandem.core.processors import Grammar, GrammarKind, Processors
from tandem.core.sharing import parse_sharing
from tandem.demo import demo_folder
from tandem.gateway.connection_body import BodyLimits, read_body
from tandem.gateway.errors import ApiError
from tandem.gateway.request_reading import RequestLimits, chat_requests, completion_requests
from tandem.gateway.schema import ChatCompletionRequest, CompletionRequest
from tandem.grammar.compiler import GrammarCompiler
from tandem.index.extraction import Format, Refusal, extract
from tandem.index.names import MAX_NAME_BYTES, clean_name, shown
from tandem.index.records import Document, FolderDamaged, FolderMismatch, RankingOutdated
from tandem.index.sqlite_store import DATABASE, SqliteStore, read_manifest
from tandem.index.store import _checksum, checked_content
from tandem.net.access_keys import parse_keys, read_lines
from tests.fuzz.wire_targets import CONTEXT, Target
from tests.gateway.parsed_body import parse_body

MEMORY = Path("/dev/shm")
"""Folders in memory make a thousand databases a minute out of ten."""


def _extract(form: Format, raw: bytes) -> None:
    for found in extract(raw, form, "id", "title"):
        assert isinstance(found, Document | Refusal)


@cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


def _body(raw: bytes, kind: type[Any]) -> Any:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": raw, "more_body": False}

    headers = [(b"content-type", b"application/json")]
    request = Request({"type": "http", "method": "POST", "headers": headers}, receive)
    limits = BodyLimits(
        max_bytes=2**20, bytes_per_s=0.0, max_ids=lambda: CONTEXT, ending=asyncio.Event()
    )
    body = _loop().run_until_complete(read_body(request, limits))
    return parse_body(body, kind, CONTEXT)


def chat_body(raw: bytes) -> None:
    with suppress(ApiError, InvalidArgument):
        chat_requests(_body(raw, ChatCompletionRequest), RequestLimits())


def completion_body(raw: bytes) -> None:
    with suppress(ApiError, InvalidArgument):
        completion_requests(_body(raw, CompletionRequest), RequestLimits())


def keys_file(raw: bytes) -> None:
    with suppress(InvalidArgument, UnicodeDecodeError):  # a file that is no text is not read
        parse_keys(raw.decode())
    # What a running service makes of it: each line counts by itself, whatever the others are.
    text = raw.decode(errors="surrogateescape")
    lines = read_lines(text)
    alone = [read_lines(line) for line in text.splitlines()]
    assert list(lines.ring.keys) == [key for line in alone for key in line.ring.keys]
    bad = [number for number, line in enumerate(alone, start=1) if line.malformed]
    assert [each.number for each in lines.malformed] == bad


def document_name(raw: bytes) -> None:
    """A name that is taken stays as it is, and is safe to show; any other one is shown safely."""
    text = raw.decode(errors="replace")
    acts = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # on a terminal, or on how what is around it is shown
    assert acts.isdisjoint(map(unicodedata.category, shown(text)))
    with suppress(InvalidArgument):
        name = clean_name(text)
        assert clean_name(name) == name == shown(name)
        assert 0 < len(name.encode()) <= MAX_NAME_BYTES
        assert not {"/", "\\"} & {*name}


def foreign_words(raw: bytes) -> None:
    """Whatever a cloud says becomes one printable line, which no quotation mark of it ends."""
    text = raw.decode(errors="replace")
    assert cleaned(text).isprintable()
    assert len(cleaned(text)) <= MOST_CHARACTERS
    line = in_quotes(text)
    assert line == "" or '"' not in line[1:-1]


def sharing(raw: bytes) -> None:
    """Nobody is in two groups, and who is in none shares with nobody."""
    with suppress(InvalidArgument):
        shared = parse_sharing(raw.decode(errors="replace"))
        names = [name for group in shared.groups for name in group]
        assert len(names) == len({*names})
        assert shared.everybody or shared.group_of("nobody-else") in ("nobody-else", *names)


def sqlite_row(raw: bytes) -> None:
    """A row of a text, whose checksum a forger can compute too."""
    parts = raw.split(b"|", 3)
    parts += [b""] * (4 - len(parts))
    name, title, text, spans = parts
    content_hash = name.decode(errors="replace")
    row = [content_hash, title, text, spans]
    for checksum in (_checksum(content_hash.encode(), title, text, spans), 0):
        with suppress(FolderDamaged):
            checked_content([*row, checksum], 2, "place")


def _in_memory() -> Path:
    return Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))


def sqlite_file(raw: bytes) -> None:
    folder = _in_memory()
    try:
        (folder / DATABASE).write_bytes(raw)
        with suppress(FolderDamaged, FolderMismatch):
            manifest = read_manifest(folder)
            assert manifest is not None
            with closing(SqliteStore(folder, manifest)) as store:
                list(store.documents())
                with suppress(RankingOutdated):  # a chunk without a vector looks like that
                    store.find("one two", np.ones(manifest.dimension, np.float32), 5)
                store.verify()
    finally:
        shutil.rmtree(folder)


@cache
def _kv_files() -> Any:
    from tests.unit.backends.reference_models import pair

    return pair("llama").engine.kv_files


def kv_file(raw: bytes) -> None:
    with suppress(KvFileRefused):
        _kv_files().unpack(raw, KvOrigin("m", "v", "d", 3))


def image_file(raw: bytes) -> None:
    """Its header as every image's, then its pixels, as far as they are small."""
    with suppress(InvalidArgument):
        ((height, width),) = image_sizes([raw])
        if height * width <= 2**18:
            assert decode_image(raw, 0).size == (width, height)


@cache
def _grammars() -> GrammarCompiler:
    tokenizer = load_target_tokenizer(str(demo_folder("demo-target")))
    return GrammarCompiler(tokenizer, tokenizer.model_size, tokenizer.eos_token_ids)


def grammar(raw: bytes) -> None:
    """A kind, and a source of it; then a few tokens of its text."""
    kind = list(GrammarKind)[raw[0] % len(GrammarKind)] if raw else GrammarKind.JSON_SCHEMA
    with suppress(InvalidArgument):
        asked = Processors(grammar=Grammar(kind, raw[1:].decode(errors="replace")))
        asked.validate(CONTEXT)
        mask = _grammars().mask(asked.grammar)
        assert mask is not None
        answer: tuple[int, ...] = ()
        while len(answer) < 4 and (allowed := mask.allowed(answer)) is not None and allowed.any():
            answer = (*answer, int(allowed.argmax()))


def gguf_header(raw: bytes) -> None:
    with _model_file("model.gguf", raw) as path, suppress(InvalidArgument):
        read_templates(path)


def safetensors_header(raw: bytes) -> None:
    with _model_file("model.safetensors", raw) as path, suppress(InvalidArgument):
        (path.parent / "config.json").write_text('{"model_type": "llama", "vocab_size": 8}')
        check_weights(path.parent)


def model_config(raw: bytes) -> None:
    with _model_file("config.json", raw) as path, suppress(InvalidArgument):
        check_model_folder(path.parent)


def tokenizer_config(raw: bytes) -> None:
    with _model_file("tokenizer_config.json", raw) as path, suppress(InvalidArgument):
        tokenizer_parts(path.parent)


def tokenizer_file(raw: bytes) -> None:
    """In a process of its own, so that a second has a few runs."""
    with _model_file("tokenizer.json", raw) as path, suppress(InvalidArgument):
        try_model(path.parent, path, ())


def chat_template(raw: bytes) -> None:
    with suppress(InvalidArgument):
        try_model(MEMORY, None, [raw.decode(errors="replace")])


@contextmanager
def _model_file(name: str, raw: bytes) -> Iterator[Path]:
    folder = _in_memory()
    try:
        (folder / name).write_bytes(raw)
        yield folder / name
    finally:
        shutil.rmtree(folder)


STORED_TARGETS: Mapping[str, Target] = {
    f"extract_{form}": partial(_extract, form) for form in Format
} | {
    target.__name__: target
    for target in (
        chat_body,
        completion_body,
        keys_file,
        document_name,
        foreign_words,
        sharing,
        sqlite_row,
        sqlite_file,
        kv_file,
        image_file,
        grammar,
        gguf_header,
        safetensors_header,
        model_config,
        tokenizer_config,
        tokenizer_file,
        chat_template,
    )
}
