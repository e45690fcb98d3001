"""Loading models from folders: the same logits, and a reason for each refusal."""

import copy
import gc
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertLMHeadModel,
    BloomConfig,
    BloomForCausalLM,
    Llama4ForCausalLM,
    Llama4TextConfig,
)

from tandem.backends.interface import ForwardRequest
from tandem.backends.model_description import load_tokenizer
from tandem.backends.model_source import ModelChoice
from tandem.backends.torch import load
from tandem.backends.torch.engine import HuggingFaceEngine
from tandem.backends.torch.loading import load_engine
from tandem.core.errors import InvalidArgument
from tests.long_runs import LONG
from tests.unit.backends.reference_models import CONFIGS, VOCABULARY, tokens
from tests.unit.backends.tiny_folders import write_model, write_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny-llama", "llama")


def logits(engine: HuggingFaceEngine, token_ids: list[int]) -> np.ndarray[Any, np.dtype[Any]]:
    session = engine.open(len(token_ids))
    (found,) = engine.forward([ForwardRequest(session, tuple(token_ids), len(token_ids))])
    session.close()
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel")
@pytest.mark.parametrize("drafts", [True, False], ids=["draft", "target"])
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("llama", "float32"),
        ("gpt2", "int8"),
        *(pytest.param(*case, marks=LONG) for case in (("llama", "int8"), ("qwen3", "int4"))),
    ],
)
def test_weights_that_were_laid_out_anew_are_not_in_memory_a_second_time(
    tmp_path: Path, name: str, dtype: str, drafts: bool
) -> None:
    """A view of one tensor keeps the mapping of the whole file."""
    write_model(tmp_path, name)
    engine = load_engine(tmp_path, dtype=dtype, drafts=drafts)
    gc.collect()
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    assert engine.vocabulary_size == VOCABULARY


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_saved_model_gives_the_same_logits(tmp_path: Path, name: str) -> None:
    engine = load_engine(write_model(tmp_path, name))
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    sequence = tokens(20, seed=1)
    with torch.inference_mode():
        wanted = reference(torch.tensor([sequence])).logits[0].numpy()
    assert np.abs(logits(engine, sequence) - wanted).max() <= 1e-5


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen3", "gpt2"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_close_to_float32(tmp_path: Path, name: str, dtype: str) -> None:
    exact, half = load_engine(write_model(tmp_path, name)), load_engine(tmp_path, dtype=dtype)
    assert half.kv_bytes_per_token * 2 == exact.kv_bytes_per_token
    sequence = tokens(30, seed=2)
    wanted, found = logits(exact, sequence), logits(half, sequence)
    assert found.dtype == np.float32
    error = np.linalg.norm(found - wanted) / np.linalg.norm(wanted)
    assert error < (0.05 if dtype == "bfloat16" else 0.006)


def test_a_model_s_own_sampling_settings_are_those_of_its_file(
    folder: Path, tmp_path: Path
) -> None:
    recommended = {"temperature": 0.6, "top_k": 4, "top_p": 0.95}
    for content, found in (
        (json.dumps({**recommended, "do_sample": True}), recommended),
        (json.dumps({"eos_token_id": 2}), {}),
        ("no JSON", {}),
    ):
        own = Path(shutil.copytree(folder, tmp_path / "own", dirs_exist_ok=True))
        (own / "generation_config.json").write_text(content)
        assert load(ModelChoice(str(own))).default_sampling.named == found
    (own / "generation_config.json").unlink()
    assert load(ModelChoice(str(own))).default_sampling.named == {}


def unlink(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


def write(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


def configure(**changes: Any) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | changes))

    return change


def as_pickle(folder: Path) -> None:
    torch.save({"weight": torch.zeros(1)}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (unlink("config.json"), "has no config.json"),
        (write("config.json", b"{"), "config.json cannot be read"),
        (write("config.json", b"[]"), "has no model_type"),
        (unlink("model.safetensors"), "no .safetensors file"),
        (as_pickle, "no .safetensors file"),
        (write("model.safetensors", b"\x10\0\0\0\0\0\0\0{}"), "cannot be loaded"),
        (write("model.safetensors", b"version https://git-lfs"), "Git LFS pointer"),
        (configure(model_type="nonesuch"), "does not recognize this architecture"),
        (configure(num_hidden_layers=4), "9 missing tensors .* model.layers.3."),
        (configure(vocab_size=300), "mismatched tensors"),
        (configure(model_type="x", auto_map={"AutoModelForCausalLM": "x.Y"}), "cannot be loaded"),
    ],
)
def test_an_unusable_folder_is_refused_with_the_reason(
    folder: Path, tmp_path: Path, damage: Callable[[Path], object], why: str
) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    damage(copy)
    with pytest.raises(InvalidArgument, match=why) as caught:
        load_engine(copy)
    assert caught.value.field == "model"


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"folder_or_name": "no/such-model"}, "model"),
        ({"folder_or_name": __file__}, "model"),
        ({"folder_or_name": "no/such-model", "revision": "main"}, "revision"),
        ({"dtype": "int3"}, "dtype"),
        ({"device": "abacus"}, "device"),
        ({"device": "meta"}, "device"),
        ({"device": "cuda:999"}, "device"),
        ({"threads": -1}, "threads"),
    ],
)
def test_bad_arguments_are_named(folder: Path, arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        load_engine(**({"folder_or_name": folder} | arguments))
    assert caught.value.field == field


def test_a_folder_without_tokenizer_has_none(folder: Path) -> None:
    with pytest.raises(InvalidArgument, match="cannot be loaded"):
        load_tokenizer(folder)


def test_models_that_cannot_be_packed_are_refused() -> None:
    """Bloom has attention code of its own, Bert is not causal, Llama 4 has chunks."""
    bert = BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    bloom = BloomConfig(vocab_size=50, hidden_size=16, n_layer=1, n_head=2)
    llama4 = Llama4TextConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, head_dim=8,
        num_key_value_heads=2, intermediate_size=16, num_local_experts=2,
    )  # fmt: skip
    models = [
        (BertLMHeadModel(bert), "is not causal"),
        (BloomForCausalLM(bloom), "Bloom"),
        (Llama4ForCausalLM(llama4), "chunked_attention"),
    ]
    for model, why in models:
        with pytest.raises(InvalidArgument, match=why):
            HuggingFaceEngine(model, model_name="x", vocabulary_hash="x")


def test_padding_rows_of_the_vocabulary_are_dropped(tmp_path: Path) -> None:
    """Two models of one family, padded differently, serve one vocabulary."""
    config = copy.deepcopy(CONFIGS["llama"])
    config.vocab_size = 320
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    folder = write_tokenizer(tmp_path)
    engine, tokenizer = load_engine(folder), load_tokenizer(folder)
    assert engine.vocabulary_size == tokenizer.vocabulary_size < 320
    assert logits(engine, [1, 2, 3]).shape[-1] == tokenizer.vocabulary_size
