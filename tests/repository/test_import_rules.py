"""The import rules of `.importlinter` hold for every module."""

from __future__ import annotations

import configparser

from tests.programs import REPOSITORY


def test_import_rules_have_no_exceptions() -> None:
    rules = configparser.ConfigParser()
    rules.read(REPOSITORY / ".importlinter", encoding="utf-8")
    assert len(rules.sections()) > 1
    for section in rules.sections():
        assert not [key for key in rules[section] if key.startswith("ignore_imports")], section
