"""`tandem sim`: presets compared in virtual time. State machines, wire format and the models'
distributions are the real ones; durations are declared. Only a real pair imports torch."""

import json
from dataclasses import asdict
from itertools import product
from typing import Any

import click

from lab.simulation.answer_figures import answers_figures
from tandem.backends.interface import Engine
from tandem.commands.model_notes import chosen_pair
from tandem.commands.options import (
    direction_options,
    json_option,
    link_shape,
    model_options,
)
from tandem.core.errors import InvalidArgument
from tandem.core.probs import SamplingParams
from tandem.netem.link_model import LinkSettings
from tandem.specdec.overrides import with_overrides
from tandem.specdec.presets import PRESETS, Preset
from tandem.suite.models import load_pair
from tandem.testing.scripted import scripted_pair
from tandem.testing.simulation.answer import Conditions, simulate_answer
from tandem.testing.simulation.model_pair import SimulatedPair, simulated_pair
from tandem.testing.simulation.model_times import ModelTimes

HEAD = (
    "preset            draft  RTT (ms)  Mbit/s  tokens/s  TPOT (ms)  TTFT (ms)  speedup"
    "  acceptance  passes/token  bytes up  bytes down"
)
DEFAULT_PROMPT = "The old town lies on a hill above the river, and"


@click.command()
@click.option(
    "--preset", "presets", type=click.Choice(list(PRESETS)), multiple=True, help="Default: all."
)
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="FIELD=VALUE",
    help="Change any single choice of the presets; repeatable.",
)
@click.option("--draft-ms", type=float, default=24.0, help="Time of one draft step.")
@click.option(
    "--cloud-draft-ms",
    type=float,
    help="Time of one draft step in the cloud, for presets that draft there; for auto only if it is"
    " given. Default: a fifth of --draft-ms.",
)
@click.option("--verify-ms", type=float, default=72.0, help="Time of a target pass over one token.")
@click.option(
    "--verify-further-ms",
    type=float,
    default=3.0,
    help="Additional time of a target pass per further token.",
)
@click.option(
    "--rtt-ms",
    type=float,
    multiple=True,
    help="Round-trip time of the link; repeatable. Default: 30.",
)
@click.option(
    "--mbps",
    type=float,
    multiple=True,
    help="Bandwidth per direction, in Mbit/s; repeatable. Default: unlimited.",
)
@click.option(
    "--jitter-ms",
    type=float,
    default=0.0,
    help="Maximum variation of a message's delay, in either direction.",
)
@direction_options
@click.option(
    "--draft-length",
    type=int,
    multiple=True,
    help="Draft tokens per round; repeatable. Default: the preset's own.",
)
@click.option("--prompt", default=DEFAULT_PROMPT, show_default=False, help="Text to continue.")
@click.option("--max-tokens", type=int, default=64, help="Tokens per answer.")
@click.option(
    "--answers",
    type=click.IntRange(1, 1000),
    default=1,
    help="Answers per row, each with its own seed.",
)
@click.option("--temperature", type=float, default=1.0)
@click.option("--seed", type=click.IntRange(0, 2**63), default=0)
@click.option(
    "--vocabulary",
    type=int,
    help="Vocabulary size used for the message size of whole distributions.",
)
@click.option(
    "--scripted",
    type=float,
    metavar="NOISE",
    help="Use a table-driven pair instead of models, with this distance between"
    " draft and target: 0 (identical) to 1 (unrelated).",
)
@model_options
@json_option("Print one JSON object with a row per combination.")
def sim(**options: Any) -> None:
    """Simulate answers of every preset in virtual time.

    Runs the protocol's own state machines over a modelled link with real messages; the models'
    distributions are computed (by default those of the best chat model here), their durations
    declared by flags.
    Deterministic by seed. The figures are those of simulated hardware.
    """
    sampling = SamplingParams(temperature=options["temperature"])
    sampling.validate(2**31)
    combinations = _combinations(options)
    pair, prompt_ids = _pair(options, sampling)
    rows = [
        _row(preset, pair, conditions, prompt_ids, options) for preset, conditions in combinations
    ]
    add_speedups(rows)
    if options["as_json"]:
        click.echo(json.dumps({"simulated": True, "seed": options["seed"], "rows": rows}))
        return
    click.echo(HEAD)
    for row in rows:
        click.echo(line_of(row))
    click.echo("Virtual time: durations are declared, distributions and messages are real.")


def _combinations(options: dict[str, Any]) -> list[tuple[Preset, Conditions]]:
    """Return everything asked for, each combination once. Raises InvalidArgument naming the
    flag."""
    for field in ("draft_ms", "verify_ms", "verify_further_ms", "jitter_ms"):
        if not 0 <= options[field] < float("inf"):
            raise InvalidArgument(field, "must be finite and not negative")
    cloud_draft_ms = options["cloud_draft_ms"]
    if cloud_draft_ms is not None and not 0 <= cloud_draft_ms < float("inf"):
        raise InvalidArgument("cloud_draft_ms", "must be finite and not negative")
    times = ModelTimes(
        options["draft_ms"] / 1e3,
        options["verify_ms"] / 1e3,
        options["verify_further_ms"] / 1e3,
        cloud_draft_s=None if cloud_draft_ms is None else cloud_draft_ms / 1e3,
        offers_cloud_drafts=cloud_draft_ms is not None,
    )
    presets: dict[Preset, None] = {}
    for name in options["presets"] or PRESETS:
        for length in options["draft_length"] or (None,):
            chosen = PRESETS[name]
            chosen = chosen if length is None else chosen.with_draft_length(length)
            chosen = with_overrides(chosen, options["overrides"])
            chosen.validate()
            presets[chosen] = None
    conditions = []
    for rtt_ms, mbps in product(options["rtt_ms"] or (30.0,), options["mbps"] or (None,)):
        conditions.append(
            Conditions(
                times,
                rtt_ms / 1e3,
                mbps,
                options["jitter_ms"] / 1e3,
                options["vocabulary"],
                link=link_shape(options | {"rtt_ms": rtt_ms, "mbps": mbps}),
            )
        )
    return list(product(presets, conditions))


def _pair(
    options: dict[str, Any], sampling: SamplingParams
) -> tuple[SimulatedPair, tuple[int, ...]]:
    """Return the distributions and the prompt's token ids."""
    if options["scripted"] is not None:
        return simulated_pair(*_scripted(options), sampling), tuple(options["prompt"].encode())
    models = load_pair(*chosen_pair(options))
    prompt_ids = tuple(models.tokenizer.encode(options["prompt"]))
    return simulated_pair(models.draft, models.target, sampling), prompt_ids


def _scripted(options: dict[str, Any]) -> tuple[Engine, Engine]:
    for field in ("draft", "target"):
        if options[field] is not None:
            raise InvalidArgument(field, "a scripted pair has no models; leave one out")
    try:
        return scripted_pair(options["scripted"])
    except InvalidArgument as error:
        raise InvalidArgument("scripted", error.why) from error


def _row(
    preset: Preset,
    pair: SimulatedPair,
    conditions: Conditions,
    prompt_ids: tuple[int, ...],
    options: dict[str, Any],
) -> dict[str, Any]:
    seeds = range(options["seed"], options["seed"] + options["answers"])
    answers = [
        simulate_answer(preset, pair, conditions, prompt_ids, options["max_tokens"], seed)
        for seed in seeds
    ]
    return {
        "preset": preset.name,
        "draft_length": preset.schedule.chunk if preset.drafts else None,
        "pacing": asdict(conditions.times),
        "rtt_s": conditions.rtt_s,
        "mbps": conditions.mbps,
        "mbps_up": _mbps(conditions.shape.up),
        "mbps_down": _mbps(conditions.shape.down),
        "seed": options["seed"],
        "speedup_over_ar": None,
        **answers_figures(answers),
    }


def _mbps(side: LinkSettings) -> float | None:
    return None if side.bytes_per_s is None else side.bytes_per_s * 8e-6


def add_speedups(rows: list[dict[str, Any]]) -> None:
    """Add the speedup against the cloud decoding alone, where that was simulated under the same
    conditions."""
    alone = {(row["rtt_s"], row["mbps"]): row["tpot_s"] for row in rows if row["preset"] == "ar"}
    for row in rows:
        reference = alone.get((row["rtt_s"], row["mbps"]))
        if reference is not None and row["tpot_s"]:
            row["speedup_over_ar"] = reference / row["tpot_s"]


def line_of(row: dict[str, Any]) -> str:
    """Return a row as a line below HEAD."""

    def cell(value: float | None, width: int, digits: int, factor: float = 1.0) -> str:
        return "-".rjust(width) if value is None else f"{value * factor:{width}.{digits}f}"

    times = "x" if row["speedup_over_ar"] is not None else " "
    return (
        f"{row['preset']:16}  {cell(row['draft_length'], 5, 0)}  {cell(row['rtt_s'], 8, 1, 1e3)}"
        f"  {cell(row['mbps'], 6, 0)}  {cell(row['tokens_per_s'], 8, 2)}"
        f"  {cell(row['tpot_s'], 9, 2, 1e3)}  {cell(row['ttft_s'], 9, 1, 1e3)}"
        f"  {cell(row['speedup_over_ar'], 6, 2)}{times}  {cell(row['acceptance_rate'], 10, 3)}"
        f"  {cell(row['target_passes_per_token'], 12, 3)}"
        f"  {cell(row['uplink_bytes_per_token'], 8, 0)}"
        f"  {cell(row['downlink_bytes_per_token'], 10, 0)}"
    )
