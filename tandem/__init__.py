"""Speculative decoding over gRPC: a draft model at the edge, a target model in the cloud.

    with tandem.embedded() as suite:
        print(suite.generate("A list is", max_tokens=40).text)

`embedded` runs a pair of models in this process, `connect` asks a running suite; `embedded_async`
and `connect_async` are the same for asyncio. Importing this package is cheap: torch and gRPC are
imported when they are needed.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from tandem.core.version import __version__ as __version__

if TYPE_CHECKING:
    from tandem.api import *  # noqa: F403  # its `__all__` lists the names


def __getattr__(name: str) -> Any:
    """Names of `tandem.api`, and `__all__`. The import system asks here for submodules too."""
    if name != "__all__" and (name.startswith("_") or find_spec(f"{__name__}.{name}")):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    api = import_module("tandem.api")
    public = [*api.__all__, "__version__"]
    if name not in ("__all__", *public):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = public if name == "__all__" else getattr(api, name)
    return value


def __dir__() -> list[str]:
    return sorted(__getattr__("__all__"))
