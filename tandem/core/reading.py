"""Whatever a library raises for input that strangers made becomes one error with a message."""

from collections.abc import Iterator
from contextlib import contextmanager

from tandem.core.errors import InvalidArgument, TandemError

_LONGEST = 500


@contextmanager
def reading(subject: object, field: str, why: str = "cannot be loaded") -> Iterator[None]:
    """Turn every failure inside into InvalidArgument(field), whose words name the `subject`, such
    as a file. An error of our own passes, and so does what ends a process."""
    try:
        yield
    except TandemError:
        raise
    except BaseException as error:
        # A library in Rust that panics raises what is no Exception, so that nobody catches it.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise InvalidArgument(field, f"{subject} {why}: {words_of(error)}") from error


def words_of(error: BaseException) -> str:
    """Return what went wrong, on one line."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, MemoryError):
        return "it needs more memory than there is"
    lines = (line.strip() for line in str(error).splitlines())
    return next((line for line in lines if line), type(error).__name__)[:_LONGEST]
