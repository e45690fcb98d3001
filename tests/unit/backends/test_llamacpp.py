"""llama.cpp's engine beside torch's on the same weights, its tokenizer beside Hugging Face's, and
files that are no models."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from tandem.backends.cross_vocabulary.pairing import fit_draft, load_target_tokenizer
from tandem.backends.factory import load_model
from tandem.backends.interface import ForwardCancelled, ForwardRequest
from tandem.backends.model_source import LoadedModel, ModelChoice
from tandem.core.errors import InvalidArgument, ResourceExhausted
from tandem.demo import demo_folder
from tests.unit.backends.gguf_files import draft_gguf

TEXT = "Grüße, the year 1987!\n\n    def f(x):  # naïve 😀\n<|end|>"
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What does <|assistant|> mean?  "},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gguf")


@pytest.fixture(scope="module")
def gguf(folder: Path) -> LoadedModel:
    return load_model(ModelChoice(str(draft_gguf(folder)), engine="llamacpp", kv_cells=4096))


@pytest.fixture(scope="module")
def torch_model() -> LoadedModel:
    return load_model(ModelChoice(str(demo_folder("demo-draft"))))


def test_the_logits_are_torch_s(gguf: LoadedModel, torch_model: LoadedModel) -> None:
    """More tokens than are computed at once."""
    ids = tuple(np.random.default_rng(3).integers(8, 4096, 300).tolist())
    found = []
    for model in (gguf, torch_model):
        session = model.engine.open(400)
        (logits,) = model.engine.forward([ForwardRequest(session, ids, 40)])
        found.append(logits)
        session.close()
    assert found[0].shape == found[1].shape
    assert np.allclose(found[0], found[1], atol=2e-3)


def test_a_long_pass_is_cancelled_in_between(gguf: LoadedModel) -> None:
    session, answers = gguf.engine.open(600), iter([False, True])
    with pytest.raises(ForwardCancelled):
        gguf.engine.forward([ForwardRequest(session, (9,) * 600, 1)], lambda: next(answers))
    assert session.length == 0
    gguf.engine.forward([ForwardRequest(session, (9,) * 600, 1)])
    assert session.length == 600
    session.close()


def test_what_is_not_free_is_refused(gguf: LoadedModel) -> None:
    """Cells by count, sequences by number; nothing stays taken."""
    sessions = [gguf.engine.open(1000) for _ in range(4)]
    with pytest.raises(ResourceExhausted, match="kv_cells"):
        gguf.engine.open(1000)
    for session in sessions:
        session.close()
    session = gguf.engine.open(10, spare=290)
    with pytest.raises(ResourceExhausted, match="256 sequences"):
        gguf.engine.forward([ForwardRequest(session, (9,) * 290, 1, (-1,) * 290)])
    gguf.engine.forward([ForwardRequest(session, (9,) * 200, 1, (-1,) * 200)])
    session.close()
    assert gguf.engine.sessions_open == 0


def test_the_tokenizer_is_hugging_face_s(gguf: LoadedModel, torch_model: LoadedModel) -> None:
    ours, theirs = gguf.tokenizer, torch_model.tokenizer
    assert ours is not None
    assert theirs is not None
    assert gguf.engine.vocabulary_hash == torch_model.engine.vocabulary_hash
    assert gguf.engine.vocabulary_size == torch_model.engine.vocabulary_size
    assert ours.encode(TEXT) == theirs.encode(TEXT)
    assert ours.chat(MESSAGES) == theirs.chat(MESSAGES)
    talk = [*MESSAGES, {"role": "assistant", "content": "It is "}]
    plain = ours.chat(talk)
    for variables, differs in (
        ({"enable_thinking": False}, False),
        ({"add_generation_prompt": False}, True),
        ({"continue_final_message": True}, True),
    ):
        ids = ours.chat(talk, variables=variables)
        assert ids == theirs.chat(talk, variables=variables)
        assert (ids != plain) is differs
    for tokenizer in (ours, theirs):
        with pytest.raises(InvalidArgument, match="role and a content"):
            tokenizer.chat([{"role": "user"}])
    texts = [one.detokenizer() for one in (ours, theirs)]
    for token in ours.encode(TEXT):
        assert texts[0].preview(token) == texts[1].preview(token)
        assert texts[0].push([token]) == texts[1].push([token])
    assert texts[0].finish() == texts[1].finish() == ""
    with pytest.raises(InvalidArgument, match="token_ids"):
        ours.detokenizer().push([4096])


def test_a_gguf_draft_pairs_with_another_format_s_target(
    folder: Path, gguf: LoadedModel, torch_model: LoadedModel
) -> None:
    """Either way, without a translation; the tokenizer comes without the weights."""
    assert fit_draft(gguf.engine, gguf.tokenizer, torch_model.tokenizer) is gguf.engine
    target = load_target_tokenizer(str(folder / "demo-draft-F32.gguf"))
    assert fit_draft(torch_model.engine, torch_model.tokenizer, target) is torch_model.engine
    assert target.encode(TEXT) == load_target_tokenizer(str(demo_folder("demo-draft"))).encode(TEXT)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1", "Git LFS pointer"),
        (b"PK\x03\x04 a zip file", "is not a GGUF file"),
        (b"GGUF" + b"\xff" * 60, "cannot be read"),
        (None, "is not a file"),
    ],
)
def test_a_file_that_is_no_model_is_refused(
    tmp_path: Path, content: bytes | None, words: str
) -> None:
    path = tmp_path / "model.gguf"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidArgument, match=words) as caught:
        load_model(ModelChoice(str(path), engine="llamacpp"))
    assert caught.value.field == "model"
    assert "\n" not in str(caught.value)


def test_a_truncated_model_is_refused(folder: Path, gguf: LoadedModel, tmp_path: Path) -> None:
    whole = (folder / "demo-draft-F32.gguf").read_bytes()
    path = tmp_path / "model.gguf"
    for size in (100, 5000, len(whole) // 2, len(whole) - 1000):
        path.write_bytes(whole[:size])
        with pytest.raises(InvalidArgument, match=r"cannot be (read|loaded)") as caught:
            load_model(ModelChoice(str(path), engine="llamacpp"))
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("device", {"device": "tpu"}),
        ("dtype", {"dtype": "int3"}),
        ("threads", {"threads": -1}),
        ("exits", {"exits": "folder"}),
        ("gpu_layers", {"gpu_layers": 3}),
    ],
)
def test_choices_it_cannot_serve_are_refused(
    folder: Path, gguf: LoadedModel, field: str, change: dict[str, object]
) -> None:
    path = str(folder / "demo-draft-F32.gguf")
    with pytest.raises(InvalidArgument) as caught:
        load_model(ModelChoice(path, engine="llamacpp", **change))  # type: ignore[arg-type]
    assert caught.value.field == field


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF\x03".ljust(24, b"\0"))
    monkeypatch.setitem(sys.modules, "tandem.backends.llamacpp.gguf_model", None)
    with pytest.raises(InvalidArgument, match=re.escape("'tandem-edge[llamacpp]'")) as caught:
        load_model(ModelChoice(str(path), engine="llamacpp"))
    assert caught.value.field == "engine"
