"""Which packages a suite needs, before models are loaded or processes started."""

from tandem.backends.factory import engine_of
from tandem.backends.model_source import ModelChoice
from tandem.core.extras import require


def require_packages(*choices: ModelChoice) -> None:
    """Raise ModuleNotFoundError for what a suite of these models with an HTTP API lacks. The error
    of a process that was started would be in its log, after the time to start it."""
    if any(engine_of(choice) == "torch" for choice in choices):
        require("torch", "transformers")
    require("fastapi", "uvicorn")
