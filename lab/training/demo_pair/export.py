"""Published files: two model folders in Hugging Face format and a held-out excerpt.

Invariant: a reader never sees a half-written folder; a new version is renamed into place.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from lab.training.demo_pair.corpus import GSM8K, NOT_EXCERPTED, PEPS, Document, render_prose
from lab.training.demo_pair.tokenizer import save_tokenizer

TARGET_FOLDER = "demo-target"
DRAFT_FOLDER = "demo-draft"
EXITS_FOLDER = "demo-exits"
HELD_OUT_PROBLEMS = 80
HELD_OUT_PEP_EXCERPTS = 24
EXCERPT_CHARACTERS = 2600
PROMPT_CHARACTERS = 400


def write_model(model: torch.nn.Module, tokenizer: Tokenizer, folder: Path) -> None:
    """Write weights in bf16, configuration and tokenizer, replacing `folder` as a whole.

    `model` is a Hugging Face model; it is converted in place.
    """
    partial = folder.with_name(f".{folder.name}.partial")
    replaced = folder.with_name(f".{folder.name}.replaced")
    for leftover in (partial, replaced):
        shutil.rmtree(leftover, ignore_errors=True)
    pretrained: Any = model.to(torch.bfloat16)
    pretrained.save_pretrained(partial)
    save_tokenizer(tokenizer, partial)
    for file in partial.iterdir():
        file.chmod(0o644)  # safetensors writes 0600, which another user's container cannot read
    if folder.exists():
        os.rename(folder, replaced)
    os.rename(partial, folder)
    shutil.rmtree(replaced, ignore_errors=True)


def write_held_out(documents: list[Document], path: Path) -> None:
    """Write some held-out documents as JSON lines `id, source, prompt, text`.

    `text` starts with `prompt`. Problems are in the plain question/answer form, and their prompts
    end at "Answer:"."""
    problems = [document for document in documents if document.source == GSM8K]
    peps = [
        document
        for document in documents
        if document.source == PEPS and document.id not in NOT_EXCERPTED
    ]
    records = [_problem(document) for document in problems[:HELD_OUT_PROBLEMS]]
    records += [_excerpt(document) for document in peps[:HELD_OUT_PEP_EXCERPTS]]
    partial = path.with_suffix(".partial")
    with partial.open("w", encoding="utf-8") as lines:
        for record in records:
            lines.write(json.dumps(record, ensure_ascii=False) + "\n")
    os.replace(partial, path)


def _problem(document: Document) -> dict[str, str]:
    text = render_prose(document)
    prompt = text[: text.index("\nAnswer:") + len("\nAnswer:")]
    return {"id": document.id, "source": document.source, "prompt": prompt, "text": text}


def _excerpt(document: Document) -> dict[str, str]:
    text = render_prose(document)[:EXCERPT_CHARACTERS]
    cut = text.rfind(" ", 0, PROMPT_CHARACTERS)
    prompt = text[: cut if cut > 0 else PROMPT_CHARACTERS]
    return {"id": document.id, "source": document.source, "prompt": prompt, "text": text}
