"""What images and workflows are made of is named by its content, not by a tag that can be moved."""

from __future__ import annotations

import re
from itertools import chain
from typing import Any

import pytest
import yaml

from tests.programs import REPOSITORY, tracked_files

DOCKERFILES = [path for path in tracked_files() if path.name == "Dockerfile"]
WORKFLOWS = tracked_files(".github/workflows")
COMPOSE: dict[str, Any] = yaml.safe_load((REPOSITORY / "deploy" / "docker-compose.yml").read_text())
DIGEST = re.compile(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}")


def bases() -> dict[str, set[str]]:
    """By the argument of a build that can name another, what images stand on."""
    found: dict[str, set[str]] = {}
    for path in DOCKERFILES:
        for name, image in re.findall(r"^ARG (\w+_IMAGE)=(\S+)$", path.read_text(), re.M):
            if image != "${BASE_IMAGE}":
                found.setdefault(name, set()).add(image)
    return found


def default_of(text: str) -> str:
    """What Compose takes where a variable is not set."""
    return re.sub(r"^\$\{\w+-(.*)\}$", r"\1", text)


def images_of_compose() -> set[str]:
    services = COMPOSE["services"].values()
    built = {
        default_of(image)
        for service in services
        for name, image in (service.get("build") or {}).get("args", {}).items()
        if name.endswith("_IMAGE")
    }
    run = {default_of(service["image"]) for service in services}
    return built | {image for image in run if not image.startswith("tandem/")}


def test_every_image_that_is_not_ours_is_named_by_its_digest() -> None:
    assert len(DOCKERFILES) == 4
    named = set(chain(*bases().values())) | images_of_compose()
    assert len(named) == 3
    assert all(DIGEST.fullmatch(image) for image in named)


def test_a_dockerfile_builds_on_those_images_and_on_its_own_stages_alone() -> None:
    for path in DOCKERFILES:
        text = path.read_text()
        stages = set(re.findall(r"^FROM .* AS (\S+)$", text, re.M))
        for base in re.findall(r"^FROM (\S+)", text, re.M):
            stage = re.sub(r"\$\{\w+\}", "", base)
            own = any(name.startswith(stage) for name in stages if stage)
            assert own or base == "scratch" or base[2:-1] in bases() or base == "${BUILD_IMAGE}", (
                base
            )


def test_compose_and_every_dockerfile_build_on_the_same_images() -> None:
    assert {name: len(images) for name, images in bases().items()} == dict.fromkeys(bases(), 1)
    assert set(chain(*bases().values())) <= images_of_compose()


def test_what_an_image_installs_has_a_hash() -> None:
    """deploy/images/install.py compares hashes by itself."""
    assert not any("pip install" in path.read_text() for path in DOCKERFILES)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_names_actions_by_commit_and_each_job_has_no_right_that_it_does_not_use(
    path: Any,
) -> None:
    uses = re.findall(r"uses: (.*)$", path.read_text(), re.M)
    assert uses
    for action in uses:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    writing = {
        name
        for name, job in workflow["jobs"].items()
        if "write" in job.get("permissions", {}).values()
    }
    assert writing <= {"publish"}
