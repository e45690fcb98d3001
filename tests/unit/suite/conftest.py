"""Models of this checkout, which a developer may have or not, are not those of a test."""

import pytest

from tandem.suite import local_models


@pytest.fixture(autouse=True)
def no_models_of_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_models, "checkout", lambda: None)
