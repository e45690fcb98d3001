"""Making a draft for a target, in stages that go on where they stopped.

What is kept in the cache: the questions that the target made up, its answers, the training's
checkpoint, and the wall time that all of it has taken, which `minutes` bounds. The target's states
are kept with the answers, or in memory alone: then a run that goes on reads the answers anew, which
takes a small part of the time that they took to sample.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from lab.machine import this_machine
from lab.training.demo_pair.loop import Plan, Spent, load_weights, read_spent, train
from lab.training.demo_pair.precision import product_dtype, product_precision
from lab.training.distilling.chats import ChatFrame, encode
from lab.training.distilling.evaluation import AnswerFigures, compare
from lab.training.distilling.export import STORED, join, store
from lab.training.distilling.objective import Distillation
from lab.training.distilling.prompts import ANSWERED, ASKED, Prompt, mixed, split_held_out
from lab.training.distilling.pruning import PrunedLlama, frequent_tokens, spread_layers
from lab.training.distilling.recordings import (
    UNRECORDED,
    AnswerBatches,
    Recording,
    joined,
    read_recordings,
    write_recording,
)
from lab.training.distilling.sampling import AnswerSampler, SamplingTask
from tandem.core.errors import InvalidArgument

STAGES = ("ask", "held-out", "texts", "answers", "train", "export", "measure")
TEMPERATURES = ((0.6, 1.0), (0.8, 0.6), (1.0, 0.0))
"""Of answers to learn from: up to which share of the prompts, and what they are sampled at."""
MOST_TURNS = 16
"""How often all prompts are answered while time is left."""
UNASKED = -1
"""The number of a text that is no prompt."""
ASKED_TOKENS = 96
ASKED_TEMPERATURE = 0.8
SHORTEST_QUESTION = 4
STATES_SHARE = 0.3
"""Of a GPU's memory that the target's states may take; beyond it they lie in main memory."""
FIGURES = "figures.json"
_TRIED_TOKENS = 8
_TRIED_STEPS = 3
_SHORTEST_TRAINING_S = 0.2
_TURNING = 0.6180339887498949
_WAVES_ALIKE = 8


@dataclass(frozen=True, slots=True)
class Settings:
    """What a draft is made from, and how.

    `target` is the folder of a Llama-like model. `prompts` returns what it is asked, `texts` what
    it only reads. `draft_from` is the folder of a small model with the same tokenizer; without it
    the draft begins with `layers` of the target. `kept` is how many tokens the draft can propose,
    0 for as many as pay by the cost model;
    `rows` answers of at most `answer_tokens` are sampled at once, each with its prompt at most
    `capacity` tokens long; `shares` are those of the tasks among the prompts, where they are not
    as they come. `minutes` bound the wall time of all stages together, over all runs: at most
    `sampling_share` of it goes into questions, answers and texts, the last `measuring_s` seconds
    into export and figures. `states_on_disk` is for machines that sample more slowly than they
    write, all without a GPU. `stored` gets the draft without what is the target's, `out` the whole
    draft, `cache` what lies between.
    """

    target: Path
    cache: Path
    stored: Path
    out: Path
    device: torch.device
    prompts: Callable[[], list[Prompt]]
    texts: Callable[[], list[Prompt]] = list
    draft_from: Path | None = None
    layers: tuple[int, ...] = ()
    kept: int = 0
    seed: int = 0
    answers: int = 1_000_000
    asked: int = 0
    answer_tokens: int = 144
    texts_read: int = 0
    held_out_prompts: int = 8
    held_out_tokens: int = 144
    rows: int = 96
    capacity: int = 352
    shares: dict[str, float] | None = None
    minutes: float = 30.0
    sampling_share: float = 0.4
    measuring_s: float = 20.0
    learning_rate: float = 2e-3
    batch_tokens: int = 1024
    checkpoint_every_s: float = 60.0
    states_on_disk: bool = True
    command: str = ""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a making takes and does from here on: seconds, `answers` to learn from and, with what is
    seen more than once, tokens that a training reads."""

    wall_s: float
    answers: int
    trained_tokens: int
    cores: int
    device: str

    def cost(self, price_per_hour: float) -> float:
        """Return the price of the machine for that time."""
        return self.wall_s / 3600 * price_per_hour


class DraftMaker:
    """One making of a draft. Its methods are the stages, in their order; `run` names them. A
    wall time that began before this object, like that of imports, counts from `started_s`, which
    is `time.monotonic()` as it was then. Raises InvalidArgument("layers"), and ValueError if the
    cache is of another making, or the small model has another vocabulary than the target."""

    def __init__(self, settings: Settings, started_s: float | None = None) -> None:
        if settings.draft_from is None:
            count = _layer_count(settings.target)
            settings = replace(settings, layers=settings.layers or spread_layers(count))
            if not all(0 <= layer < count for layer in settings.layers):
                raise InvalidArgument("layers", f"the target has layers 0 to {count - 1}")
        settings.cache.mkdir(parents=True, exist_ok=True)
        _check_identity(settings)
        self._settings = settings
        self._clock = _Clock(settings.cache / "spent.json", started_s)
        self._tokenizer = AutoTokenizer.from_pretrained(settings.target)
        self._frame = ChatFrame.of(self._tokenizer)
        self._parts: list[Recording] = []
        self._whole: Recording | None = None
        self._sampler_: AnswerSampler | None = None
        self._rows = settings.rows
        self._models: dict[Path, Any] = {}
        self._split_: tuple[list[Prompt], list[Prompt]] | None = None
        if settings.draft_from is not None:
            small = AutoTokenizer.from_pretrained(settings.draft_from)
            if small.get_vocab() != self._tokenizer.get_vocab():
                raise ValueError(f"{settings.draft_from} has another vocabulary than the target")

    def run(self, stage: str) -> None:
        """Run one of `STAGES`; ValueError for another name."""
        stages: dict[str, Callable[[], Any]] = {
            "ask": self.ask,
            "held-out": self.sample_held_out,
            "texts": self.read_texts,
            "answers": self.sample_answers,
            "train": self.train,
            "export": self.export,
            "measure": self.measure,
        }
        if stage not in stages:
            raise ValueError(f"stage {stage!r} is none of {', '.join(STAGES)}")
        try:
            stages[stage]()
        finally:
            self._clock.save()

    def estimate(self) -> Estimate:
        """Answer a few prompts and take a few steps, to see how fast this machine is."""
        settings = self._settings
        frame = self._frame
        encoded = encode(self._split()[0][: settings.rows], self._tokenizer, frame)
        tokens = min(_TRIED_TOKENS, settings.answer_tokens)
        tasks = [
            SamplingTask(number, one.token_ids, 1.0, tokens, one.known)
            for number, one in enumerate(encoded)
            if self._has_room(one.token_ids, tokens)
        ]
        if not tasks:
            room = settings.capacity - tokens
            raise ValueError(f"no prompt is short enough: at most {room} tokens are read")
        tasks = (tasks * settings.rows)[: settings.rows]
        self._answered(tasks[: max(1, settings.rows // 4)])  # so that nothing is done first then
        began_s = time.monotonic()
        recording = self._answered(tasks)
        sampled_s = time.monotonic() - began_s
        target = self._whole_model(settings.target)
        kept = torch.arange(settings.kept or self._vocabulary_size() // 4)
        draft = self._new_draft(target).requires_grad_()
        objective = Distillation(recording, *self._heads(target, kept))
        batches = AnswerBatches(recording, settings.seed, settings.batch_tokens)
        seen = 0
        step_s = 0.0
        for step in range(_TRIED_STEPS):
            began_s = time.monotonic()
            inputs, labels = (tensor.to(settings.device) for tensor in batches.at(step))
            with product_precision(settings.device):
                states = draft(inputs).logits
            objective(states, inputs, labels, 0.5).backward()
            if settings.device.type == "cuda":
                torch.cuda.synchronize(settings.device)
            if step:
                seen, step_s = seen + inputs.numel(), step_s + time.monotonic() - began_s
        left_s = max(0.0, settings.minutes * 60 - self._clock.elapsed_s())
        answers = len(tasks) * tokens / sampled_s * left_s * settings.sampling_share
        train_s = left_s * (1 - settings.sampling_share) - settings.measuring_s
        return Estimate(
            wall_s=left_s,
            answers=min(settings.answers, int(answers / settings.answer_tokens)),
            trained_tokens=max(0, int(seen / step_s * train_s)),
            cores=torch.get_num_threads(),
            device=str(settings.device),
        )

    def ask(self) -> None:
        """Let the target make up questions: what it writes where a user's words would be."""
        wanted = self._settings.asked
        path = self._settings.cache / "asked.json"
        if not wanted or self._frame is None or path.exists():
            return
        held_out = {prompt.text for prompt in self._split()[1]}
        beginning = self._frame.beginning()
        tasks = (
            SamplingTask(number, beginning, ASKED_TEMPERATURE, ASKED_TOKENS)
            for number in range(2 * wanted)
        )
        ends, questions = self._end_tokens(), dict[str, None]()
        while wave := list(islice(tasks, self._rows)):
            recording = self._answered(wave)
            for number in range(len(recording)):
                ids = recording.answer(number).tolist()
                if ids[-1] in ends and len(ids) > SHORTEST_QUESTION:
                    text = str(self._tokenizer.decode(ids[:-1], skip_special_tokens=True))
                    questions[text.strip()] = None
            if len(questions) >= wanted or self._share_spent() > self._settings.sampling_share / 4:
                break
        kept = [text for text in questions if text and text not in held_out][:wanted]
        _write_json(path, kept)
        self._say(f"{len(kept):,} questions made up; for example: {kept[:3]}")

    def sample_held_out(self) -> None:
        """Sample answers to prompts that no training sees, by task, at temperature 1 and 0."""
        settings = self._settings
        folder = self._settings.cache / "held-out"
        held_out = self._split()[1]
        for task in sorted({prompt.task for prompt in held_out}):
            path = folder / f"{task}.safetensors"
            if path.exists():
                continue
            same = {(one.text, one.chat): one for one in held_out if one.task == task}
            some = list(same.values())
            tasks = [
                SamplingTask(number, one.token_ids, temperature, settings.held_out_tokens)
                for number, one in enumerate(encode(some, self._tokenizer, self._frame))
                for temperature in (1.0, 0.0)
                if self._has_room(one.token_ids, settings.held_out_tokens)
            ][: 2 * settings.held_out_prompts]
            if not tasks:
                raise ValueError(f"no prompt about {task} is held out and short enough")
            write_recording(self._answered(tasks), path)
            self._say(f"held out: {len(tasks)} answers about {task}")

    def sample_answers(self) -> None:
        """Sample answers to learn from, until there are enough or their share of the time is
        over."""
        settings = self._settings
        folder = self._settings.cache / "answers"
        recorded = self._recorded(folder)
        total = len(recorded)
        tokens = 0
        if total and self._sampling_is_over():
            return
        for wave in self._sampler_waves(recorded):
            if total and (total >= settings.answers or self._sampling_is_over()):
                break
            recording = self._answered(wave)
            self._keep(recording, folder / f"answers-{_count(folder, 'answers'):05}.safetensors")
            total += len(recording)
            tokens += len(recording.token_ids)
            self._say(f"{total:,} answers; {tokens:,} tokens with prompts in this run")

    def read_texts(self) -> None:
        """Record what the target would write in texts by others: many times as many tokens in the
        same time, though not what it will be asked about."""
        settings = self._settings
        folder = self._settings.cache / "answers"
        path = folder / "texts.safetensors"
        if path.exists() or not settings.texts_read:
            return
        texts = settings.texts()[: settings.texts_read]
        parts = [text.text.partition(ANSWERED) for text in texts]
        prompts = [replace(text, text=part[0]) for text, part in zip(texts, parts, strict=True)]
        answers = [part[2] for part in parts]
        tasks = [
            SamplingTask(UNASKED, one.token_ids, 1.0, 0, one.known)
            for one in encode(prompts, self._tokenizer, self._frame, answers)
            if len(one.token_ids) > one.known
        ]
        tasks.sort(key=lambda one: len(one.token_ids))
        if tasks:
            self._keep(joined(list(self._sampler().read(tasks))), path)
            self._say(f"{len(tasks):,} texts read")

    def train(self) -> None:
        """Train the draft; a training that was interrupted is resumed."""
        settings = self._settings
        if self._checkpoint().exists() and self._time_is_over():
            return
        recording, kept = self.recording(), self.kept_tokens()
        target = self._whole_model(settings.target)
        head, draft_head = self._heads(target, kept)
        draft = self._new_draft(target).requires_grad_()
        tokens = settings.batch_tokens
        while True:
            batches = AnswerBatches(recording, settings.seed, tokens)
            objective = Distillation(recording, head, draft_head)
            try:
                train(
                    "draft",
                    draft,
                    batches,
                    objective,
                    self._plan(),
                    settings.cache,
                    settings.device,
                    lambda spent: self._show_checkpoint(draft, kept, target, spent),
                )
                break
            except torch.OutOfMemoryError:
                if tokens < 256:
                    raise
                tokens //= 2
                torch.cuda.empty_cache()
                self._say(f"out of memory: {tokens:,} tokens a step from here on")
        self._store(draft, kept, tokens)

    def export(self) -> None:
        """Write the whole draft, a model folder for any program."""
        settings = self._settings
        if not (settings.stored / STORED).exists():
            target = self._whole_model(settings.target)
            self._store(self.trained_draft(target), self.kept_tokens(), settings.batch_tokens)
        join(settings.stored, settings.draft_from or settings.target, settings.out)

    def measure(self) -> dict[tuple[str, float], AnswerFigures]:
        """Measure the draft on held-out answers; return the figures by task and temperature, and
        write them to a file beside the stored draft."""
        target = self._whole_model(self._settings.target)
        figures = self._figures(self.trained_draft(target), target, self.kept_tokens())
        named = {f"{task} {at}": asdict(one) for (task, at), one in figures.items()}
        _write_json(self._settings.stored / FIGURES, named)
        for (task, temperature), one in figures.items():
            rate = one.acceptance if temperature else one.agreement
            self._say(
                f"{task:>8} at temperature {temperature:g}: {rate:.3f} accepted, "
                f"{one.outside:.3f} outside, {one.tokens:,} positions"
            )
        return figures

    def trained_draft(self, target: Any) -> PrunedLlama:
        """Return the draft as of its last checkpoint. Raises FileNotFoundError if there is none."""
        draft = self._new_draft(target)
        load_weights(self._checkpoint(), draft)
        return draft.to(self._settings.device).eval().requires_grad_(False)

    def kept_tokens(self) -> Tensor:
        """Return the tokens that the draft can propose, chosen by how often the target said or read
        them. They do not change once the training has begun."""
        path, size = self._settings.cache / "head_tokens.json", self._vocabulary_size()
        if not path.exists():
            counts = torch.bincount(self.recording().token_ids, minlength=size)
            kept = self._settings.kept or self._paying_head(counts)
            tokens = frequent_tokens(counts, min(kept, size), self._end_tokens())
            covered = float(counts[tokens].sum() / counts.sum())
            self._say(f"{len(tokens):,} tokens can be proposed, {covered:.1%} of those seen")
            _write_json(path, tokens.tolist())
        return torch.tensor(json.loads(path.read_text(encoding="utf-8")))

    def _paying_head(self, counts: Tensor) -> int:
        from lab.training.distilling.gain import paying_head

        target = self._whole_model(self._settings.target)
        source = self._whole_model(self._settings.draft_from or self._settings.target)
        return paying_head(
            counts,
            sum(parameter.numel() for parameter in self._new_draft(target).parameters()),
            source.lm_head.weight.shape[1],
            target.num_parameters(),
        )

    # What the stages need.

    def _sampler_waves(self, recorded: set[int]) -> Iterator[list[SamplingTask]]:
        """Yield prompts of like length, as many as are answered at once, in random order; all of
        them again once they have been answered."""
        learnt, seen = self._learnt(), set[int]()
        repeated = list[bool]()
        for prompt in learnt:
            repeated.append(id(prompt) in seen)
            seen.add(id(prompt))
        encoded = encode(learnt, self._tokenizer, self._frame)
        generator = torch.Generator().manual_seed(self._settings.seed)
        rows = self._settings.rows
        tokens = self._settings.answer_tokens
        fitting = [n for n, one in enumerate(encoded) if self._has_room(one.token_ids, tokens)]
        for turn in range(MOST_TURNS):
            order = torch.randperm(len(fitting), generator=generator).tolist()
            for first in range(0, len(order), rows * _WAVES_ALIKE):
                some = [fitting[place] for place in order[first : first + rows * _WAVES_ALIKE]]
                some.sort(key=lambda number: len(encoded[number].token_ids))
                waves = [some[begin : begin + rows] for begin in range(0, len(some), rows)]
                for index in torch.randperm(len(waves), generator=generator).tolist():
                    tasks = [
                        SamplingTask(
                            turn * len(learnt) + number,
                            encoded[number].token_ids,
                            _temperature(number, again=turn > 0 or repeated[number]),
                            tokens,
                            encoded[number].known,
                        )
                        for number in waves[index]
                        if turn * len(learnt) + number not in recorded
                    ]
                    if tasks:
                        yield tasks

    def _learnt(self) -> list[Prompt]:
        """Return the prompts to learn from: the given ones, and what the target made up."""
        settings, prompts = self._settings, list(self._split()[0])
        path = settings.cache / "asked.json"
        if path.exists():
            made_up = json.loads(path.read_text(encoding="utf-8"))
            prompts += [Prompt(f"asked-{n}", ASKED, text) for n, text in enumerate(made_up)]
        if settings.shares is None:
            return prompts
        return mixed(prompts, settings.shares, min(settings.answers, len(prompts)))

    def _split(self) -> tuple[list[Prompt], list[Prompt]]:
        if self._split_ is None:
            least = self._settings.held_out_prompts
            self._split_ = split_held_out(self._settings.prompts(), least)
        return self._split_

    def _has_room(self, token_ids: Sequence[int], tokens: int) -> bool:
        return 0 < len(token_ids) <= self._settings.capacity - tokens

    def _keep(self, recording: Recording, path: Path) -> None:
        """Write a recording, without its states where they stay in memory."""
        self._clock.save()
        if self._settings.states_on_disk:
            write_recording(recording, path)
            return
        write_recording(_without_states(recording), path)
        if recording.hidden.is_cuda:
            taken = sum(part.hidden.nbytes for part in (*self._parts, recording))
            whole = torch.cuda.get_device_properties(self._settings.device).total_memory
            if taken > STATES_SHARE * whole:
                recording = recording.states_on(torch.device("cpu"))
        self._parts.append(recording)

    def _recorded(self, folder: Path) -> set[int]:
        """Return the numbers of the prompts that are answered."""
        if not _count(folder, "answers"):
            return set()
        return set(read_recordings(folder, "answers-*.safetensors").numbers.tolist())

    def recording(self) -> Recording:
        """Return all that is learnt from, in memory."""
        if self._whole is None:
            folder = self._settings.cache / "answers"
            stored = read_recordings(folder)
            parts = self._parts
            if self._settings.states_on_disk:
                parts = [stored]
            elif sum(len(part) for part in parts) < len(stored):
                parts = list(self._read_again(stored))
            self._sampler_ = None
            self._parts = []
            torch.cuda.empty_cache()
            if any(not part.hidden.is_cuda for part in parts):
                parts = [part.states_on(torch.device("cpu")) for part in parts]
            self._whole = joined(parts)
        return self._whole

    def _read_again(self, stored: Recording) -> Iterator[Recording]:
        """Yield answers that were stored without states with them."""
        tasks = []
        for number in range(len(stored)):
            span = slice(int(stored.starts[number]), int(stored.starts[number + 1]))
            known = int((stored.records[span] == UNRECORDED).sum())
            ids = tuple(stored.token_ids[span].tolist())
            tasks.append(SamplingTask(number, ids, 1.0, 0, known))
        tasks.sort(key=lambda task: len(task.token_ids))
        for recording in self._sampler().read(tasks):
            order = recording.numbers
            yield replace(
                recording,
                numbers=stored.numbers[order],
                temperatures=stored.temperatures[order],
                prompt_lengths=stored.prompt_lengths[order],
            )

    def _sampler(self) -> AnswerSampler:
        if self._sampler_ is None:
            settings = self._settings
            model = _load(settings.target, product_dtype(settings.device), settings.device)
            # A run that goes on draws other numbers than the one before it.
            seed = settings.seed + _count(settings.cache / "answers", "answers")
            self._sampler_ = AnswerSampler(
                model, self._end_tokens(), self._rows, settings.capacity, seed
            )
        return self._sampler_

    def _answered(self, tasks: Sequence[SamplingTask]) -> Recording:
        """Answer some prompts, fewer at once from here on if the memory is too small."""
        while True:
            try:
                return joined(list(self._sampler().answers(tasks)))
            except torch.OutOfMemoryError:
                if self._rows < 2:
                    raise
                self._rows //= 2
            self._sampler_ = None
            torch.cuda.empty_cache()
            self._say(f"out of memory: {self._rows:,} answers at once from here on")

    def _whole_model(self, folder: Path) -> Any:
        """Return the model of a folder in float32; it is kept."""
        if folder not in self._models:
            self._models[folder] = _load(folder, torch.float32, self._settings.device)
        return self._models[folder]

    def _new_draft(self, target: Any) -> PrunedLlama:
        settings = self._settings
        if settings.draft_from is None:
            return PrunedLlama(target, settings.layers).to(settings.device)
        small = self._whole_model(settings.draft_from)
        return PrunedLlama(small, range(len(small.model.layers))).to(settings.device)

    def _heads(self, target: Any, kept: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the kept rows of the target's head, and of the draft's where it has a head of its
        own."""
        settings, rows = self._settings, kept.to(self._settings.device)
        head = target.lm_head.weight.detach()[rows]
        if settings.draft_from is None:
            return head, None
        return head, self._whole_model(settings.draft_from).lm_head.weight.detach()[rows]

    def _figures(
        self, draft: PrunedLlama, target: Any, kept: Tensor
    ) -> dict[tuple[str, float], AnswerFigures]:
        head, figures = target.lm_head.weight.detach(), {}
        _, draft_head = self._heads(target, kept)
        for path in sorted((self._settings.cache / "held-out").glob("*.safetensors")):
            recording = read_recordings(path.parent, path.name)
            for temperature in (1.0, 0.0):
                rows = torch.nonzero(recording.temperatures == temperature).flatten().tolist()
                if rows:
                    figures[path.stem, temperature] = compare(
                        recording, rows, draft, head, kept, draft_head
                    )
        return figures

    def _show_checkpoint(self, draft: PrunedLlama, kept: Tensor, target: Any, spent: Spent) -> None:
        """Store the draft as it is, and say how good it is."""
        self._store(draft, kept, self._settings.batch_tokens)
        self._clock.save()
        draft.eval()
        figures = self._figures(draft, target, kept)
        draft.train()
        sampled, greedy = overall(figures)
        self._say(f"step {spent.step:,}: acceptance {sampled:.3f}, agreement {greedy:.3f} held out")

    def _store(self, draft: PrunedLlama, kept: Tensor, batch_tokens: int) -> None:
        source = self._whole_model(self._settings.draft_from or self._settings.target)
        facts = self._facts(draft, kept, batch_tokens)
        store(draft, kept, source, self._settings.stored, facts)

    def _facts(self, draft: PrunedLlama, kept: Tensor, batch_tokens: int) -> dict[str, Any]:
        """Return what a card says of the training."""
        settings, recording = self._settings, self.recording()
        spent = Spent()
        with suppress(FileNotFoundError):
            spent = read_spent(self._checkpoint())
        seen = AnswerBatches(recording, settings.seed, batch_tokens).tokens_until(spent.step)
        return {
            "layers": list(settings.layers) if settings.draft_from is None else [],
            "kept": len(kept),
            "parameters": sum(parameter.numel() for parameter in draft.parameters()),
            "answers": int((recording.numbers != UNASKED).sum()),
            "texts": int((recording.numbers == UNASKED).sum()),
            "distinct": len(recording.hidden),
            "steps": spent.step,
            "tokens": seen,
            "train_s": round(spent.wall_s, 1),
            "wall_s": round(self._clock.elapsed_s(), 1),
            "seed": settings.seed,
            "command": settings.command,
            "machine": machine_line(settings.device),
        }

    def _left_s(self) -> float:
        settings = self._settings
        return settings.minutes * 60 - self._clock.elapsed_s() - settings.measuring_s

    def _time_is_over(self) -> bool:
        return self._left_s() <= 0

    def _plan(self) -> Plan:
        """Plan to train for all the time that is left, as the loop counts it: on a CPU, seconds of
        all threads."""
        settings, spent = self._settings, Spent()
        with suppress(FileNotFoundError):
            spent = read_spent(self._checkpoint())
        left_s = max(self._left_s(), _SHORTEST_TRAINING_S)
        threads = torch.get_num_threads() if settings.device.type == "cpu" else 1
        budget_s = max(spent.compute_s + left_s * threads, 1e-3)
        return Plan(
            budget_s,
            patience=max(spent.wall_s + left_s, 1e-3) / budget_s,
            learning_rate=settings.learning_rate,
            checkpoint_every_s=settings.checkpoint_every_s,
        )

    def _checkpoint(self) -> Path:
        return self._settings.cache / "draft.safetensors"

    def _vocabulary_size(self) -> int:
        path = self._settings.target / "config.json"
        return int(json.loads(path.read_text(encoding="utf-8"))["vocab_size"])

    def _end_tokens(self) -> frozenset[int]:
        return end_tokens(self._settings.target)

    def _share_spent(self) -> float:
        return self._clock.elapsed_s() / (self._settings.minutes * 60)

    def _sampling_is_over(self) -> bool:
        return self._share_spent() >= self._settings.sampling_share

    def _say(self, words: str) -> None:
        sys.stderr.write(f"[{self._clock.elapsed_s():6.1f} s] {words}\n")
        sys.stderr.flush()


class _Clock:
    """Wall time over all runs that had this file."""

    def __init__(self, path: Path, started_s: float | None) -> None:
        self._path = path
        self._earlier_s = 0.0
        with suppress(OSError, ValueError):
            self._earlier_s = float(json.loads(path.read_text(encoding="utf-8"))["wall_s"])
        self._started_s = time.monotonic() if started_s is None else started_s

    def elapsed_s(self) -> float:
        return self._earlier_s + time.monotonic() - self._started_s

    def save(self) -> None:
        _write_json(self._path, {"wall_s": self.elapsed_s()})


def overall(figures: dict[tuple[str, float], AnswerFigures]) -> tuple[float, float]:
    """Return acceptance at temperature 1 and agreement at 0, over all positions together."""
    means = []
    for temperature, name in ((1.0, "acceptance"), (0.0, "agreement")):
        some = [one for (_, at), one in figures.items() if at == temperature]
        tokens = sum(one.tokens for one in some)
        means.append(sum(getattr(one, name) * one.tokens for one in some) / max(tokens, 1))
    return means[0], means[1]


def read_figures(folder: Path) -> dict[tuple[str, float], AnswerFigures]:
    """Return the figures that `measure` wrote to a folder. FileNotFoundError if there are none."""
    named = json.loads((folder / FIGURES).read_text(encoding="utf-8"))
    keys = {name: tuple(name.rsplit(" ", 1)) for name in named}
    return {
        (task, float(temperature)): AnswerFigures(**named[name])
        for name, (task, temperature) in keys.items()
    }


def end_tokens(folder: Path) -> frozenset[int]:
    """Return every id that a model's configuration or generation settings call end of text."""
    token_ids = set[int]()
    for name in ("config.json", "generation_config.json"):
        with suppress(OSError):  # the second is optional
            ids = json.loads((folder / name).read_text(encoding="utf-8")).get("eos_token_id")
            token_ids.update(ids if isinstance(ids, list) else [] if ids is None else [ids])
    return frozenset(token_ids)


def machine_line(device: torch.device) -> str:
    """Describe what a training ran on; a GPU comes first."""
    machine = this_machine()
    line = (
        f"{machine.processor}, {machine.cores} cores, Python {machine.python}, "
        f"torch {machine.torch}"
    )
    return f"{torch.cuda.get_device_name(device)}; {line}" if device.type == "cuda" else line


def _layer_count(folder: Path) -> int:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return int(config["num_hidden_layers"])


def _check_identity(settings: Settings) -> None:
    """Raise ValueError if what lies in the cache is of another making; more time, answers and
    prompts may be given to the same one."""
    path = settings.cache / "making.json"
    source = settings.draft_from
    identity = {
        "target": _folder_digest(settings.target),
        "draft_from": None if source is None else _folder_digest(source),
        "layers": list(settings.layers),
        "kept": settings.kept,
        "seed": settings.seed,
    }
    if not path.exists():
        _write_json(path, identity)
    elif json.loads(path.read_text(encoding="utf-8")) != identity:
        why = "is of another making; delete it, or give another folder"
        raise ValueError(f"{settings.cache} {why}")


def _folder_digest(folder: Path) -> str:
    """Return what tells a model folder from others without reading its weights."""
    sizes = sorted((path.name, path.stat().st_size) for path in folder.glob("*.safetensors"))
    config = (folder / "config.json").read_bytes()
    return sha256(config + json.dumps(sizes).encode()).hexdigest()


def _load(folder: Path, dtype: torch.dtype, device: torch.device) -> Any:
    logging.disable_progress_bar()
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    return model.to(device).eval().requires_grad_(False)


def _without_states(recording: Recording) -> Recording:
    nothing = torch.zeros(0)
    return replace(recording, hidden=nothing, log_partition=nothing)


def _count(folder: Path, named: str) -> int:
    return len(list(folder.glob(f"{named}-*.safetensors")))


def _temperature(number: int, again: bool) -> float:
    """Return a prompt's temperature, spread evenly over the prompts by their numbers. A second
    answer is never a greedy one, which would only repeat the first."""
    place = number * _TURNING % 1
    chosen = next(temperature for share, temperature in TEMPERATURES if place < share)
    return 1.0 if again and not chosen else chosen


def _write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(content), encoding="utf-8")
    os.replace(partial, path)
