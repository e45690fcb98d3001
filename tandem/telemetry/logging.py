"""Structured logs: one event per line, with the session it belongs to.

JSON lines for machines, `key=value` on a terminal. Invariant: at INFO and above no prompt, text or
token is written: a field whose name says it holds one is replaced by its size, whoever logs it.
Text and tokens belong in fields, never in the event's name. Nor does a stranger decide how much a
library writes: its warnings are counted, gRPC's have no traceback. Standard library only.

    log = get_logger(__name__)
    with log_context(session="7f3a", preset="dsd"):
        log.info("opened", window=4)   # {"time": …, "event": "opened", "session": "7f3a", …}
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Mapping, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Literal, TextIO

Form = Literal["auto", "json", "text"]

PRIVATE_FIELDS = frozenset(
    {
        *("prompt", "text", "completion", "answer", "messages", "content", "stop", "document"),
        *("token", "tokens", "token_id", "token_ids", "prompt_ids", "draft", "query"),
    }
)
"""Fields that hold a user's words. A number in one of them is a count, and is shown."""

_TOKEN_FIELDS = frozenset({"token", "token_id"})
"""Those of them where a number is a token."""

_context: ContextVar[Mapping[str, object]] = ContextVar(
    "tandem_log_context", default=MappingProxyType({})
)
_FIELDS = "tandem_fields"

OWN_LOGGER = "tandem"
WARNINGS_PER_PERIOD = 10
WARNING_PERIOD_S = 60.0
"""From one line of a library's code so many warnings are written in so much time."""


def get_logger(name: str) -> EventLogger:
    """Return the logger of a module: `log.info("event", field=value, …)`."""
    return EventLogger(logging.getLogger(name))


@contextmanager
def log_context(**fields: object) -> Iterator[None]:
    """Add `fields` to every event logged inside, in this task and those it starts."""
    outer = _context.get()
    _context.set(MappingProxyType({**outer, **fields}))
    try:
        yield
    finally:
        # Not ContextVar.reset: that raises where a generator left open is closed by another task.
        _context.set(outer)


def add_log_context(**fields: object) -> None:
    """Add fields as `log_context` does, for what is left of this task."""
    _context.set(MappingProxyType({**_context.get(), **fields}))


def configure_logging(
    level: str = "info", stream: TextIO | None = None, form: Form = "auto"
) -> None:
    """Send everything, libraries' records too, to `stream` (stderr) from `level` up. A process
    calls this once, in its `main`; calling it again replaces what it set before."""
    stream = sys.stderr if stream is None else stream
    text = form == "text" or (form == "auto" and stream.isatty())
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextFormatter() if text else JsonFormatter())
    handler.addFilter(LibraryWarnings())
    handler.set_name("tandem")
    root = logging.getLogger()
    for former in [handler for handler in root.handlers if handler.get_name() == "tandem"]:
        root.removeHandler(former)
    root.addHandler(handler)
    root.setLevel(level.upper())


class EventLogger:
    """Logs an event's fixed name with its fields; any word may name a field."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def debug(self, event: str, /, **fields: object) -> None:
        self._log(logging.DEBUG, event, fields)

    def info(self, event: str, /, **fields: object) -> None:
        self._log(logging.INFO, event, fields)

    def warning(self, event: str, /, **fields: object) -> None:
        self._log(logging.WARNING, event, fields)

    def error(self, event: str, /, **fields: object) -> None:
        self._log(logging.ERROR, event, fields)

    def exception(self, event: str, /, **fields: object) -> None:
        """Log an error with the traceback of the exception being handled."""
        self._log(logging.ERROR, event, fields, trace=True)

    def _log(
        self, level: int, event: str, fields: Mapping[str, object], trace: bool = False
    ) -> None:
        self._logger.log(level, event, extra={_FIELDS: fields}, exc_info=trace)


class LibraryWarnings(logging.Filter):
    """Bounds what libraries write about input of strangers: gRPC logs a traceback for each message
    that it cannot read, as often as a peer sends one."""

    def __init__(self) -> None:
        super().__init__()
        self._written: dict[tuple[str, int], list[float]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write the record; one of gRPC's loses its traceback."""
        library = record.name.partition(".")[0]
        if library == OWN_LOGGER or record.levelno < logging.WARNING:
            return True
        # The place, not the words: these may be the stranger's.
        written = self._written.setdefault((record.pathname, record.lineno), [])
        written[:] = [each for each in written if record.created - each < WARNING_PERIOD_S]
        if len(written) == WARNINGS_PER_PERIOD:
            return False
        written.append(record.created)
        if library == "grpc" and isinstance(record.exc_info, tuple):
            error = record.exc_info[1]
            setattr(record, _FIELDS, {"why": f"{type(error).__name__}: {error}"})
            record.exc_info = None
            record.exc_text = None
        return True


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(_entry(self, record), default=str, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """`time LEVEL event key=value …`, and a traceback below where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        entry = _entry(self, record)
        trace = entry.pop("trace", None)
        named = ("time", "level", "logger", "event")
        time, level, logger, event = (str(entry.pop(name)) for name in named)
        fields = (f"{name}={_word(value)}" for name, value in entry.items())
        line = " ".join([time, f"{level.upper():7}", _word(event), *fields, f"logger={logger}"])
        return line if trace is None else f"{line}\n{trace}"


def _entry(formatter: logging.Formatter, record: logging.LogRecord) -> dict[str, object]:
    """Return the log entry of `record`, whose private fields are already replaced."""
    logged: Mapping[str, object] = getattr(record, _FIELDS, {})
    fields = {**_context.get(), **logged}
    if record.levelno >= logging.INFO:
        fields = {name: _shown(name, value) for name, value in fields.items()}
    moment = datetime.fromtimestamp(record.created, UTC)
    entry: dict[str, object] = {
        "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "event": record.getMessage(),
    }
    # A field never replaces what the line itself says.
    taken = {*entry, "trace"}
    entry.update({f"{name}_" if name in taken else name: value for name, value in fields.items()})
    if record.exc_info:
        entry["trace"] = formatter.formatException(record.exc_info)
    return entry


def _shown(name: str, value: object) -> object:
    is_count = isinstance(value, int | float) and name not in _TOKEN_FIELDS
    if name not in PRIVATE_FIELDS or value is None or is_count:
        return value
    if isinstance(value, str):
        return f"<{len(value)} characters>"
    if isinstance(value, Sized):
        return f"<{len(value)} items>"
    return "<private>"


def _word(value: object) -> str:
    """Return `value` without quotes where it is one plain word, else as JSON: no line can be
    forged."""
    text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    plain = text.isprintable() and not any(mark in text for mark in ' "=') and text != ""
    return text if plain or not isinstance(value, str) else json.dumps(value, ensure_ascii=False)
