"""Folders of sentence-transformers models with random weights, in milliseconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, processors
from tokenizers.models import WordLevel
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import Whitespace
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "query", "passage", ":", "heron", "reed", "a", "b"]


def make_bert(
    folder: Path,
    seed: int = 1,
    *,
    pooling: str = "mean",
    act: str = "gelu",
    size: int = 24,
    prompts: dict[str, str] | None = None,
) -> Path:
    """Write a model of two layers that reads 12 tokens with its marks."""
    torch.manual_seed(seed)
    words = {word: number for number, word in enumerate(WORDS)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    tokenizer.normalizer = Lowercase()
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
    ).save_pretrained(folder)
    config: Any = BertConfig(
        vocab_size=len(words),
        hidden_size=size,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=40,
        max_position_embeddings=12,
        hidden_act=act,
        initializer_range=0.3,
    )
    BertModel(config).save_pretrained(folder)
    steps = [{"type": "x.Transformer", "path": ""}, {"type": "x.Pooling", "path": "1_Pooling"}]
    (folder / "modules.json").write_text(json.dumps(steps))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": pooling}))
    if prompts is not None:
        settings = folder / "config_sentence_transformers.json"
        settings.write_text(json.dumps({"prompts": prompts}))
    return folder
