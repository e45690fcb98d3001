"""The training loop: a budget of process CPU time, a schedule over it, and resumable checkpoints.

Invariant: progress, and with it the learning rate, depends on time *spent computing* by this
process (on CUDA: wall time), not on the load of the machine, so two trainings with one budget are
a fair comparison. `patience` bounds the wall time when the machine is too busy.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from lab.training.demo_pair.precision import product_precision

Objective = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], torch.Tensor]
"""(logits [rows, length, vocab], inputs, labels [rows, length], progress) -> mean loss, nats."""


class BatchSource(Protocol):
    def at(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return inputs and labels, int64 [rows, length], as a pure function of the step."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How long and how hard to train. Learning rates are peaks; `budget_s` is computing time.

    At progress `snapshot_at` the state is also written to `<name>-snapshot.safetensors`.
    """

    budget_s: float
    patience: float = 1.6
    learning_rate: float = 3e-3
    warmup: float = 0.02
    decay_from: float = 0.3
    weight_decay: float = 0.1
    clip: float = 1.0
    checkpoint_every_s: float = 60.0
    snapshot_at: float = math.inf


@dataclass(slots=True)
class Spent:
    """What a training has used so far, over all resumptions."""

    step: int = 0
    compute_s: float = 0.0
    wall_s: float = 0.0

    def progress(self, plan: Plan) -> float:
        """Return the fraction of the budget used, in [0, 1]; wall time counts once `patience` is
        exceeded."""
        by_wall = self.wall_s / (plan.budget_s * plan.patience)
        return min(1.0, max(self.compute_s / plan.budget_s, by_wall))


def train(
    name: str,
    model: torch.nn.Module,
    batches: BatchSource,
    objective: Objective,
    plan: Plan,
    cache: Path,
    device: torch.device,
    on_checkpoint: Callable[[Spent], None] | None = None,
) -> Spent:
    """Train `model` in place until the budget is spent, resuming from `cache/<name>.safetensors`.

    Appends one line per 10 steps to `cache/<name>.jsonl`. A finished training returns at once.
    `on_checkpoint` is called after each checkpoint but the last; its time counts.
    """
    model.to(device).train()
    optimizers = make_optimizers(model, plan)
    checkpoint = cache / f"{name}.safetensors"
    spent = _resume(checkpoint, model, optimizers)
    clock = Laps(device)
    saved_at = spent.compute_s
    smooth: float | None = None
    snapshot = cache / f"{name}-snapshot.safetensors"
    upcoming = batches.at(spent.step)
    while (progress := spent.progress(plan)) < 1.0:
        _set_learning_rates(optimizers, plan, progress)
        inputs, labels = (tensor.to(device) for tensor in upcoming)
        reached = _step(model, optimizers, objective, inputs, labels, progress, plan.clip)
        upcoming = batches.at(spent.step + 1)  # while a GPU is at the step
        loss = reached.item()
        compute_s, wall_s = clock.lap()
        spent.step += 1
        spent.compute_s += compute_s
        spent.wall_s += wall_s
        smooth = loss if smooth is None else 0.95 * smooth + 0.05 * loss
        if spent.step % 10 == 0:
            _log(cache / f"{name}.jsonl", spent, smooth, inputs.numel())
            _show(name, spent, plan, smooth)
        if spent.progress(plan) >= plan.snapshot_at and not snapshot.exists():
            save_checkpoint(snapshot, model, optimizers, spent)
        if spent.compute_s - saved_at > plan.checkpoint_every_s:
            save_checkpoint(checkpoint, model, optimizers, spent)
            saved_at = spent.compute_s
            if on_checkpoint is not None:
                on_checkpoint(spent)
    if spent.compute_s > saved_at:
        save_checkpoint(checkpoint, model, optimizers, spent)
    return spent


def make_optimizers(model: torch.nn.Module, plan: Plan) -> dict[str, torch.optim.Optimizer]:
    """Return Muon for the weight matrices of the layers, AdamW for embeddings and norms."""
    matrices: list[torch.nn.Parameter] = []
    others: list[torch.nn.Parameter] = []
    for name, parameter in model.named_parameters():
        is_matrix = parameter.ndim == 2 and "embed" not in name
        (matrices if is_matrix else others).append(parameter)
    return {
        "muon": torch.optim.Muon(
            matrices,
            lr=plan.learning_rate,
            weight_decay=plan.weight_decay,
            momentum=0.95,
            adjust_lr_fn="match_rms_adamw",
        ),
        "adamw": torch.optim.AdamW(
            others, lr=plan.learning_rate, betas=(0.9, 0.95), weight_decay=0.0
        ),
    }


def _step(
    model: torch.nn.Module,
    optimizers: dict[str, torch.optim.Optimizer],
    objective: Objective,
    inputs: torch.Tensor,
    labels: torch.Tensor,
    progress: float,
    clip: float,
) -> torch.Tensor:
    """Return the loss, which nobody has waited for yet."""
    with product_precision(inputs.device):
        logits = model(input_ids=inputs, use_cache=False).logits
    loss = objective(logits, inputs, labels, progress)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    for optimizer in optimizers.values():
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return loss.detach()


def learning_rate_factor(plan: Plan, progress: float) -> float:
    """Return the factor of the peak learning rate: warm-up, plateau, then linear decay to 2% of the
    peak."""
    if progress < plan.warmup:
        return max(progress / plan.warmup, 0.01)
    if progress < plan.decay_from:
        return 1.0
    return max((1.0 - progress) / (1.0 - plan.decay_from), 0.02)


def _set_learning_rates(
    optimizers: dict[str, torch.optim.Optimizer], plan: Plan, progress: float
) -> None:
    rate = plan.learning_rate * learning_rate_factor(plan, progress)
    for optimizer in optimizers.values():
        for group in optimizer.param_groups:
            group["lr"] = rate


def save_checkpoint(
    path: Path,
    model: torch.nn.Module,
    optimizers: dict[str, torch.optim.Optimizer],
    spent: Spent,
) -> None:
    """Write weights, optimizer state and time spent to one safetensors file, atomically."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    tensors = {
        f"model.{name}": parameter.detach().contiguous()
        for name, parameter in model.named_parameters()
    }
    for label, optimizer in optimizers.items():
        for parameter, state in optimizer.state.items():
            for key, tensor in state.items():
                tensors[f"{label}.{key}.{names[id(parameter)]}"] = tensor.detach().contiguous()
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    save_file(tensors, partial, metadata={"spent": json.dumps(asdict(spent))})
    os.replace(partial, path)


def load_weights(path: Path, model: torch.nn.Module) -> None:
    """Copy a checkpoint's weights into `model`; FileNotFoundError if there is none."""
    with _open_checkpoint(path) as archive, torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(archive.get_tensor(f"model.{name}"))


def read_spent(path: Path) -> Spent:
    """Return what the training of a checkpoint has used; FileNotFoundError if there is none."""
    with _open_checkpoint(path) as archive:
        return Spent(**json.loads(archive.metadata()["spent"]))


def _open_checkpoint(path: Path) -> Any:
    if not path.exists():
        raise FileNotFoundError(f"no checkpoint {path}: run the stage that trains it first")
    return safe_open(path, framework="pt")


def _resume(
    path: Path, model: torch.nn.Module, optimizers: dict[str, torch.optim.Optimizer]
) -> Spent:
    if not path.exists():
        return Spent()
    load_weights(path, model)
    parameters = dict(model.named_parameters())
    with _open_checkpoint(path) as archive:
        for full_name in archive.keys():  # noqa: SIM118 (not a mapping)
            label, key, name = full_name.split(".", 2)
            if label in optimizers:
                parameter = parameters[name]
                tensor = archive.get_tensor(full_name)
                on_host = key == "step"
                optimizers[label].state[parameter][key] = (
                    tensor if on_host else tensor.to(parameter.device)
                )
    return read_spent(path)


class Laps:
    """What steps take: (computing seconds, wall seconds). On CUDA computing time is wall time."""

    def __init__(self, device: torch.device) -> None:
        self._on_cpu = device.type == "cpu"
        self._last = self._read()

    def lap(self) -> tuple[float, float]:
        now = self._read()
        lap = (now[0] - self._last[0], now[1] - self._last[1])
        self._last = now
        return lap

    def _read(self) -> tuple[float, float]:
        wall = time.monotonic()
        return (time.process_time() if self._on_cpu else wall), wall


def _log(path: Path, spent: Spent, loss: float, tokens_per_step: int) -> None:
    record = asdict(spent) | {"loss": round(loss, 4), "tokens": spent.step * tokens_per_step}
    with path.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(record) + "\n")


def _show(name: str, spent: Spent, plan: Plan, loss: float) -> None:
    progress = spent.progress(plan)
    bar = "#" * int(progress * 30)
    line = (
        f"{name:>7} [{bar:<30}] {progress:6.1%}  step {spent.step}  loss {loss:.3f}  "
        f"{spent.compute_s / 60:.1f} of {plan.budget_s / 60:.1f} min computing"
    )
    if sys.stderr.isatty():
        sys.stderr.write("\r" + line)
    elif spent.step % 100 == 0:
        sys.stderr.write(line + "\n")
    sys.stderr.flush()
