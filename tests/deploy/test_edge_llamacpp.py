"""The profile edge-llamacpp: llama.cpp drafts from a GGUF file, for a verifier with PyTorch."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.deploy.composed import PROJECT, ROOT, Composed
from tests.deploy.traffic import Answer, ask, completion
from tools.write_gguf import write_gguf

pytestmark = pytest.mark.timeout(1800)  # the first test waits for images


@pytest.fixture(scope="module")
def llamacpp(composed: Composed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Composed]:
    """A suite of its own, beside the other."""
    models = tmp_path_factory.mktemp("models")
    for name in ("demo-target", "demo-draft"):  # the cloud drafts, too, with PyTorch
        shutil.copytree(ROOT / "models" / name, models / name)
    write_gguf(ROOT / "models" / "demo-draft", models / "draft.gguf", kind="Q8_0")
    for part in (models, *models.rglob("*")):
        part.chmod(0o755 if part.is_dir() else 0o644)
    suite = Composed(
        f"{PROJECT}-llamacpp",
        COMPOSE_PROFILES="edge-llamacpp",
        MODELS_FOLDER=str(models),
        EDGE_SUBNET="10.213.43.0/24",
        CLOUD_SUBNET="10.213.44.0/24",
    )
    suite.down()
    try:
        suite.up()
        yield suite
    finally:
        suite.down()


def test_llama_cpp_drafts_and_the_text_is_the_target_s_own(llamacpp: Composed) -> None:
    def answer(preset: str) -> Answer:
        return ask(llamacpp.address("edge-aggregator", 8000), completion(preset, 5, max_tokens=60))

    coupled, alone = answer("coupled"), answer("ar")
    assert (coupled.status, alone.status) == ("ok", "ok")
    assert coupled.token_ids == alone.token_ids
    assert coupled.text == alone.text
    assert "draft" in coupled.token_sources
    assert coupled.figures["drafted"] > 0
    assert coupled.figures["same_bits"] is True, "the verifier computes with torch in float32"


def test_the_drafter_has_no_torch(llamacpp: Composed) -> None:
    code = "import importlib.util as u; print(u.find_spec('torch'), u.find_spec('xllamacpp').name)"
    assert llamacpp.run("drafter-llamacpp", "python", "-c", code).split() == ["None", "xllamacpp"]
