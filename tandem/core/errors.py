"""The two ways a caller can be wrong: a bad value, or a good message at the wrong moment. Servers
map these to status codes, so neither may ever be raised for a fault of our own."""

import errno
import os
from collections.abc import Iterable
from difflib import get_close_matches


class TandemError(Exception):
    """Base of every error Tandem raises on purpose."""


class ProtocolError(TandemError):
    """A message that the receiving state machine does not allow in its present state."""

    def __init__(self, state: str, message: str, why: str = "") -> None:
        """Create the error from the names of the state and of the offending message."""
        super().__init__(f"{message} in state {state}" + (f": {why}" if why else ""))
        self.state = state
        self.message = message
        self.why = why


class InvalidArgument(TandemError):
    """A value from a caller that is out of range, of the wrong shape, or not a number."""

    def __init__(self, field: str, why: str) -> None:
        super().__init__(f"{field}: {why}")
        self.field = field
        self.why = why


def unknown_name(field: str, name: str, known: Iterable[str]) -> InvalidArgument:
    """Return an error for a name that is not in `known`, with the most similar name and all known
    ones. Names with dots are also known by what follows the last one."""
    names = list(known)
    close = get_close_matches(
        name, [full_name.rpartition(".")[2] for full_name in names] + names, n=1
    )
    meant = f"did you mean {close[0]!r}? Known" if close else "known"
    return InvalidArgument(field, f"unknown: {name!r}; {meant}: {', '.join(names)}")


def os_words(error: OSError) -> str:
    """Return what is wrong with a file, as "FILE: what is wrong with it"."""
    why = error.strerror or str(error)
    return f"{error.filename}: {why}" if error.filename else why


def listen_words(error: OSError, host: str, port: int) -> str:
    """Return why an address cannot be listened on. asyncio and socket write the address into these
    errors; those of names that cannot be found have numbers of their own, below 0."""
    if error.errno == errno.EADDRINUSE:
        return f"port {port} is in use: another process listens on {host}:{port}"
    known = error.errno is not None and error.errno > 0
    why = os.strerror(error.errno or 0) if known else error.strerror or str(error)
    return f"{host}:{port} cannot be listened on: {why}"


def check_count(count: int, most: int, field: str) -> None:
    """Raise InvalidArgument(field) for more than `most` of something. Decoders check the number of
    entries with it, before anything is made of them."""
    if count > most:
        raise InvalidArgument(field, f"has {count} entries; the maximum is {most}")


class FailedPrecondition(TandemError):
    """The two ends do not fit each other: another model, another vocabulary, another version; or a
    suite that is asked is not open."""


class DataLoss(TandemError):
    """The two ends differ in text that both hold to be final."""


class ResourceExhausted(TandemError):
    """No room for one more session, request or queued frame."""


class Unavailable(TandemError):
    """The service, or what it depends on, cannot be reached, is stopping or does not work."""

    def __init__(self, why: str, silent_s: float = 0.0) -> None:
        """Create the error; `silent_s` is how many seconds the service's engine had been stuck."""
        super().__init__(why)
        self.silent_s = silent_s
