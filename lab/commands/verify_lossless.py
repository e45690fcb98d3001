"""`tandem verify-lossless`: is the text of a pair, a preset and a link the target model's own?"""

import json
import sys
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any

import click

from tandem.commands.model_notes import chosen_pair
from tandem.commands.options import (
    emulates_link,
    json_option,
    link_options,
    link_shape,
    model_options,
)
from tandem.core.errors import unknown_name
from tandem.generation.figures import BIT_FOR_BIT, UP_TO_ROUNDING
from tandem.net.process import run_loop
from tandem.specdec.presets import PRESETS, Preset
from tandem.suite.models import ModelPair, load_pair
from tandem.telemetry.logging import configure_logging
from tandem.testing.goodness_of_fit import FALSE_ALARM, POWER
from tandem.testing.lossless import Divergence, LosslessPlan, PresetCheck, check_presets

DIFFERENT = 1
PROMPTS = (
    "A list is",
    "Once upon a time",
    "Tom has 3 apples and buys",
    "def add(a, b):",
    "The capital of France",
    "In the year 1900",
    "Question: How many days has a week?",
    "for number in range(10):",
)


def _has_drafts(preset: Preset) -> bool:
    return preset.drafts or preset.drafts_in_cloud


@click.command()
@model_options
@click.option(
    "--preset",
    "presets",
    multiple=True,
    type=click.Choice([name for name, preset in PRESETS.items() if _has_drafts(preset)]),
    help="Preset to test; repeatable. Default: coupled.",
)
@link_options
@click.option(
    "--prompt",
    "prompts",
    multiple=True,
    metavar="TEXT",
    help="Prompt to continue; repeatable. Default: eight built-in prompts.",
)
@click.option(
    "--max-tokens", type=click.IntRange(1, 4096), default=48, help="Maximum tokens per text."
)
@click.option(
    "--samples",
    type=click.IntRange(100, 1_000_000),
    default=2000,
    help="Number of short sequences to sample, for presets without coupled draws.",
)
@click.option(
    "--sequence", type=click.IntRange(1, 16), default=3, help="Tokens per short sequence."
)
@click.option("--seed", type=click.IntRange(0, 2**63), default=0, help="Seed of the first answer.")
@json_option("Print one JSON object with a row per preset.")
def verify_lossless(**options: Any) -> int:
    """Test that a pair's answers follow the target model's distribution.

    The pair answers in this process, over real gRPC and, with --rtt-ms, --mbps or other flags of
    the link, an emulated one. Texts at temperature 0, and at 1 where the preset couples
    its draws, must equal those of the target alone. Presets that draw by the rejection rule give
    other texts of the same distribution: their short sequences are held against it by a chi-squared
    test, whose power is printed. A lossy preset fails, and its measured bias is shown. Exit code 1
    on any difference. The last line says whether texts are the target's bit for bit, or up to
    rounding: most engines compute a token's scores to slightly other values in a longer pass.
    """
    names = options["presets"] or ("coupled",)
    for name in names:
        if name not in PRESETS:
            raise unknown_name("preset", name, PRESETS)
    presets = [PRESETS[name] for name in names]
    configure_logging("critical")
    shaped = emulates_link(options)
    shape = link_shape(options)
    pair = load_pair(*chosen_pair(options))
    plan = LosslessPlan(
        prompts=tuple(tuple(pair.tokenizer.encode(text)) for text in options["prompts"] or PROMPTS),
        tokens=options["max_tokens"],
        samples=options["samples"],
        sequence=options["sequence"],
        seed=options["seed"],
    )
    watched = not options["as_json"] and sys.stderr.isatty()
    with (
        click.progressbar(length=plan.answers(presets), label="answers", file=sys.stderr)
        if watched
        else nullcontext()
    ) as bar:
        advance = (lambda: bar.update(1)) if bar is not None else (lambda: None)
        checks: list[PresetCheck] = run_loop(
            check_presets(
                pair,
                presets,
                plan,
                link=shape if shaped else None,
                advance=advance,
            )
        )
    passed = all(check.passed for check in checks)
    if options["as_json"]:
        rows = [{**asdict(check), "passed": check.passed} for check in checks]
        certain = {"false_alarm": FALSE_ALARM, "power": POWER}
        exactness = BIT_FOR_BIT if pair.target.capabilities.batch_invariant else UP_TO_ROUNDING
        said = {"passed": passed, "exactness": exactness, "seed": plan.seed, **certain}
        click.echo(json.dumps({**said, "rows": rows}))
    else:
        _print(
            pair,
            plan,
            checks,
            "an emulated link" if shaped else "no emulated link",
        )
    return 0 if passed else DIFFERENT


def _print(pair: ModelPair, plan: LosslessPlan, checks: list[PresetCheck], link: str) -> None:
    draft = pair.draft.model_name
    target = pair.target.model_name
    size = f"{len(plan.prompts)} texts of {plan.tokens} tokens"
    click.echo(f"{draft} drafts for {target}: {size}, seed {plan.seed}, {link}")
    click.echo(
        "preset            result    greedy  coupled  chi-squared (limit)  bias (by chance)"
        "  bytes up, down  passes/token"
    )
    for check in checks:
        click.echo(_line(check))
    for check in checks:
        for divergence in check.divergences:
            click.echo(f"{check.preset}, {_divergence_words(divergence)}")
    if not pair.target.capabilities.same_bits and any(any(c.different.values()) for c in checks):
        click.echo(
            f"{target} does not give the same bits in every batch: where two tokens tie to that"
            " rounding, a text may be another. float32 on a CPU gives the same bits, and so does a"
            " GGUF file on llama.cpp with --batch-invariant."
        )
    sequences = [check.sequences for check in checks if check.sequences is not None]
    if sequences:
        click.echo(
            f"Sequences: {sequences[0].samples} of {plan.sequence} tokens in {sequences[0].cells}"
            f" cells. A total variation of {sequences[0].detectable:.3f} or more would be found in"
            f" {POWER:.0%} of runs; a false alarm comes once in {1 / FALSE_ALARM:,.0f}."
        )

    click.echo(_sign_off(checks, target, pair.target.capabilities.batch_invariant))


def _divergence_words(divergence: Divergence) -> str:
    """Return whether a fault is behind it, or the last bits of two equal scores."""
    where = f"{divergence.kind}: text {divergence.text + 1} turns at token {divergence.token + 1}"
    if divergence.gap is None:
        return f"{where}, where the target would never have this token"
    if divergence.is_rounding:
        return (
            f"{where}, where the target scores both tokens alike to {divergence.gap:.1g}: rounding"
        )
    return f"{where}, where the target's scores are {divergence.gap:.2g} apart: no rounding"


def _sign_off(checks: list[PresetCheck], target: str, batch_invariant: bool) -> str:
    """Return which presets may be relied on, and which not."""
    exactly = "bit for bit" if batch_invariant else "up to rounding"
    kinds = {
        f"as {target} alone, {exactly}": [check.preset for check in checks if check.passed],
        "lossy, as declared": [check.preset for check in checks if check.lossy],
        "DIFFERENT": [c.preset for c in checks if not (c.passed or c.lossy)],
    }
    return "; ".join(f"{kind}: {', '.join(names)}" for kind, names in kinds.items() if names) + "."


def _line(check: PresetCheck) -> str:
    def texts(kind: str) -> str:
        if kind not in check.different:
            return "-"
        return f"{check.texts - check.different[kind]}/{check.texts}"

    fit = check.sequences
    chi_squared = "-"
    bias = "-"
    if fit is not None:
        chi_squared = f"{fit.statistic:.1f} ({fit.limit:.1f})"
        bias = f"{fit.total_variation:.3f} ({fit.noise:.3f})"
    result = "passed" if check.passed else "lossy" if check.lossy else "DIFFERS"
    size = f"{check.uplink_bytes:.0f}, {check.downlink_bytes:.0f}"
    return (
        f"{check.preset:<17} {result:<8} {texts('greedy'):>7} {texts('coupled'):>8}"
        f" {chi_squared:>20} {bias:>17} {size:>15} {check.target_passes:>13.2f}"
    )
