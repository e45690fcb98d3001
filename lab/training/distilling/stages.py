"""The stages of making the draft, each restartable and skipped when already done."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from lab.machine import this_machine
from lab.training.demo_pair.loop import Plan, load_weights, read_spent, train
from lab.training.demo_pair.precision import product_dtype
from lab.training.distilling.draft_card import Facts, pass_s, pass_times, write_card
from lab.training.distilling.evaluation import AnswerFigures, compare
from lab.training.distilling.export import STORED, join, store
from lab.training.distilling.objective import Distillation
from lab.training.distilling.prompts import (
    ANSWERED,
    CODE,
    MATHS,
    PROSE,
    TALK,
    TASKS,
    TOPICS,
    Prompt,
    all_prompts,
    mixed,
    texts_to_read,
)
from lab.training.distilling.pruning import PrunedLlama, frequent_tokens
from lab.training.distilling.recordings import (
    AnswerBatches,
    Recording,
    read_recordings,
    record,
    write_recording,
)
from lab.training.distilling.sampling import Answer, AnswerSampler, SamplingTask, chat_text
from tandem.backends.interface import Engine
from tandem.backends.model_source import find_source
from tandem.backends.torch.loading import eos_token_ids_of, load_engine
from tandem.backends.torch.reduced_head import HEAD_TOKENS

STAGES = ("answers", "texts", "held-out", "draft", "export", "join", "card")
SHARES = {TALK: 0.38, MATHS: 0.26, PROSE: 0.12, CODE: 0.12, TOPICS: 0.12}
TEMPERATURES = ((0.6, 1.0), (0.8, 0.6), (1.0, 0.0))
"""Of answers to learn from: up to which share of the prompts, and what they are sampled at."""
ANSWERS_PER_FILE = 64
_MARK = "\x00"
UNASKED = -1
"""The number of a text that is no prompt."""
_TURNING = 0.6180339887498949


@dataclass(frozen=True, slots=True)
class Settings:
    """What a run is made from. `target` is the folder of a Llama model with a chat template,
    `texts` has what `prompts` reads, `cache` receives answers and checkpoints, `out` the draft.
    `rows` answers are sampled at once; `layers` are the target's that the draft begins with, `kept`
    the tokens that it can propose; `batch_tokens` make a step, and `minutes` are computing time."""

    target: Path
    texts: Path
    cache: Path
    out: Path
    device: torch.device
    seed: int = 0
    answers: int = 480
    answer_tokens: int = 144
    texts_read: int = 500
    held_out_prompts: int = 8
    rows: int = 96
    capacity: int = 352
    layers: tuple[int, ...] = (0, 1, 2, 29)
    kept: int = 8192
    minutes: float = 30.0
    patience: float = 1.6
    learning_rate: float = 2e-3
    batch_tokens: int = 1024
    command: str = ""


def run_stage(stage: str, settings: Settings) -> None:
    """Run one of `STAGES`; ValueError for another name."""
    settings.cache.mkdir(parents=True, exist_ok=True)
    match stage:
        case "held-out":
            sample_held_out(settings)
        case "answers":
            sample_answers(settings)
        case "texts":
            read_texts(settings)
        case "draft":
            train_draft(settings)
        case "export":
            export_draft(settings)
        case "join":
            join(settings.out, settings.target, joined_folder(settings))
        case "card":
            write_draft_card(settings)
        case _:
            raise ValueError(f"stage {stage!r} is none of {', '.join(STAGES)}")


def sample_held_out(settings: Settings) -> None:
    """Answers to prompts that no training sees, by task, at temperature 1 and 0."""
    prompts = all_prompts(settings.texts, settings.seed)
    folder = settings.cache / "held-out"
    missing = [task for task in TASKS if not (folder / f"{task}.safetensors").exists()]
    if not missing:
        return
    sampler, tokenizer = _sampler(settings)
    for task in missing:
        numbers = [n for n, one in enumerate(prompts) if one.task == task and one.held_out]
        tasks = [
            SamplingTask(number, ids, temperature, settings.answer_tokens)
            for number, ids, _ in _encoded(prompts, numbers[: settings.held_out_prompts], tokenizer)
            for temperature in (1.0, 0.0)
        ]
        answers = sorted(sampler.answers(tasks), key=lambda answer: answer.task.number)
        if not answers:
            raise ValueError(f"no prompt about {task} is held out and short enough")
        write_recording(record(answers), folder / f"{task}.safetensors")
        _say(f"held out: {len(answers)} answers about {task}")


def sample_answers(settings: Settings) -> None:
    """Answers to learn from, in files of ANSWERS_PER_FILE; goes on where it stopped."""
    folder = settings.cache / "answers"
    files = sorted(folder.glob("answers-*.safetensors"))
    recorded = (
        set(read_recordings(folder, "answers-*.safetensors").numbers.tolist()) if files else set()
    )
    prompts = all_prompts(settings.texts, settings.seed)
    learnt = [prompt for prompt in prompts if not prompt.held_out]
    order = {id(prompt): number for number, prompt in enumerate(prompts)}
    chosen = [order[id(prompt)] for prompt in mixed(learnt, SHARES, settings.answers)]
    wanted = [number for number in _shuffled(chosen, settings.seed) if number not in recorded]
    if not wanted:
        return
    sampler, tokenizer = _sampler(settings)
    tasks = (
        SamplingTask(number, ids, _temperature(number), settings.answer_tokens, known)
        for number, ids, known in _encoded(prompts, wanted, tokenizer)
    )
    waiting, tokens = list[Answer](), 0
    for answer in sampler.answers(tasks):
        waiting.append(answer)
        tokens += len(answer.token_ids)
        if len(waiting) == ANSWERS_PER_FILE:
            write_recording(record(waiting), folder / f"answers-{len(files):05}.safetensors")
            files.append(folder)
            waiting.clear()
            _say(f"{len(files) * ANSWERS_PER_FILE} answers; {tokens:,} tokens in this run")
    if waiting:
        write_recording(record(waiting), folder / f"answers-{len(files):05}.safetensors")


def read_texts(settings: Settings) -> None:
    """Texts by others, of which the target says what it would write: five times as many in the same
    time, though not what it will be asked about."""
    path = settings.cache / "answers" / "texts.safetensors"
    if path.exists():
        return
    sampler, tokenizer = _sampler(settings)
    template = len(_beginning(tokenizer))
    texts = []
    for text in texts_to_read(settings.texts, settings.seed)[: settings.texts_read]:
        question, _, answer = text.text.partition(ANSWERED)
        whole = chat_text(question, tokenizer) + answer if text.chat else question
        ids = tuple(tokenizer.encode(whole, add_special_tokens=False))
        texts.append(SamplingTask(UNASKED, ids, 1.0, 0, template if text.chat else 1))
    texts.sort(key=lambda one: len(one.token_ids))
    write_recording(record(list(sampler.read(texts))), path)


def train_draft(settings: Settings) -> None:
    """Train the draft from the target's own layers; a training that was interrupted is resumed."""
    recording = read_recordings(settings.cache / "answers")
    target = _target(settings, torch.float32)
    draft = PrunedLlama(target, settings.layers).requires_grad_()
    head = target.lm_head.weight.detach()[kept_tokens(settings, recording)]
    plan = Plan(
        settings.minutes * 60,
        patience=settings.patience,
        learning_rate=settings.learning_rate,
        checkpoint_every_s=120.0,
    )
    batches = AnswerBatches(recording, settings.seed, settings.batch_tokens)
    objective = Distillation(recording, head)
    name, device = _name(settings), settings.device
    train(name, draft, batches, objective, plan, settings.cache, device)


def export_draft(settings: Settings) -> None:
    target = _target(settings, torch.float32)
    recording = read_recordings(settings.cache / "answers")
    kept = kept_tokens(settings, recording)
    store(trained_draft(settings, target), kept, target, settings.out)


def write_draft_card(settings: Settings) -> None:
    """Write the card of the draft as it was trained; its step is that of the joined one."""
    target = _target(settings, torch.float32)
    recording = read_recordings(settings.cache / "answers")
    draft, kept = trained_draft(settings, target), kept_tokens(settings, recording)
    figures = measure(settings, draft, target, kept)
    drafting = load_engine(joined_folder(settings), drafts=True, dtype="int8")
    times = pass_times(drafting, load_engine(settings.target))
    whole_step_s = pass_s(_with_whole_head(joined_folder(settings)), 1)
    spent = read_spent(_checkpoint(settings))
    facts = Facts(
        layers=settings.layers,
        kept=len(kept),
        parameters=sum(parameter.numel() for parameter in draft.parameters()),
        stored_bytes=(settings.out / STORED).stat().st_size,
        answers=int((recording.numbers != UNASKED).sum()),
        texts=int((recording.numbers == UNASKED).sum()),
        distinct=len(recording.hidden),
        steps=spent.step,
        tokens=sum(batch.numel() for batch in _inputs(settings, recording, spent.step)),
        compute_s=spent.compute_s,
        seed=settings.seed,
        command=settings.command,
        machine=this_machine().line().splitlines()[0],
    )
    write_card(settings.out, facts, figures, times, whole_step_s)


def _with_whole_head(joined: Path) -> Engine:
    with TemporaryDirectory() as folder:
        for file in joined.iterdir():
            if file.name != HEAD_TOKENS:
                (Path(folder) / file.name).symlink_to(file.resolve())
        return load_engine(folder, drafts=True, dtype="int8")


def joined_folder(settings: Settings) -> Path:
    """Return the folder beside the target's, where a pair is looked for."""
    return settings.target.with_name(f"{settings.target.name}-draft")


def measure(
    settings: Settings, draft: PrunedLlama, target: Any, kept: Tensor
) -> dict[tuple[str, float], AnswerFigures]:
    """Held-out figures by task and temperature."""
    head, figures = target.lm_head.weight.detach(), {}
    for task in TASKS:
        recording = read_recordings(settings.cache / "held-out", f"{task}.safetensors")
        for temperature in (1.0, 0.0):
            rows = torch.nonzero(recording.temperatures == temperature).flatten().tolist()
            figures[task, temperature] = compare(recording, rows, draft, head, kept)
    return figures


def trained_draft(settings: Settings, target: Any) -> PrunedLlama:
    """Return the draft as of its last checkpoint. Raises FileNotFoundError if there is none."""
    draft = PrunedLlama(target, settings.layers)
    load_weights(_checkpoint(settings), draft)
    return draft.eval().requires_grad_(False)


def kept_tokens(settings: Settings, recording: Recording) -> Tensor:
    """The tokens that the draft can propose, by how often the target said or read them."""
    config = json.loads((settings.target / "config.json").read_text(encoding="utf-8"))
    counts = torch.bincount(recording.token_ids, minlength=config["vocab_size"])
    return frequent_tokens(counts, settings.kept, eos_token_ids_of(find_source(settings.target)))


def _name(settings: Settings) -> str:
    return "-".join(("draft", *map(str, settings.layers)))


def _checkpoint(settings: Settings) -> Path:
    return settings.cache / f"{_name(settings)}.safetensors"


def _inputs(settings: Settings, recording: Recording, steps: int) -> Iterable[Tensor]:
    batches = AnswerBatches(recording, settings.seed, settings.batch_tokens)
    return (batches.at(step)[0] for step in range(steps))


def _target(settings: Settings, dtype: torch.dtype) -> Any:
    model: Any = AutoModelForCausalLM.from_pretrained(settings.target, dtype=dtype)
    return model.to(settings.device).eval().requires_grad_(False)


def _sampler(settings: Settings) -> tuple[AnswerSampler, Any]:
    model = _target(settings, product_dtype(settings.device))
    ends = eos_token_ids_of(find_source(settings.target))
    sampler = AnswerSampler(model, ends, settings.rows, settings.capacity, settings.seed)
    return sampler, AutoTokenizer.from_pretrained(settings.target)


def _encoded(
    prompts: Sequence[Prompt], numbers: Iterable[int], tokenizer: Any
) -> Iterable[tuple[int, tuple[int, ...], int]]:
    """Number, token ids, and how many of them begin every chat."""
    template = len(_beginning(tokenizer))
    for number in numbers:
        prompt = prompts[number]
        text = chat_text(prompt.text, tokenizer) if prompt.chat else prompt.text
        ids = tuple(tokenizer.encode(text, add_special_tokens=False))
        yield number, ids, template if prompt.chat else 1


def _beginning(tokenizer: Any) -> tuple[int, ...]:
    """Return what comes before a user's first words."""
    text, _ = chat_text(_MARK, tokenizer).split(_MARK)
    return tuple(tokenizer.encode(text, add_special_tokens=False))


def _shuffled(numbers: Sequence[int], seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return [numbers[i] for i in torch.randperm(len(numbers), generator=generator).tolist()]


def _temperature(number: int) -> float:
    """Spread evenly over the prompts, by their numbers."""
    place = number * _TURNING % 1
    return next(temperature for share, temperature in TEMPERATURES if place < share)


def _say(words: str) -> None:
    sys.stderr.write(words + "\n")
