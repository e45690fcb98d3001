"""The public Python API: what `import tandem` offers. Everything else may change without notice."""

from tandem.api.errors import AccessDenied, DeadlineExceeded
from tandem.api.options import GenerationOptions, preset
from tandem.api.results import Answer, Piece
from tandem.api.suites import (
    AsyncStream,
    AsyncSuite,
    Stream,
    Suite,
    connect,
    connect_async,
    embedded,
    embedded_async,
)
from tandem.core.errors import (
    FailedPrecondition,
    InvalidArgument,
    ResourceExhausted,
    TandemError,
    Unavailable,
)
from tandem.generation.figures import ChoiceFigures, Figures, SideFigures
from tandem.suite.models import CannotLoad

__all__ = [
    "AccessDenied",
    "Answer",
    "AsyncStream",
    "AsyncSuite",
    "CannotLoad",
    "ChoiceFigures",
    "DeadlineExceeded",
    "FailedPrecondition",
    "Figures",
    "GenerationOptions",
    "InvalidArgument",
    "Piece",
    "ResourceExhausted",
    "SideFigures",
    "Stream",
    "Suite",
    "TandemError",
    "Unavailable",
    "connect",
    "connect_async",
    "embedded",
    "embedded_async",
    "preset",
]
