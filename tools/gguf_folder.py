"""Writes a GGUF file's model as a folder: its weights dequantised to float32, and its tokenizer.

python -m tools.gguf_folder FILE FOLDER       # a file
python -m tools.gguf_folder PACKAGE FOLDER    # the one file in an installed package
"""

import sys
from importlib.util import find_spec
from pathlib import Path

import torch

from tandem.backends.model_source import GGUF
from tandem.backends.torch.gguf_file import GgufFile


def write_folder(path: Path, folder: Path) -> None:
    """config.json, model.safetensors, and the tokenizer with its chat template."""
    file = GgufFile(path)
    file.model(torch.float32).save_pretrained(folder)
    file.own_tokenizer().save_pretrained(folder)


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
