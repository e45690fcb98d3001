"""What is locked is hashed, and the list of materials names all of it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import distributions, version
from importlib.resources import files
from pathlib import Path

import jsonschema_rs  # of schemathesis: two hundred times as fast as jsonschema here
from packaging.requirements import Requirement

from tests.programs import REPOSITORY

LICENSED_BY_FILE = {
    "atheris": "Apache-2.0; its metadata name the file alone",
    "axe-playwright-python": "MIT; its metadata name the file alone",
}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def constraints() -> dict[str, str]:
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    pairs = (line.split("==") for line in lines if not line.startswith("#"))
    return {canonical(name): version for name, version in pairs}


def locked() -> dict[str, str]:
    """All but torch, whose file, and so its hash, depends on the index that it is from."""
    return {name: version for name, version in constraints().items() if name != "torch"}


def test_make_setup_installs_the_torch_that_was_tested() -> None:
    """Exactly one of the range that users may have."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    engine = map(Requirement, project["optional-dependencies"]["engine"])
    (torch,) = (one for one in engine if one.name == "torch")
    tested = constraints()["torch"]
    assert torch.specifier.contains(tested)
    assert not any(one.operator == "==" for one in torch.specifier)
    assert tested == version("torch").split("+")[0]
    printed = subprocess.run(
        ["make", "--no-print-directory", "--eval", "print-torch: ; @echo $(TORCH)", "print-torch"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    assert printed.stdout == f"{tested}\n"


def test_every_locked_package_has_hashes() -> None:
    text = (REPOSITORY / "requirements.lock").read_text()
    entries = re.findall(
        r"^(\S+)==(\S+) \\\n((?: +--hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", text, re.M
    )
    assert {canonical(name): version for name, version, _ in entries} == locked()
    assert text.count("==") == len(entries)


def bom_validator(version: str) -> jsonschema_rs.Validator:
    """By the schemas that the format's library brings, which name each other by their files."""
    folder = Path(str(files("cyclonedx.schema") / "_res"))
    schemas = {path.name: json.loads(path.read_text()) for path in folder.glob("*.schema.json")}
    base = "http://cyclonedx.org/schema/"
    registry = jsonschema_rs.Registry([(base + name, each) for name, each in schemas.items()])
    schema = schemas[f"bom-{version}.SNAPSHOT.schema.json"]
    validator: jsonschema_rs.Validator = jsonschema_rs.validator_for(schema, registry=registry)
    assert not validator.is_valid({"bomFormat": "CycloneDX", "specVersion": version, "version": ""})
    return validator


def test_the_list_of_materials_names_every_locked_package(tmp_path: Path) -> None:
    """With its version and its licence; by the command of `make sbom`."""
    target = tmp_path / "sbom.json"
    command = (REPOSITORY / "tools" / "sbom.sh", sys.executable, target)
    subprocess.run(command, check=True, capture_output=True, timeout=100)
    found = json.loads(target.read_text())
    assert found["bomFormat"] == "CycloneDX"
    assert not list(bom_validator(found["specVersion"]).iter_errors(found))
    assert found["metadata"]["component"]["name"] == "tandem-edge"
    named = {canonical(one["name"]): one for one in found["components"]}
    here = locked().keys() & {canonical(one.name) for one in distributions()}
    assert len(here) > 100, "other Pythons may need a few less"
    assert {name: named[name]["version"] for name in here} == {n: locked()[n] for n in here}
    unlicensed = {name for name in (*here, "torch") if not named[name].get("licenses")}
    assert unlicensed <= LICENSED_BY_FILE.keys()
