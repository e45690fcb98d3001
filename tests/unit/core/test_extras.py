"""What is said of a package that cannot be imported: which extra installs it, if one does."""

from __future__ import annotations

import pytest

from tandem.core.extras import (
    EXTRA_OF,
    EXTRAS,
    install_command,
    installing,
    missing_package,
    require,
)


def missing(package: str) -> ModuleNotFoundError:
    return ModuleNotFoundError(f"No module named {package!r}", name=package)


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("uvicorn", "uvicorn", "http"),
        ("pypdf.errors", "pypdf", "documents"),
        ("opentelemetry.sdk.trace", "opentelemetry", "tracing"),
        ("psycopg_pool", "psycopg_pool", "postgres"),
    ],
)
def test_a_package_of_an_extra_is_named_with_the_command_that_installs_it(
    module: str, package: str, extra: str
) -> None:
    command = f"pip install 'tandem-edge[{extra}]'"
    assert installing(missing(module)) == install_command(extra) == command
    assert missing_package(missing(module)) == (
        f"{package} is not installed; it is part of the extra '{extra}': {command}"
    )
    assert EXTRA_OF[package] == extra
    assert extra in EXTRAS


def test_a_package_of_no_extra_is_named_and_the_doctor_asked() -> None:
    assert installing(missing("nowhere.at.all")) == ""
    assert missing_package(missing("nowhere.at.all")) == (
        "nowhere is not installed; see 'tandem doctor'"
    )


def test_an_import_that_names_no_module_has_its_words() -> None:
    assert missing_package(ModuleNotFoundError("uvicorn.loops")).startswith("uvicorn is not")
    assert installing(ModuleNotFoundError("")) == ""


def test_what_is_required_is_looked_for_and_not_imported() -> None:
    require()
    require("json", "email")
    with pytest.raises(ModuleNotFoundError, match="No module named 'nowhere'") as error:
        require("json", "nowhere", "nowhere_else")
    assert error.value.name == "nowhere"
