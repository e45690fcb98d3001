"""Names and sizes of the product's modules, and that import rules have no exceptions."""

from __future__ import annotations

import ast
import configparser
from collections import defaultdict

from tests.programs import REPOSITORY, tracked_files

MOST_LINES, FEW_LINES, MOST_SMALL_FILES = 400, 40, 15

SAME_ROLE = {
    "__init__": "what a package is",
    "__main__": "a service's process",
    "config": "a service's settings",
    "servicer": "a service's gRPC methods",
    "session": "one session of a service, from its stream's opening to its end",
    "engine": "an implementation of tandem.backends.interface.Engine",
    "errors": "a room's exceptions",
    "access": "who may call, and how to call as one: of the API's caller and of the services",
    "options": "what a caller may choose: in the API and on the command line",
    "presets": "the presets of a protocol: specdec's and two_sided's",
    "messages": "the messages of a protocol: specdec's and two_sided's",
}
"""Module names that may stand in several rooms, as they mean the same in each."""


def test_class_names_are_unique() -> None:
    places = defaultdict(list)
    for name, text in _modules("tandem"):
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(name)
    assert not {name: where for name, where in places.items() if len(where) > 1}


def test_module_names_are_unique() -> None:
    places = defaultdict(list)
    for name, _ in _modules("tandem"):
        places[name.rsplit("/", 1)[-1].removesuffix(".py")].append(name)
    repeated = {base: where for base, where in places.items() if len(where) > 1}
    assert not {base: where for base, where in repeated.items() if base not in SAME_ROLE}
    assert repeated.keys() == SAME_ROLE.keys(), "names that need no exception any more"


def test_no_file_is_too_long() -> None:
    lengths = {name: len(text.splitlines()) for name, text in _modules("tandem", "services")}
    assert not {name: lines for name, lines in lengths.items() if lines > MOST_LINES}


def test_few_files_are_very_short() -> None:
    short = [
        name
        for name, text in _modules("tandem", "services")
        if len(text.splitlines()) < FEW_LINES and not name.endswith("/__init__.py")
    ]
    assert len(short) <= MOST_SMALL_FILES, "\n".join(short)


def test_import_rules_have_no_exceptions() -> None:
    rules = configparser.ConfigParser()
    rules.read(REPOSITORY / ".importlinter", encoding="utf-8")
    assert len(rules.sections()) > 1
    for section in rules.sections():
        assert not [key for key in rules[section] if key.startswith("ignore_imports")], section


def _modules(*folders: str) -> list[tuple[str, str]]:
    """(name, text) of every Python file."""
    return [
        (path.relative_to(REPOSITORY).as_posix(), path.read_text(encoding="utf-8"))
        for path in tracked_files(*folders)
        if path.suffix == ".py"
    ]
