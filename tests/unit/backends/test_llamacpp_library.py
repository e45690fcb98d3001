"""The library of llama.cpp is looked at before it is used."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tandem.backends.factory import load_model
from tandem.backends.interface import ForwardRequest
from tandem.backends.llamacpp import library as module
from tandem.backends.llamacpp.library import LIBRARY_VARIABLE, find_library, library
from tandem.backends.model_source import ModelChoice
from tandem.core.errors import InvalidArgument
from tests.unit.backends.gguf_files import draft_gguf, q4_k_gguf


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """What was loaded before does not count, nor what a test loads after it."""
    library.cache_clear()
    yield
    library.cache_clear()


def test_the_package_s_library_has_the_declared_layout() -> None:
    defaults = library().llama_context_default_params()
    assert (defaults.n_ctx, defaults.n_batch, defaults.n_ubatch) == (512, 2048, 512)
    assert find_library().is_file()


@pytest.mark.parametrize(
    ("part", "expected", "why"),
    [
        ("GGML_VERSION", "0.1.0", "0.1.0 is needed"),
        ("_EXPECTED_CONTEXT", {"n_ctx": 4096}, "ContextParams.n_ctx is 512 where 4096"),
        ("_EXPECTED_MODEL", {"main_gpu": 7}, "ModelParams.main_gpu is 0 where 7"),
    ],
)
def test_another_version_is_refused(
    monkeypatch: pytest.MonkeyPatch, part: str, expected: object, why: str
) -> None:
    monkeypatch.setattr(module, part, expected)
    with pytest.raises(ImportError, match=why):
        library()


def test_a_file_that_is_named_and_is_no_library_is_refused_by_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "llama.so"
    path.write_text("not a library")
    monkeypatch.setenv(LIBRARY_VARIABLE, str(path))
    with pytest.raises(InvalidArgument, match=str(path)) as refused:
        load_model(ModelChoice(str(draft_gguf(tmp_path))))
    assert refused.value.field == "engine"
    assert "pip install" not in str(refused.value), "a package would not help"


def test_the_number_of_threads_changes_no_bit(tmp_path: Path) -> None:
    """So it may be chosen while answers run."""
    path = str(q4_k_gguf(tmp_path))
    found = []
    for threads in (1, 2, 3):
        engine = load_model(ModelChoice(path, threads=threads)).engine
        session = engine.open(64)
        rows = [
            engine.forward([ForwardRequest(session, tuple(range(8, 8 + count)), count)])[0]
            for count in (40, 1, 2, 5, 1)
        ]
        found.append(np.concatenate(rows))
    assert all(np.array_equal(found[0], other) for other in found[1:])
