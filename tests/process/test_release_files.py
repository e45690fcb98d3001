"""The files of a release: whole, with checksums, and an index that pip installs from."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import threading
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tandem import __version__
from tests.process.running_suite import TIMEOUT_S
from tests.process.wheel_environment import ENV, Installed
from tests.programs import REPOSITORY, where
from tools.release_files import images, make_release

pytestmark = pytest.mark.timeout(TIMEOUT_S)

PUBLISH = str(REPOSITORY / "tools" / "publish_release.sh")
PLACES = ("PACKAGE_INDEX", "IMAGE_REGISTRY", "CHART_REGISTRY", "GITHUB_RELEASE")


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where("helm")  # says how to get it
    folder = tmp_path_factory.mktemp("dist") / "release"
    folder.mkdir()
    (folder / "of-an-earlier-release").touch()
    make_release(folder)
    return folder


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """A folder over HTTP, as any web server has it; its address."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:  # the base's name
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_it_has_every_file_and_their_checksums(release: Path) -> None:
    wheel = f"tandem_edge-{__version__}-py3-none-any.whl"
    assert {path.name for path in release.iterdir()} == {
        *(wheel, f"tandem_edge-{__version__}.tar.gz", f"tandem-{__version__}.tgz"),
        *("simple", "images.txt", "sbom.json", "SHA256SUMS"),
    }
    checked = subprocess.run(
        ["sha256sum", "--check", "--strict", "SHA256SUMS"],
        cwd=release,
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stdout
    files = [path for path in release.rglob("*") if path.is_file() and path.name != "SHA256SUMS"]
    assert len(checked.stdout.splitlines()) == len(files)
    with tarfile.open(release / f"tandem-{__version__}.tgz") as chart:
        assert "tandem/Chart.yaml" in chart.getnames()
    assert json.loads((release / "sbom.json").read_text())["bomFormat"] == "CycloneDX"


def test_pip_installs_the_wheel_from_its_index(release: Path, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    venv.create(environment)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "--python")
    python = environment / "bin" / "python"
    with served(release) as address:
        index = ("--index-url", f"{address}/simple/", "--no-deps", "--no-cache-dir", "--no-compile")
        command = (*pip, python, "install", *index, f"tandem-edge=={__version__}")
        subprocess.run(command, check=True, env=ENV | {"PIP_FIND_LINKS": ""})
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    (tmp_path / "empty").mkdir()
    installed = Installed(release, environment, tmp_path / "empty")
    assert installed.run("tandem", "--version").stdout == f"{__version__}\n"
    demo = site / "tandem" / "demo" / "demo-target"
    assert (demo / "config.json").is_file(), "the pair with which test_wheel answers"


def test_the_images_are_those_of_the_compose_file() -> None:
    found = dict(images("9.8.7"))
    assert found["tandem/verifier:9.8.7"] == "services/verifier/Dockerfile"
    assert found["tandem/verifier:9.8.7-cuda"] == "services/verifier/Dockerfile"
    embeddings = ("lexical", "minilm", "torch")
    assert {f"tandem/retriever:9.8.7-{embedding}" for embedding in embeddings} <= found.keys()
    for file in found.values():
        assert (REPOSITORY / file).is_file()


def publish(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: text for name, text in os.environ.items() if name not in PLACES}
    environment = kept | {"DRY_RUN": "yes"} | variables
    return subprocess.run([PUBLISH, folder], capture_output=True, text=True, env=environment)


def test_what_would_be_published_is_said(release: Path) -> None:
    ended = publish(
        release,
        PACKAGE_INDEX="https://index.example.com/legacy/",
        IMAGE_REGISTRY="registry.example.com/team",
        CHART_REGISTRY="registry.example.com/charts",
        GITHUB_RELEASE="yes",
    )
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert f"docker push registry.example.com/team/aggregator:{__version__}" in lines
    assert (
        f"helm push {release}/tandem-{__version__}.tgz oci://registry.example.com/charts" in lines
    )
    (upload,) = (line for line in lines if line.startswith("twine upload "))
    assert upload.endswith(f".whl {release}/tandem_edge-{__version__}.tar.gz")
    (released,) = (line for line in lines if line.startswith("gh release create "))
    assert released.split()[3] == f"v{__version__}"


def test_nothing_is_published_without_a_place_or_with_a_changed_file(release: Path) -> None:
    ended = publish(release)
    assert ended.returncode == 2
    assert ended.stderr.startswith("publish: set PACKAGE_INDEX, ")
    path = release / "images.txt"
    kept = path.read_text()
    try:
        path.write_text(kept + "tandem/other:1 Dockerfile\n")
        ended = publish(release, PACKAGE_INDEX="https://index.example.com/legacy/")
        assert ended.returncode == 1
        assert "images.txt: FAILED" in ended.stdout
        assert "twine" not in ended.stdout
    finally:
        path.write_text(kept)
