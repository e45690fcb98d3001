"""A copy of this checkout in which a how-to is followed, and what it then does."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


class EditedCheckout:
    """The files of some folders as git knows them, copied; each edit is one step of a how-to."""

    def __init__(self, folder: Path, *copied: str) -> None:
        self._folder = folder
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *copied],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=True,
        )
        for name in filter(None, listed.stdout.split("\0")):
            if (REPOSITORY / name).exists():  # not one that is deleted but not committed yet
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(REPOSITORY / name, folder / name)
                _copy_compiled(REPOSITORY / name, folder / name)

    def insert_after(self, path: str, line: str, inserted: str) -> None:
        """Put `inserted` after the only occurrence of `line`."""
        text = (self._folder / path).read_text()
        assert text.count(line) == 1, f"{path}: {text.count(line)} times {line!r}"
        (self._folder / path).write_text(text.replace(line, line + inserted))

    def create(self, path: str, text: str) -> None:
        assert not (self._folder / path).exists()
        (self._folder / path).write_text(text)

    def changed(self) -> set[str]:
        """The files that are not as they are here; generated ones (gen/) do not count."""
        copies = (path for path in self._folder.rglob("*") if path.is_file())
        names = {str(path.relative_to(self._folder)) for path in copies}
        kept = {name for name in names if "__pycache__" not in name and not name.startswith("gen/")}
        return {name for name in kept if self._differs(name)}

    def _differs(self, name: str) -> bool:
        here = REPOSITORY / name
        return not here.exists() or here.read_bytes() != (self._folder / name).read_bytes()

    def build_protos(self) -> None:
        """Generate gen/, unless the protos are as they are here: then what is generated is, too."""
        if any(name.startswith("protos/") for name in self.changed()):
            self.run("tools/build_protos.py")
        else:
            shutil.copytree(REPOSITORY / "gen", self._folder / "gen")

    def run(self, *arguments: str) -> str:
        """What Python prints in the copy, with the copy's modules."""
        path = os.pathsep.join((str(self._folder), str(self._folder / "gen")))
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self._folder,
            env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def _copy_compiled(source: Path, copy: Path) -> None:
    """What Python has compiled of a file is valid for a copy with its time, and spares seconds."""
    compiled = Path(importlib.util.cache_from_source(str(source)))
    if source.suffix == ".py" and compiled.exists():
        target = Path(importlib.util.cache_from_source(str(copy)))
        target.parent.mkdir(exist_ok=True)
        shutil.copy2(compiled, target)
