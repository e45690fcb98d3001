"""All files of a release, in one folder: `python -m tools.release_files --out dist/release`.

    tandem_edge-X.Y.Z.tar.gz           source distribution
    tandem_edge-X.Y.Z-py3-none-any.whl the wheel, built from it
    simple/                            a package index of the two, for any web server
    tandem-X.Y.Z.tgz                   the Helm chart
    images.txt                         the images, with their tags, and the Dockerfile of each
    sbom.json                          packages, versions and licences (CycloneDX)
    SHA256SUMS                         of all of these, for `sha256sum --check`

`tools/publish_release.sh` uploads what lies there. Invariant: the folder appears whole or not at
all, and nothing of an earlier release stays in it.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from tools.release_check import REPOSITORY, version_of

CHART = REPOSITORY / "deploy" / "k8s" / "tandem"
COMPOSE = REPOSITORY / "deploy" / "docker-compose.yml"
DISTRIBUTION = "tandem-edge"
EMBEDDINGS = ("lexical", "minilm", "torch")
"""The retriever has an image for each."""
CHECKSUMS = "SHA256SUMS"
_VARIABLE = re.compile(r"\$\{(\w+)-([^}]*)\}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Make all files of a release.")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "dist" / "release")
    folder: Path = parser.parse_args().out
    make_release(folder)
    for path in sorted(folder.iterdir()):
        print(path)


def make_release(folder: Path) -> None:
    """Fill `folder`, which is replaced. Raises CalledProcessError if a tool fails."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent, prefix=".release-") as temporary:
        made = Path(temporary) / "made"
        made.mkdir()
        make_distributions(made)
        make_index(made)
        _run(_helm(), "package", CHART, "--destination", made)
        lines = [f"{image} {file}\n" for image, file in images(version_of(REPOSITORY))]
        (made / "images.txt").write_text("".join(lines), encoding="utf-8")
        _run(REPOSITORY / "tools" / "sbom.sh", sys.executable, (made / "sbom.json").absolute())
        write_checksums(made)
        if folder.exists():
            shutil.rmtree(folder)
        made.rename(folder)


def make_distributions(folder: Path) -> None:
    """The source distribution, and the wheel from what is in it: who builds from source gets the
    same."""
    _build("sdist", REPOSITORY, folder)
    (archived,) = folder.glob("*.tar.gz")
    with TemporaryDirectory() as scratch:
        with tarfile.open(archived) as archive:
            archive.extractall(scratch, filter="data")
        (source,) = Path(scratch).iterdir()
        _build("wheel", source, folder)


def make_index(folder: Path) -> None:
    """Write `simple/`, an index that pip and uv can read over HTTP or from the disk (PEP 503)."""
    project = folder / "simple" / DISTRIBUTION
    project.mkdir(parents=True)
    anchors = [
        f'<a href="../../{path.name}#sha256={_sha256(path)}">{path.name}</a><br>'
        for path in sorted([*folder.glob("*.whl"), *folder.glob("*.tar.gz")])
    ]
    _write_page(project / "index.html", anchors)
    _write_page(folder / "simple" / "index.html", [f'<a href="{DISTRIBUTION}/">{DISTRIBUTION}</a>'])


def images(version: str) -> list[tuple[str, str]]:
    """Return the images of the compose file, tagged with `version`, and the Dockerfile of each."""
    found: set[tuple[str, str]] = set()
    for embedding in EMBEDDINGS:
        given = {"TAG": version, "EMBEDDING": embedding}
        text = _VARIABLE.sub(
            lambda variable, given=given: given.get(variable[1], variable[2]),  # type: ignore[misc]
            COMPOSE.read_text(encoding="utf-8"),
        )
        services: dict[str, Any] = yaml.safe_load(text)["services"]
        found |= set(_built(services.values()))
    return sorted(found)


def _built(services: Any) -> Iterator[tuple[str, str]]:
    for service in services:
        if "build" in service:
            yield service["image"], service["build"]["dockerfile"]


def write_checksums(folder: Path) -> None:
    """Write SHA256SUMS of all other files below `folder`."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != CHECKSUMS)
    lines = [f"{_sha256(path)}  {path.relative_to(folder)}\n" for path in paths]
    (folder / CHECKSUMS).write_text("".join(lines), encoding="utf-8")


def _build(target: str, source: Path, folder: Path) -> None:
    command = (sys.executable, "-P", "-m", "hatchling", "build", "--target", target)
    _run(*command, "--directory", folder.absolute(), where=source)


def _helm() -> str:
    """`make deploy-tools` puts it beside Python."""
    beside = str(Path(sys.executable).parent)
    found = shutil.which("helm", path=beside) or shutil.which("helm")
    if found is None:
        sys.exit("release-files: helm is not installed; run 'make deploy-tools'")
    return found


def _run(*command: str | Path, where: Path = REPOSITORY) -> None:
    subprocess.run([*map(str, command)], cwd=where, check=True, stdout=sys.stderr)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_page(path: Path, lines: list[str]) -> None:
    body = "\n".join(lines)
    path.write_text(f"<!DOCTYPE html>\n<html><body>\n{body}\n</body></html>\n", encoding="utf-8")


if __name__ == "__main__":
    main()
