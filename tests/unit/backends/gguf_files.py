"""GGUF files made on the spot, and whether a test that reads them can run."""

import os
from importlib import import_module
from pathlib import Path

import pytest

from tandem.demo import demo_folder
from tools.write_gguf import write_gguf


def needs_llamacpp() -> None:
    """Skip the calling test where the extra is missing. CI installs it, and there it must be."""
    for name in ("llama_cpp", "gguf"):
        if os.environ.get("LLAMACPP") == "required":
            import_module(name)
        pytest.importorskip(name, reason="needs the extra 'llamacpp': make llamacpp")


def draft_gguf(folder: Path, kind: str = "F32") -> Path:
    """The demo pair's draft model."""
    return write_gguf(demo_folder("demo-draft"), folder / f"demo-draft-{kind}.gguf", kind=kind)
