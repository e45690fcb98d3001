"""Training of early-exit adapters: the model stays frozen, each exit learns to say what the model
itself says in the end (FSD §3, Figure 3; distilled from the final distribution, not from the text).

Invariant: a step is a function of (seed, step, weights), so a training that was interrupted and
goes on from its checkpoint ends with the same adapters.
"""

import json
import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from lab.training.exit_texts import ExitTexts, PicturedText, Rows
from tandem.backends.torch.exit_adapters import (
    ExitAdapters,
    ExitsDescription,
    new_adapters,
    save_adapters,
)
from tandem.backends.torch.layer_tap import LayerTap
from tandem.backends.torch.loading import base_hash, load_model, load_tokenizer, vision_of
from tandem.core.errors import InvalidArgument

CHECKPOINT = "training.safetensors"


@dataclass(frozen=True, slots=True)
class ExitTraining:
    """How to train. `layers`: whose outputs are read, from 0; empty: `exits` of them, spread. A
    step takes `rows` texts of `length` tokens, and compares distributions at `positions` places in
    them."""

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


def train_exits(
    model_folder: Path,
    token_ids: NDArray[np.integer[Any]],
    out: Path,
    training: ExitTraining,
    device: str = "cpu",
    on_step: Callable[[int, float], None] = lambda step, loss: None,
    pictured: Sequence[PicturedText] = (),
) -> ExitsDescription:
    """Train adapters for a model folder on a text's tokens, and on texts with pictures if the model
    sees, and write them to the folder `out`. Goes on from the checkpoint in `out` if there is one.
    `on_step(steps done, loss)`: the mean KL(model ‖ exit) in nats. Raises InvalidArgument naming
    the field."""
    model = load_model(model_folder, device, "float32").eval().requires_grad_(False)
    vision = vision_of(model_folder, model) if pictured else None
    tap = LayerTap(model)
    context_length = getattr(tap.model.config.get_text_config(), "max_position_embeddings", None)
    length = min(training.length, int(context_length or 1024))
    stream = torch.from_numpy(np.asarray(token_ids, dtype=np.int64))
    if len(stream) and not 0 <= int(stream.min()) <= int(stream.max()) < tap.vocabulary_size:
        raise InvalidArgument("text", f"has a token outside of [0, {tap.vocabulary_size})")
    texts = ExitTexts(stream, pictured, vision, training.rows, length)
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
    description = replace(description, agreement=trainer.agreement())
    save_adapters(ExitAdapters(description, exits.adapters), out)
    (out / CHECKPOINT).unlink(missing_ok=True)
    return description


def encode_texts(model_folder: Path, texts: Iterable[str]) -> NDArray[np.int64]:
    """The texts' tokens end to end, an end-of-text token after each if the model has one."""
    tokenizer = load_tokenizer(model_folder)
    ends = sorted(tokenizer.eos_token_ids)[:1]
    pieces = [np.array([*tokenizer.encode(text), *ends], dtype=np.int64) for text in texts]
    return np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int64)


def spread(exits: int, layer_count: int) -> tuple[int, ...]:
    """`exits` of the layers before the last one, evenly spread and as deep as that allows."""
    if not 1 <= exits < layer_count:
        why = f"{exits}; a model of {layer_count} layers has room for 1…{layer_count - 1}"
        raise InvalidArgument("exits", why)
    return tuple(math.ceil((layer_count - 1) * (i + 1) / exits) - 1 for i in range(exits))


class _Trainer:
    """Adapters, their optimizer, and the steps done."""

    def __init__(
        self, tap: LayerTap, exits: ExitAdapters, training: ExitTraining, texts: ExitTexts
    ) -> None:
        self.exits, self._tap, self._training, self._texts = exits, tap, training, texts
        self._step = 0
        modules = torch.nn.ModuleList(exits.adapters).to(tap.device)
        self._parameters = dict(modules.named_parameters())
        self._optimizer = torch.optim.Adam(self._parameters.values(), betas=(0.9, 0.98))

    def run(self, out: Path, on_step: Callable[[int, float], None]) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self._resume(out / CHECKPOINT)
        on_step(self._step, math.nan)
        try:
            while self._step < self._training.steps:
                loss = self._train_step()
                self._step += 1
                on_step(self._step, loss)
                if self._step % self._training.checkpoint_every == 0:
                    self._save(out / CHECKPOINT)
        except KeyboardInterrupt:
            self._save(out / CHECKPOINT)
            raise

    def agreement(self) -> tuple[float, ...]:
        """Return how often each exit's likeliest token is the model's, on the held-out end of the
        text."""
        hits, measured = [0] * len(self.exits.adapters), 0
        with torch.inference_mode():
            for rows in self._texts.held_out():
                places = self._texts.words([rows])
                hidden, wanted = self._distributions([rows], places)
                measured += len(places)
                for index, logits in enumerate(self._read(hidden)):
                    hits[index] += int((logits.argmax(-1) == wanted.argmax(-1)).sum())
        return tuple(round(hit / measured, 4) for hit in hits)

    def _train_step(self) -> float:
        training = self._training
        source = np.random.default_rng((training.seed, self._step))
        read, places = self._texts.step(source, training.positions)
        self._set_learning_rate()
        with torch.autocast(self._tap.device.type, torch.bfloat16):
            with torch.no_grad():
                hidden, final = self._distributions(read, places)
            wanted = final.float().log_softmax(-1)
            losses = [
                torch.nn.functional.kl_div(
                    logits.float().log_softmax(-1), wanted, reduction="batchmean", log_target=True
                )
                for logits in self._read(hidden)
            ]
        loss = torch.stack(losses).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._parameters.values(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return loss.item()

    def _distributions(self, read: Sequence[Rows], places: Tensor) -> tuple[list[Tensor], Tensor]:
        """At some places of all rows: hidden states after each exit's layer, final logits."""
        places, tap = places.to(self._tap.device), self._tap
        layers = (*self.exits.description.layers, tap.layer_count - 1)
        passes = [tap.hidden_states(rows.token_ids, layers, rows.pixels) for rows in read]
        distributions = [
            torch.cat([states.flatten(0, 1) for states in layer])[places]
            for layer in zip(*passes, strict=True)
        ]
        return distributions[:-1], tap.head(distributions[-1])

    def _read(self, hidden: Sequence[Tensor]) -> list[Tensor]:
        pairs = zip(self.exits.adapters, hidden, strict=True)
        return [self._tap.head(adapter(states)) for adapter, states in pairs]

    def _set_learning_rate(self) -> None:
        """Warm-up over the first 2 %, then a cosine down to a fiftieth."""
        done = self._step / self._training.steps
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
        about = {"of": self._identity(), "step": self._step}
        save_file(tensors, partial, metadata={"about": json.dumps(about)})
        os.replace(partial, path)

    def _identity(self) -> Any:
        """Return what must be equal for a checkpoint to be this training's."""
        described = asdict(replace(self.exits.description, agreement=()))
        same = {**described, **asdict(self._training), "tokens": len(self._texts)}
        return json.loads(json.dumps(same))
