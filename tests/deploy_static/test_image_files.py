"""What the build of an image installs: files whose hashes are known, and nothing else."""

from __future__ import annotations

import hashlib
import re
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.programs import REPOSITORY

INSTALL = runpy.run_path(str(REPOSITORY / "deploy" / "images" / "install.py"))
KnownFiles = Callable[[Path, str], list[Path]]
known_files: KnownFiles = INSTALL["known_files"]


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


def test_torch_is_its_index_s_and_what_is_never_used_is_left_out(tmp_path: Path) -> None:
    names = ("torch-2.13.0+cpu-cp311", "nvidia_cublas-13.1-py3", "setuptools-90.0-py3")
    for name in names:
        (tmp_path / f"{name}-none-any.whl").write_bytes(b"any")
    found = known_files(tmp_path, lock_of("other", b""))
    assert [file.name.split("-")[0] for file in found] == ["nvidia_cublas", "torch"]


def test_llama_cpp_is_the_one_that_was_built_for_the_image(tmp_path: Path) -> None:
    own_build: Callable[[Path], list[Path]] = INSTALL["own_build"]
    (tmp_path / "llamacpp.lock").write_text("")
    with pytest.raises(SystemExit, match="make llamacpp-wheel"):
        own_build(tmp_path)
    wheel = tmp_path / "llama_cpp_python-0.3.36-py3-none-linux_x86_64.whl"
    wheel.write_bytes(b"any")
    assert own_build(tmp_path) == [wheel]


def test_what_llama_cpp_needs_beside_the_lock_is_locked() -> None:
    lock = (REPOSITORY / "deploy" / "images" / "llamacpp.lock").read_text()
    assert (
        len(re.findall(r"^diskcache==5\.6\.3( \\\n +--hash=sha256:[0-9a-f]{64}){2}$", lock, re.M))
        == 1
    )


def test_the_lock_is_read_as_it_is_written(tmp_path: Path) -> None:
    """A file whose content only its hash stands for."""
    lock = (REPOSITORY / "requirements.lock").read_text()
    known = set(re.findall(r"sha256:([0-9a-f]{64})", lock))
    assert len(known) > 1000
    (tmp_path / "numpy-1-any.whl").write_bytes(b"")
    empty = hashlib.sha256(b"").hexdigest()
    with pytest.raises(SystemExit):
        known_files(tmp_path, lock)
    (first,) = re.findall(r"^numpy==.*\n +--hash=sha256:([0-9a-f]{64})", lock, re.M)
    assert known_files(tmp_path, lock.replace(first, empty))
