"""What the build of an image installs: files whose hashes are known, and nothing else."""

from __future__ import annotations

import ctypes
import hashlib
import re
import runpy
import shutil
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.programs import REPOSITORY

INSTALL = runpy.run_path(str(REPOSITORY / "deploy" / "images" / "install.py"))
KnownFiles = Callable[[Path, str], list[Path]]
known_files: KnownFiles = INSTALL["known_files"]
cut: Callable[[Path], None] = INSTALL["cut_what_is_never_loaded"]


def lock_of(name: str, content: bytes) -> str:
    """As `make lock` writes it, with the hash of another platform's file."""
    found = hashlib.sha256(content).hexdigest()
    hashes = " \\\n    --hash=sha256:".join(("", "0" * 64, found))
    return f"# comment\n{name}==1.0{hashes}\n"


def test_a_file_is_installed_only_where_the_lock_has_its_hash(tmp_path: Path) -> None:
    good, lock = tmp_path / "Some_Package-1.0-py3-none-any.whl", lock_of("some-package", b"good")
    good.write_bytes(b"good")
    assert known_files(tmp_path, lock) == [good]
    for name in ("other-1.0-py3-none-any.whl", "torchvision-1.0-py3-none-any.whl"):
        stranger = tmp_path / name
        stranger.write_bytes(b"good")
        with pytest.raises(SystemExit, match=f"{name}: its hash .* is not in requirements.lock"):
            known_files(tmp_path, lock)
        stranger.unlink()
    good.write_bytes(b"changed")
    with pytest.raises(SystemExit, match="Some_Package"):
        known_files(tmp_path, lock)


@pytest.mark.skipif(sys.platform != "linux", reason="images are for Linux")
def test_a_library_that_is_cut_can_still_be_loaded(tmp_path: Path) -> None:
    """The one of llama.cpp, of which most is there for debuggers alone."""
    spec = find_spec("xllamacpp")
    assert spec is not None
    (whole,) = Path(str(spec.origin)).parent.glob("*.so")
    library = Path(shutil.copy(whole, tmp_path))
    cut(library)
    assert library.stat().st_size < whole.stat().st_size / 2
    version = ctypes.CDLL(str(library)).ggml_version
    version.restype = ctypes.c_char_p
    assert re.fullmatch(rb"\d+\.\d+\.\d+", version())
