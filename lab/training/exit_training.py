"""Training of early-exit adapters: the model stays frozen, each exit learns to say what the model
itself says in the end (FSD §3, Figure 3; distilled from the final distribution, not from the text).

    python -m lab.training.exit_training --target FOLDER --tokens TOKENS.npy --out FOLDER

is `tandem train-exits` for a machine that has torch and transformers and nothing else of Tandem's:
the text comes as token ids.

Invariant: a step is a function of (seed, step, weights), so a training that was interrupted and
goes on from its checkpoint ends with the same adapters; but for one that is given `minutes`, whose
learning rate follows the clock.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from lab.training.exit_calibration import (
    Calibration,
    Reliability,
    TemperatureFit,
    calibration_of,
)
from lab.training.exit_texts import HELD_OUT, ExitTexts
from tandem.backends.model_description import load_tokenizer
from tandem.backends.torch.exit_adapters import (
    ExitAdapters,
    ExitsDescription,
    load_adapters,
    new_adapters,
    read_description,
    save_adapters,
    write_description,
)
from tandem.backends.torch.layer_tap import LayerTap
from tandem.backends.torch.loading import (
    base_hash,
    load_model,
    use_threads,
)
from tandem.core.errors import InvalidArgument, TandemError

CHECKPOINT = "training.safetensors"
_TEACHERS_BEST = 16
"""Likeliest tokens of each position that are compared whatever is sampled."""
_GROUP_LOGITS = {"cpu": 1 << 24, "cuda": 1 << 28}
"""Logits that are computed at once."""


@dataclass(frozen=True, slots=True)
class ExitTraining:
    """How to train. `layers`: whose outputs are read, from 0; empty: `exits` of them, spread. A
    step takes `rows` texts of `length` tokens, and compares distributions at `positions` places in
    them. `minutes`: in the place of `steps`, how long to train. `sampled`: of the vocabulary, how
    many tokens a step compares, those that are likely at its places and a random choice of others,
    weighed for all of them; 0: all."""

    layers: tuple[int, ...] = ()
    exits: int = 4
    rank: int = 64
    steps: int = 1000
    rows: int = 4
    length: int = 256
    positions: int = 256
    learning_rate: float = 2e-3
    seed: int = 0
    checkpoint_every: int = 50
    minutes: float = 0.0
    sampled: int = 0


def train_exits(
    model_folder: Path,
    token_ids: NDArray[np.integer[Any]],
    out: Path,
    training: ExitTraining,
    device: str = "cpu",
    on_step: Callable[[int, float], None] = lambda step, loss: None,
) -> ExitsDescription:
    """Train adapters for a model folder on a text's tokens, and write them to the folder
    `out`. Goes on from the checkpoint in `out` if there is one. `on_step(steps done, loss)`: the
    mean KL(model ‖ exit) in nats. Raises InvalidArgument naming the field."""
    tap, texts, length = _read(model_folder, token_ids, training, device)
    training = replace(training, length=length)
    description = ExitsDescription(
        base_hash(model_folder),
        tap.layer_count,
        tap.hidden_size,
        training.layers or spread(training.exits, tap.layer_count),
        training.rank,
    )
    exits = new_adapters(description, training.seed)
    trainer = _Trainer(tap, exits, training, texts)
    trainer.run(out, on_step)
    description = replace(
        _calibrated(description, tap, exits, texts),
        trained_positions=trainer.trained_positions,
        context=length,
        training_s=round(trainer.spent_s, 1),
        device=_device_name(tap.device),
    )
    save_adapters(ExitAdapters(description, exits.adapters), out)
    (out / CHECKPOINT).unlink(missing_ok=True)
    return description


def calibrate_exits(
    model_folder: Path,
    token_ids: NDArray[np.integer[Any]],
    folder: Path,
    training: ExitTraining,
    device: str = "cpu",
) -> ExitsDescription:
    """Measure exits that are there on a text that they did not learn from, and write their
    temperatures into their folder. Of `training`, `length` counts."""
    tap, texts, _ = _read(model_folder, token_ids, training, device, held_out=1.0)
    exits = load_adapters(folder, base_hash(model_folder), tap.layer_count, tap.hidden_size)
    torch.nn.ModuleList(exits.adapters).to(tap.device)
    description = _calibrated(read_description(folder), tap, exits, texts)
    write_description(description, folder)
    return description


def _read(
    model_folder: Path,
    token_ids: NDArray[np.integer[Any]],
    training: ExitTraining,
    device: str,
    held_out: float = HELD_OUT,
) -> tuple[LayerTap, ExitTexts, int]:
    """Return the model, the texts in stretches, and how long these are."""
    model = load_model(model_folder, device, "float32").eval().requires_grad_(False)
    tap = LayerTap(model)
    context_length = getattr(tap.model.config.get_text_config(), "max_position_embeddings", None)
    length = min(training.length, int(context_length or 1024))
    stream = torch.from_numpy(np.asarray(token_ids, dtype=np.int64))
    if len(stream) and not 0 <= int(stream.min()) <= int(stream.max()) < tap.vocabulary_size:
        raise InvalidArgument("text", f"has a token outside of [0, {tap.vocabulary_size})")
    texts = ExitTexts(stream, training.rows, length, held_out)
    return tap, texts, length


def _calibrated(
    description: ExitsDescription, tap: LayerTap, exits: ExitAdapters, texts: ExitTexts
) -> ExitsDescription:
    """Return the description with what held-out text says of the exits: temperatures are fitted on
    every other stretch of it, and all else is measured on those between."""
    held_out = list(texts.held_out())
    measured = held_out[1::2] or held_out
    found = _calibrations(tap, exits, held_out[::2], measured)
    return replace(
        description,
        agreement=tuple(one.agreement for one in found),
        temperatures=tuple(one.temperature for one in found),
        calibration_errors=tuple(one.errors for one in found),
        reliability=tuple(one.reliability for one in found),
        held_out_tokens=sum(rows.numel() for rows in measured),
    )


def _calibrations(
    tap: LayerTap,
    exits: ExitAdapters,
    fitted_on: Sequence[Tensor],
    measured_on: Sequence[Tensor],
) -> list[Calibration]:
    count = len(exits.adapters)
    fits = [TemperatureFit() for _ in range(count)]
    for rows in fitted_on:
        for index, logits, likeliest in _exit_logits(tap, exits, rows):
            fits[index].add(logits, likeliest)
    temperatures = [fit.temperature() for fit in fits]
    before = [Reliability() for _ in range(count)]
    after = [Reliability() for _ in range(count)]
    for rows in measured_on:
        for index, logits, likeliest in _exit_logits(tap, exits, rows):
            before[index].add(logits, likeliest)
            after[index].add(logits, likeliest, temperatures[index])
    return [calibration_of(*one) for one in zip(temperatures, before, after, strict=True)]


@torch.inference_mode()
def _exit_logits(
    tap: LayerTap, exits: ExitAdapters, rows: Tensor
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield each exit's number, its logits along a text, and the model's likeliest tokens
    there."""
    layers = (*exits.description.layers, tap.layer_count - 1)
    states = tap.hidden_states(rows, layers)
    *hidden, last = (layer.flatten(0, 1) for layer in states)
    likeliest = tap.head(last).argmax(-1)
    for index, adapter in enumerate(exits.adapters):
        yield index, tap.head(adapter(hidden[index])), likeliest


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{torch.get_num_threads()} CPU thread(s)"


def encode_texts(model_folder: Path, texts: Iterable[str]) -> NDArray[np.int64]:
    """Return the texts' tokens end to end, an end-of-text token after each if the model has one."""
    tokenizer = load_tokenizer(model_folder)
    ends = sorted(tokenizer.eos_token_ids)[:1]
    pieces = [np.array([*tokenizer.encode(text), *ends], dtype=np.int64) for text in texts]
    return np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int64)


def spread(exits: int, layer_count: int) -> tuple[int, ...]:
    """Return `exits` of the layers before the last one, evenly spread and as deep as that
    allows."""
    if not 1 <= exits < layer_count:
        why = f"{exits}; a model of {layer_count} layers has room for 1…{layer_count - 1}"
        raise InvalidArgument("exits", why)
    return tuple(math.ceil((layer_count - 1) * (i + 1) / exits) - 1 for i in range(exits))


class _Trainer:
    """Adapters, their optimizer, and the steps done."""

    def __init__(
        self, tap: LayerTap, exits: ExitAdapters, training: ExitTraining, texts: ExitTexts
    ) -> None:
        self.exits = exits
        self._tap = tap
        self._training = training
        self._texts = texts
        self.spent_s = 0.0
        self.trained_positions = 0
        self._step = 0
        modules = torch.nn.ModuleList(exits.adapters).to(tap.device)
        self._parameters = dict(modules.named_parameters())
        self._optimizer = torch.optim.Adam(self._parameters.values(), betas=(0.9, 0.98))

    def run(self, out: Path, on_step: Callable[[int, float], None]) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self._resume(out / CHECKPOINT)
        on_step(self._step, math.nan)
        try:
            while self._done < 1:
                began_s = time.perf_counter()
                loss = self._train_step()
                self._step += 1
                self.spent_s += time.perf_counter() - began_s
                on_step(self._step, loss)
                if self._step % self._training.checkpoint_every == 0:
                    self._save(out / CHECKPOINT)
        except KeyboardInterrupt:
            self._save(out / CHECKPOINT)
            raise

    @property
    def _done(self) -> float:
        """The share of the training that is done."""
        training = self._training
        if training.minutes:
            return self.spent_s / (60 * training.minutes)
        return self._step / training.steps

    def _train_step(self) -> float:
        training = self._training
        tap = self._tap
        source = np.random.default_rng((training.seed, self._step))
        read, places = self._texts.step(source, training.positions)
        self._set_learning_rate()
        with torch.no_grad(), torch.autocast(tap.device.type, torch.bfloat16):
            hidden, final = self._distributions(read, places)
        final = final.float()
        if training.sampled:
            token_ids, weights = self._sampled(final, source)
            wanted = (final[:, token_ids] + weights).log_softmax(-1)
            narrowed: Any = tap.narrowed(token_ids)
        else:
            weights, narrowed = final.new_zeros(1), nullcontext()
            wanted = final.log_softmax(-1)
        with narrowed:
            loss = sum(self._learn(hidden, wanted, weights))
        torch.nn.utils.clip_grad_norm_(self._parameters.values(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.trained_positions += len(places)
        return float(loss)

    def _learn(self, hidden: Sequence[Tensor], wanted: Tensor, weights: Tensor) -> Iterator[Tensor]:
        """Add up the gradients of all exits, some at a time; yields each group's share of the mean
        loss. `wanted`: logarithms of the model's distributions [places, tokens]."""
        adapters = self.exits.adapters
        most = _GROUP_LOGITS.get(self._tap.device.type, _GROUP_LOGITS["cpu"])
        together = max(1, most // wanted.numel())
        for first in range(0, len(adapters), together):
            numbers = range(first, min(first + together, len(adapters)))
            with torch.autocast(self._tap.device.type, torch.bfloat16):
                adapted = torch.cat([adapters[number](hidden[number]) for number in numbers])
                logits = self._tap.head(adapted)
            said = (logits.float() + weights).log_softmax(-1).view(len(numbers), *wanted.shape)
            nats = wanted.exp() * (wanted - said)
            loss = nats.sum() / (len(wanted) * len(adapters))
            loss.backward()
            yield loss.detach()

    def _sampled(self, final: Tensor, source: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Return the tokens that a step compares, and what is added to their logits: those chosen
        at random stand for all others."""
        whole = final.shape[1]
        best = final.topk(min(_TEACHERS_BEST, whole), dim=-1).indices.flatten().unique()
        left = np.setdiff1d(np.arange(whole), best.cpu().numpy(), assume_unique=True)
        count = min(len(left), max(0, self._training.sampled - len(best)))
        drawn = torch.from_numpy(source.choice(left, count, replace=False)).to(final.device)
        weights = final.new_zeros(len(best) + count)
        if count:
            weights[len(best) :] = math.log(len(left) / count)
        return torch.cat([best, drawn]), weights

    def _distributions(self, read: Tensor, places: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return hidden states after each exit's layer, and final logits, at some places of all
        rows."""
        places, tap = places.to(self._tap.device), self._tap
        layers = (*self.exits.description.layers, tap.layer_count - 1)
        distributions = [states.flatten(0, 1)[places] for states in tap.hidden_states(read, layers)]
        return distributions[:-1], tap.head(distributions[-1])

    def _set_learning_rate(self) -> None:
        """Set the learning rate: warm-up over the first 2 %, then a cosine down to a fiftieth."""
        done = self._done
        factor = min(1.0, (done + 1e-3) / 0.02) * (0.02 + 0.49 * (1 + math.cos(math.pi * done)))
        for group in self._optimizer.param_groups:
            group["lr"] = self._training.learning_rate * factor

    def _resume(self, path: Path) -> None:
        if not path.exists():
            return
        try:
            with safe_open(path, "pt") as file:
                about = json.loads(file.metadata()["about"])
                tensors = {name: file.get_tensor(name) for name in list(file.keys())}
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise InvalidArgument("out", f"{path} cannot be read: {error}") from error
        if about["of"] != self._identity():
            why = f"{path} is of another training; delete it, or give another folder"
            raise InvalidArgument("out", why)
        self._step = about["step"]
        self.spent_s = about["spent_s"]
        self.trained_positions = about["positions"]
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(tensors[f"model.{name}"])
                self._optimizer.state[parameter] = {
                    "step": torch.tensor(float(self._step)),
                    "exp_avg": tensors[f"mean.{name}"].to(parameter.device),
                    "exp_avg_sq": tensors[f"square.{name}"].to(parameter.device),
                }

    def _save(self, path: Path) -> None:
        tensors: dict[str, Tensor] = {}
        for name, parameter in self._parameters.items():
            state = self._optimizer.state[parameter]
            tensors[f"model.{name}"] = parameter.detach().cpu().contiguous()
            tensors[f"mean.{name}"] = state["exp_avg"].cpu().contiguous()
            tensors[f"square.{name}"] = state["exp_avg_sq"].cpu().contiguous()
        partial = path.with_suffix(".partial")
        about = {
            "of": self._identity(),
            "step": self._step,
            "spent_s": self.spent_s,
            "positions": self.trained_positions,
        }
        save_file(tensors, partial, metadata={"about": json.dumps(about)})
        os.replace(partial, path)

    def _identity(self) -> Any:
        """Return what must be equal for a checkpoint to be this training's."""
        described = asdict(replace(self.exits.description, agreement=()))
        same = {**described, **asdict(self._training), "tokens": len(self._texts)}
        return json.loads(json.dumps(same))


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, or with --calibrate measure, and print what the folder says in the end."""
    options = _parser().parse_args(arguments)
    training = ExitTraining(
        layers=tuple(map(int, options.layers.split(","))) if options.layers else (),
        exits=options.exits,
        rank=options.rank,
        steps=options.steps,
        rows=options.rows,
        length=options.length,
        positions=options.positions,
        learning_rate=options.learning_rate,
        seed=options.seed,
        minutes=options.minutes,
        sampled=options.sampled,
    )
    use_threads(options.threads)
    try:
        token_ids = np.load(options.tokens, allow_pickle=False)
        if options.calibrate:
            trained = calibrate_exits(
                options.target, token_ids, options.out, training, options.device
            )
        else:
            trained = train_exits(
                options.target, token_ids, options.out, training, options.device, _say
            )
    except (TandemError, OSError, ValueError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    if options.base_hash:
        write_description(replace(trained, base_hash=options.base_hash), options.out)
    for index, layer in enumerate(trained.layers):
        before, after = trained.calibration_errors[index]
        print(
            f"exit after layer {layer}: the model's likeliest token in "
            f"{trained.agreement[index]:.1%}; temperature {trained.temperatures[index]:.2f}, "
            f"calibration error {before:.3f} -> {after:.3f}"
        )
    return 0


def _say(step: int, loss: float) -> None:
    if step % 20 == 0:
        sys.stderr.write(f"step {step}: loss {loss:.3f} nats\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", type=Path, required=True, help="folder of the model")
    parser.add_argument(
        "--tokens", type=Path, required=True, help="token ids of the text, a one-dimensional .npy"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--base-hash",
        default="",
        help="the hash to name, where the folder has the weights of it in another form",
    )
    parser.add_argument(
        "--calibrate",
        action="store_true",
        help="only measure what is in --out, on a text that it did not learn from",
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--exits", type=int, default=4)
    parser.add_argument("--layers", default="", help='such as "1,3", in the place of --exits')
    parser.add_argument("--minutes", type=float, default=0.0, help="in the place of --steps")
    parser.add_argument("--sampled", type=int, default=0, help="tokens that a step compares")
    usual = ExitTraining()
    parser.add_argument("--rank", type=int, default=usual.rank)
    parser.add_argument("--steps", type=int, default=usual.steps)
    parser.add_argument("--rows", type=int, default=usual.rows)
    parser.add_argument("--length", type=int, default=usual.length)
    parser.add_argument("--positions", type=int, default=usual.positions)
    parser.add_argument("--learning-rate", type=float, default=usual.learning_rate)
    parser.add_argument("--seed", type=int, default=usual.seed)
    return parser


if __name__ == "__main__":
    sys.exit(main())
