"""The card of a folder of early exits: how often each is right, and how far it may be believed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from tandem.backends.torch.exit_adapters import TENSORS, Bin, ExitsDescription

_SHOWN = 4
"""Exits whose reliability is shown, the deepest among them."""


def exits_card(title: str, about: ExitsDescription, folder: Path, command: str, notes: str) -> str:
    """Return the card as Markdown. `notes`: what else is to be said, in whole paragraphs."""
    parameters = 2 * about.hidden_size * about.rank * len(about.layers)
    megabytes = (folder / TENSORS).stat().st_size / 1e6
    return "\n".join(
        [
            f"# {title}",
            "",
            f"{len(about.layers)} adapters of rank {about.rank}, {parameters / 1e6:.2f} M "
            f"parameters ({megabytes:.1f} MB). Each lets the model say early, after a layer "
            f"(counted from 0 to {about.layer_count - 1}), what it is about to say (preset `fsd`). "
            "They belong to the "
            "weights whose hash `exits.json` names, and are refused with any other.",
            "",
            "## Held-out figures",
            "",
            f"On {about.held_out_tokens:,} tokens that no training saw. *Agreement*: how often the "
            "exit's likeliest token is the model's. *Error*: the expected calibration error of its "
            "confidence, without its temperature and with it; temperatures were fitted on other "
            "held-out text.",
            "",
            "| layer | share of the pass | agreement | temperature | error before | error after |",
            "|---|---|---|---|---|---|",
            *_rows(about),
            "",
            "How often an exit was right, by its confidence (with its temperature):",
            "",
            *_reliability(about),
            "",
            "## Training",
            "",
            f"KL(model ‖ exit) at {about.trained_positions:,} positions, in texts of "
            f"{about.context} tokens, in {about.training_s / 60:.1f} minutes on {about.device}.",
            "",
            "```bash",
            command,
            "```",
            "",
            notes,
            "",
        ]
    )


def _rows(about: ExitsDescription) -> Iterable[str]:
    for index, layer in enumerate(about.layers):
        before, after = about.calibration_errors[index]
        yield (
            f"| {layer} | {(layer + 1) / about.layer_count:.2f} | {about.agreement[index]:.1%} "
            f"| {about.temperatures[index]:.2f} | {before:.3f} | {after:.3f} |"
        )


def _reliability(about: ExitsDescription) -> Iterable[str]:
    count = len(about.layers)
    shown = sorted({count - 1 - index * max(1, count // _SHOWN) for index in range(_SHOWN)})
    shown = [index for index in shown if index >= 0]
    yield "| confidence | " + " | ".join(f"layer {about.layers[index]}" for index in shown) + " |"
    yield "|---" * (len(shown) + 1) + "|"
    for number in range(10):
        cells = (_cell(about.reliability[index][1], number) for index in shown)
        yield f"| {number / 10:.1f}–{(number + 1) / 10:.1f} | " + " | ".join(cells) + " |"


def _cell(bins: Sequence[Bin], number: int) -> str:
    for sure, right, count in bins:
        if min(int(sure * 10), 9) == number:
            return f"{right:.0%} of {count:,}"
    return "–"
