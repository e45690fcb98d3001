"""The import rules of `.importlinter` hold for every module, and tests keep a rule of their own."""

from __future__ import annotations

import ast
import configparser

from tests.programs import REPOSITORY, tracked_files

OF_THE_LABORATORY = ("tests/lab", "tests/howto", "tests/docs")
"""Its own tests, and those of pages, which describe it as well."""


def test_import_rules_have_no_exceptions() -> None:
    rules = configparser.ConfigParser()
    rules.read(REPOSITORY / ".importlinter", encoding="utf-8")
    assert len(rules.sections()) > 1
    for section in rules.sections():
        assert not [key for key in rules[section] if key.startswith("ignore_imports")], section


def imported(source: str) -> set[str]:
    """The modules that a file imports, wherever in it."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


def test_tests_of_the_product_do_not_know_the_laboratory() -> None:
    files = [path for path in tracked_files("tests") if path.suffix == ".py"]
    others = [REPOSITORY / folder for folder in OF_THE_LABORATORY]
    tests = [path for path in files if not any(path.is_relative_to(folder) for folder in others)]
    assert 100 < len(tests) < len(files)
    for path in tests:
        modules = imported(path.read_text(encoding="utf-8"))
        assert not {module for module in modules if module.split(".")[0] == "lab"}, path
