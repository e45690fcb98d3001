"""Writes a GGUF file's model as a folder: its weights dequantised to float32, and its tokenizer.

python -m tools.gguf_folder FILE FOLDER       # a file
python -m tools.gguf_folder PACKAGE FOLDER    # the one file in an installed package
"""

import sys
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from tandem.backends.model_source import GGUF


def write_folder(path: Path, folder: Path) -> None:
    """config.json, model.safetensors, and the tokenizer with its chat template."""
    place = {"gguf_file": path.name, "local_files_only": True}
    config = AutoConfig.from_pretrained(path.parent, **place)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    # `from_pretrained` would do all of this, with accelerate alone.
    read = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)
    model.load_state_dict(read["tensors"], strict=not config.tie_word_embeddings)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(path.parent, **place).save_pretrained(folder)


def find_file(named: str) -> Path:
    """The file of that path, or in the package of that name. It is not imported."""
    if named.endswith(GGUF):
        return Path(named)
    spec = find_spec(named)
    if spec is None or spec.origin is None:
        raise SystemExit(f"{named} is neither a {GGUF} file nor an installed package")
    (found,) = Path(spec.origin).parent.glob(f"*{GGUF}")
    return found


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    write_folder(find_file(sys.argv[1]), Path(sys.argv[2]))
