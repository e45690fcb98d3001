"""The engine's equality checks on a CUDA device, against the eager reference on the same device."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tandem.backends.interface import ForwardRequest
from tandem.backends.torch.loading import load_engine
from tandem.two_sided.decoding.document_store import DocumentStore
from tests.unit.backends.engine_checks import CHECKS
from tests.unit.backends.reference_models import CONFIGS, FAST_PATH, Pair, pair, tokens
from tests.unit.backends.test_exit_verdicts import DRAFTS, GREEDY, WARM, assert_same, early_verdicts
from tests.unit.backends.test_exits import engine_of, reference
from tests.unit.backends.tiny_folders import write_model
from tests.unit.two_sided.document_checks import DOCUMENTS, engine_thread, files_in, logits_after

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
WITHIN = 5e-5  # kernels chosen by size add up in different orders
Check = Callable[[Pair, float], None]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", CONFIGS)
def test_generic_path_equals_reference(name: str, check: Check) -> None:
    check(pair(name, fast_path=False, device="cuda"), WITHIN)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", FAST_PATH)
def test_llama_path_equals_reference(name: str, check: Check) -> None:
    found = pair(name, device="cuda")
    assert found.engine.fast_path
    check(found, WITHIN)


@pytest.mark.parametrize("name", ["llama", "mistral", "gpt2"])
def test_bfloat16_on_cuda_is_close_to_float32_on_the_cpu(tmp_path: Path, name: str) -> None:
    sequence = tuple(tokens(30, seed=2))
    answers = []
    write_model(tmp_path, name)
    for device, dtype in (("cpu", "float32"), ("cuda", "bfloat16")):
        engine = load_engine(tmp_path, device=device, dtype=dtype)
        session = engine.open(30)
        answers += engine.forward([ForwardRequest(session, sequence, 30)])
        session.close()
        assert engine.kv_bytes_in_use == 0
    error = np.linalg.norm(answers[1] - answers[0]) / np.linalg.norm(answers[0])
    assert error < 0.05


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_quantised_weights_on_cuda_are_those_on_the_cpu(tmp_path: Path, dtype: str) -> None:
    sequence, answers = tuple(tokens(30, seed=2)), []
    write_model(tmp_path, "llama")
    for device in ("cpu", "cuda"):
        engine = load_engine(tmp_path, device=device, dtype=dtype)
        answers += engine.forward([ForwardRequest(engine.open(30), sequence, 30)])
    error = np.linalg.norm(answers[1] - answers[0]) / np.linalg.norm(answers[0])
    assert error < 0.05


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_documents_are_the_same_from_disk(tmp_path: Path, dtype: str) -> None:
    write_model(tmp_path / "model", "llama")
    engine = load_engine(tmp_path / "model", device="cuda", dtype=dtype)
    found = []
    async with engine_thread(engine) as thread:
        for _ in ("computed", "disk"):
            store = DocumentStore(thread, 2**30, files_in(tmp_path / "kv", engine))
            found.append(await logits_after(store, DOCUMENTS))
            await store.close()
    assert np.abs(found[0] - found[1]).max() < WITHIN
    assert engine.kv_bytes_in_use == 0


def test_early_verdicts_on_cuda_are_those_on_the_cpu() -> None:
    on_cpu, on_cuda = (
        engine_of(reference("llama").to(device), fast_path=True, trained=True)
        for device in ("cpu", "cuda")
    )
    for seed in range(6):
        for sampling in (WARM, GREEDY):
            drafts = tokens(DRAFTS, seed=40 + seed)
            said = [early_verdicts(each, drafts, sampling, seed=seed) for each in (on_cpu, on_cuda)]
            assert len(said[0]) == len(said[1]) == 2
            for one, other in zip(*said, strict=True):
                assert_same(one, other)
