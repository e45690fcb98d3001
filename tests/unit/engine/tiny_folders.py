"""Model folders as users have them, tiny and made on the spot."""

import copy
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedTokenizerFast

from tests.unit.engine.reference_models import CONFIGS

CORPUS = ["The quick brown fox jumps over the lazy dog. ", "Grüße aus Köln! ", "naïve café 😀 "] * 5
SPECIAL = ["<bos>", "<eos>", "<user>", "<assistant>", "<end>"]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role not in ['user', 'assistant'] %}{{ raise_exception('unknown role') }}{% endif %}"
    "{{ '<' + m.role + '>' + m.content + '<end>' }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def write_model(folder: Path, name: str) -> Path:
    """A random model of `reference_models.CONFIGS`, without a tokenizer."""
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(copy.deepcopy(CONFIGS[name]))
    model.save_pretrained(folder)
    return folder


def write_tokenizer(folder: Path, template: str | None = TEMPLATE, size: int = 290) -> Path:
    """A byte-level tokenizer, so that every character is several tokens unless it was learnt."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<bos>",
        eos_token="<eos>",
        extra_special_tokens=SPECIAL[2:],
    )
    wrapped.chat_template = template
    wrapped.save_pretrained(folder)
    return folder


def write_generation_config(folder: Path, eos_token_ids: list[int]) -> None:
    GenerationConfig(eos_token_id=eos_token_ids).save_pretrained(folder)
