"""`tandem sim --fleet`: thousands of edges and many verifiers in virtual time."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from math import inf
from typing import Any

import click

from lab.simulation.fleet import simulate_fleet, verifiers_needed
from lab.simulation.fleet_figures import FleetFigures
from lab.simulation.fleet_plan import FleetPlan, FleetTraffic, Scaling, Spread, TrafficKind
from tandem.commands.options import json_option
from tandem.core.errors import InvalidArgument
from tandem.specdec.overrides import parse_overrides, with_overrides
from tandem.specdec.presets import PRESETS

ALONE = "ar"
_SPREAD = "NUMBER, LOW..HIGH or MEDIAN~SIGMA"


class SimOrFleet(click.Command):
    """`sim`, or with `--fleet` the command below: they share no option but a few names."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        if "--fleet" not in args:
            return super().make_context(info_name, args, parent, **extra)
        left = [argument for argument in args if argument != "--fleet"]
        return sim_fleet.make_context(f"{info_name} --fleet", left, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        return super().invoke(ctx) if ctx.command is self else ctx.command.invoke(ctx)


@click.command()
@click.option(
    "--preset",
    "presets",
    # A fleet's rounds know of drafts of the edge, and of no hidden states.
    type=click.Choice(
        [
            name
            for name, preset in PRESETS.items()
            if not (preset.split_layers or preset.drafts_in_cloud)
        ]
    ),
    multiple=True,
    help="Preset to simulate; repeatable. Default: ar and auto.",
)
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="FIELD=VALUE",
    help="Override a setting of the presets, as without --fleet.",
)
@click.option(
    "--edges",
    multiple=True,
    type=click.IntRange(1, 100_000),
    help="Number of edges; repeatable. Default: 1000.",
)
@click.option("--verifiers", type=click.IntRange(1, 200), default=8, show_default=True)
@click.option(
    "--tpot-ms",
    multiple=True,
    type=float,
    help="Find how many verifiers keep 95 % of TPOTs below this, instead of --verifiers.",
)
@click.option(
    "--ttft-ms",
    type=float,
    default=2000.0,
    show_default=True,
    help="With --tpot-ms: also keep 95 % of TTFTs below this.",
)
@click.option(
    "--traffic",
    type=click.Choice([str(kind) for kind in TrafficKind]),
    default="poisson",
    show_default=True,
)
@click.option(
    "--per-edge-s",
    type=float,
    default=60.0,
    show_default=True,
    help="Mean time between requests of an edge; for chats, between an answer and"
    " the next question.",
)
@click.option("--prompt-tokens", metavar=_SPREAD, default="200~0.8", show_default=True)
@click.option("--answer-tokens", metavar=_SPREAD, default="160~0.6", show_default=True)
@click.option("--draft-ms", metavar=_SPREAD, default="6..14", show_default=True)
@click.option("--rtt-ms", metavar=_SPREAD, default="30~0.5", show_default=True)
@click.option("--acceptance", metavar=_SPREAD, default="0.6..0.85", show_default=True)
@click.option(
    "--jitter-ms", type=float, default=0.0, show_default=True, help="Mean jitter of a round."
)
@click.option("--verify-ms", type=float, default=30.0, show_default=True)
@click.option("--verify-further-ms", type=float, default=0.15, show_default=True)
@click.option("--prompt-token-ms", type=float, default=0.08, show_default=True)
@click.option(
    "--hit-rate",
    type=float,
    default=0.5,
    show_default=True,
    help="Share of pre-drafts that fit the verdict.",
)
@click.option(
    "--max-sessions",
    type=int,
    default=256,
    show_default=True,
    help="Maximum sessions per verifier.",
)
@click.option("--failure-s", type=float, help="Mean time between a verifier's failures.")
@click.option("--repair-s", type=float, default=30.0, show_default=True)
@click.option("--scale-to", type=float, help="Autoscale to this many sessions per verifier.")
@click.option(
    "--start-s", type=float, default=60.0, show_default=True, help="Startup time of a new verifier."
)
@click.option(
    "--day-s",
    type=float,
    default=86_400.0,
    show_default=True,
    help="Period of the diurnal traffic.",
)
@click.option("--seconds", type=float, default=60.0, show_default=True, help="Simulated time.")
@click.option(
    "--warm-s",
    type=float,
    default=20.0,
    show_default=True,
    help="Simulated warm-up time that is not measured.",
)
@click.option("--seed", type=click.IntRange(0, 2**63), default=0)
@json_option("Print one JSON object with a row per combination.")
def sim_fleet(**options: Any) -> None:
    """Simulate many edges and verifiers in virtual time.

    Pass budgets and schedules are the services' own code; answers go to the verifiers in turn;
    durations, links, acceptance and traffic are declared. With --tpot-ms it finds the fewest
    verifiers that keep 95 % of the answers to that. Deterministic by seed.
    """
    plans = [
        (_plan(options, edges, name), name, tpot_ms)
        for edges in options["edges"] or (1000,)
        for name in options["presets"] or (ALONE, "auto")
        for tpot_ms in options["tpot_ms"] or (None,)
    ]
    if options["as_json"]:
        rows = [_row(*plan, options) for plan in plans]
        click.echo(json.dumps({"simulated": True, "seed": options["seed"], "rows": rows}))
        return
    click.echo(
        "preset   edges  p95 TPOT ≤  verifiers  tokens/s  tokens/round  batch  TTFT p95 (ms)"
        "  TPOT p50  TPOT p95 (ms)  Jain  refused  rounds/s simulated (processor)  (wall)"
    )
    for plan in plans:
        click.echo(_line(_row(*plan, options)))
    click.echo("Virtual time: durations, links, acceptance and traffic are declared.")


def simulated_row(flags: Sequence[str]) -> dict[str, Any]:
    """Return what `tandem sim --fleet` prints with these flags and --json of its first row."""
    options = sim_fleet.make_context("sim --fleet", [*flags]).params
    (name, *_) = options["presets"] or (ALONE,)
    (edges, *_) = options["edges"] or (1000,)
    return _row(_plan(options, edges, name), name, None, options)


def _plan(options: dict[str, Any], edges: int, name: str) -> FleetPlan:
    preset = with_overrides(PRESETS[name], parse_overrides(options["overrides"]))
    preset.validate()
    scaling = None
    if options["scale_to"] is not None:
        scaling = Scaling(options["scale_to"], start_s=options["start_s"])
    plan = FleetPlan(
        preset,
        edges,
        options["verifiers"],
        FleetTraffic(
            TrafficKind(options["traffic"]),
            options["per_edge_s"],
            options["day_s"],
            Spread.parsed("prompt_tokens", options["prompt_tokens"]),
            Spread.parsed("answer_tokens", options["answer_tokens"]),
        ),
        verify_first_s=options["verify_ms"] / 1e3,
        verify_further_s=options["verify_further_ms"] / 1e3,
        prompt_token_s=options["prompt_token_ms"] / 1e3,
        draft_s=Spread.parsed("draft_ms", options["draft_ms"], 1e-3),
        rtt_s=Spread.parsed("rtt_ms", options["rtt_ms"], 1e-3),
        acceptance_rate=Spread.parsed("acceptance", options["acceptance"]),
        jitter_s=options["jitter_ms"] / 1e3,
        hit_rate=options["hit_rate"],
        max_sessions=options["max_sessions"],
        failure_s=options["failure_s"] or inf,
        repair_s=options["repair_s"],
        scaling=scaling,
        lasts_s=options["seconds"],
        warm_s=options["warm_s"],
        seed=options["seed"],
    )
    plan.check()
    return plan


def _row(
    plan: FleetPlan, name: str, tpot_ms: float | None, options: dict[str, Any]
) -> dict[str, Any]:
    began_s, worked_s = time.perf_counter(), time.process_time()
    if tpot_ms is None:
        figures: FleetFigures | None = simulate_fleet(plan)
    else:
        if plan.scaling is not None:
            raise InvalidArgument("tpot_ms", "an autoscaler finds the number itself; leave one out")
        figures = verifiers_needed(plan, tpot_ms / 1e3, options["ttft_ms"] / 1e3)
    row: dict[str, Any] = {"preset": name, "edges": plan.edges, "tpot_limit_s": None}
    row |= {"tpot_limit_s": None if tpot_ms is None else tpot_ms / 1e3}
    if figures is None:
        return row | {"verifiers": None}
    row |= asdict(replace(figures, moves=dict(figures.moves)))
    if tpot_ms is not None:  # many simulations
        return row | {"rounds_per_s": None, "rounds_per_processor_s": None}
    rounds, passed_s = figures.simulated_rounds, time.perf_counter() - began_s
    # The process's clock may have ticks that are longer than a small simulation.
    worked_s = time.process_time() - worked_s or passed_s
    return row | {"rounds_per_s": rounds / passed_s, "rounds_per_processor_s": rounds / worked_s}


def _line(row: dict[str, Any]) -> str:
    def cell(name: str, width: int, digits: int, factor: float = 1.0) -> str:
        value = row.get(name)
        return "-".rjust(width) if value is None else f"{value * factor:{width}.{digits}f}"

    if row["verifiers"] is None:
        limit = cell("tpot_limit_s", 10, 0, 1e3)
        return f"{row['preset']:7}  {row['edges']:5}  {limit}  more than 200, or none would do"
    return (
        f"{row['preset']:7}  {row['edges']:5}  {cell('tpot_limit_s', 10, 0, 1e3)}"
        f"  {cell('verifiers', 9, 1)}  {cell('tokens_per_s', 8, 0)}"
        f"  {cell('tokens_per_round', 12, 2)}  {cell('sessions_per_pass', 5, 1)}"
        f"  {cell('ttft_p95_s', 13, 0, 1e3)}  {cell('tpot_p50_s', 8, 1, 1e3)}"
        f"  {cell('tpot_p95_s', 13, 1, 1e3)}  {cell('jain', 4, 2)}  {cell('refused', 7, 0)}"
        f"  {cell('rounds_per_processor_s', 30, 0)}  {cell('rounds_per_s', 6, 0)}"
    )
