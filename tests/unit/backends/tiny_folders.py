"""Model folders as users have them, tiny and made on the spot."""

import copy
import json
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedTokenizerFast

from tests.unit.backends.reference_models import CONFIGS

CORPUS = ["The quick brown fox jumps over the lazy dog. ", "Grüße aus Köln! ", "naïve café 😀 "] * 5
SPECIAL = ["<bos>", "<eos>", "<user>", "<assistant>", "<end>"]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role not in ['user', 'assistant'] %}{{ raise_exception('unknown role') }}{% endif %}"
    "{{ '<' + m.role + '>' + m.content + '<end>' }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def write_model(folder: Path, name: str, size: int | None = None, seed: int = 7) -> Path:
    """A random model of `reference_models.CONFIGS`, without a tokenizer. `size`: of its vocabulary,
    if another."""
    torch.manual_seed(seed)
    config = copy.deepcopy(CONFIGS[name])
    config.vocab_size = size or config.vocab_size
    model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder)
    return folder


def write_tokenizer(
    folder: Path,
    template: str | None = TEMPLATE,
    size: int = 290,
    more_special: Sequence[str] = (),
) -> Path:
    """A byte-level tokenizer, so that every character is several tokens unless it was learnt."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[*SPECIAL, *more_special],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<bos>",
        eos_token="<eos>",
        extra_special_tokens=[*SPECIAL[2:], *more_special],
    )
    wrapped.chat_template = template
    wrapped.save_pretrained(folder)
    return folder


def write_sentencepiece_tokenizer(folder: Path, size: int = 400) -> Path:
    """A tokenizer as Llama 2 has it: ▁ for a space, one put before every text, bytes for what was
    not learnt, and a beginning-of-text token before every prompt."""
    names = ["<unk>", "<s>", "</s>"]
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[*names, *bytes_], show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    written = json.loads(tokenizer.to_str())
    written["added_tokens"] = written["added_tokens"][: len(names)]  # bytes are ordinary tokens
    tokenizer = Tokenizer.from_str(json.dumps(written))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(folder)
    return folder


def write_generation_config(folder: Path, eos_token_ids: list[int]) -> None:
    GenerationConfig(eos_token_id=eos_token_ids).save_pretrained(folder)
