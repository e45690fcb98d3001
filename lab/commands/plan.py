"""`tandem plan`: each method's gain, predicted from step times, a link and an acceptance rate."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from math import inf
from typing import Any

import click

from lab.analysis.cost_models import LinkTimes
from lab.analysis.paper_tables import dssd_table_1
from lab.commands.plan_methods import METHODS, Planned, Situation
from tandem.commands.options import json_option
from tandem.control.conditions import PairTimes, check_duration
from tandem.core.errors import InvalidArgument
from tandem.netem.link_model import shape_from

PAPERS = {"dssd-table-1": dssd_table_1}
NOT_REPRODUCED = 1


@click.command()
@click.option("--paper", type=click.Choice(list(PAPERS)), help="Recompute a table of a paper.")
@click.option("--draft-ms", type=float, help="Time of one draft step.")
@click.option(
    "--cloud-draft-ms",
    type=float,
    help="cloud-draft: time of one draft step in the cloud. Default: a fifth of --draft-ms.",
)
@click.option("--verify-ms", type=float, help="Time of a target pass over one token.")
@click.option(
    "--verify-further-ms",
    type=float,
    default=0.0,
    help="Additional time of a target pass per further token.",
)
@click.option("--rtt-ms", type=float, default=0.0, help="Round-trip time of the link.")
@click.option("--mbps", type=float, help="Bandwidth per direction, in Mbit/s. Default: unlimited.")
@click.option("--mbps-up", type=float, help="Bandwidth from edge to cloud. Default: --mbps.")
@click.option("--mbps-down", type=float, help="Bandwidth from cloud to edge. Default: --mbps.")
@click.option("--acceptance", type=float, help="Rate at which the rejection rule accepts drafts.")
@click.option(
    "--acceptance-coupled",
    type=float,
    help="Acceptance rate under Gumbel coupling. Default: its lower bound, a / (2 - a).",
)
@click.option(
    "--draft-length", type=click.IntRange(1, 1024), default=4, help="Draft tokens per round."
)
@click.option("--vocabulary", type=int, default=32_000, help="Tokens in the vocabulary.")
@click.option(
    "--precision-bytes",
    type=float,
    default=2.0,
    help="Bytes per probability in a transmitted distribution.",
)
@click.option(
    "--method", "methods", type=click.Choice(list(METHODS)), multiple=True, help="Default: all."
)
@click.option(
    "--miss-rate",
    type=float,
    default=0.4,
    help="Share of verdicts whose outcome was not pre-drafted.",
)
@click.option(
    "--kept",
    type=click.IntRange(1),
    default=320,
    help="tslt, mc-dsd: tokens sent per draft distribution.",
)
@click.option("--tree", default="2,2,2", help="mc-dsd: candidates per layer, k1,k2,…")
@click.option(
    "--acceptance-tree",
    type=float,
    help="mc-dsd: rate at which a layer has an accepted candidate. Default: --acceptance.",
)
@click.option(
    "--window",
    type=click.IntRange(1),
    help="stream: draft tokens in flight. Default: those of the preset.",
)
@click.option(
    "--sessions",
    type=click.IntRange(1, 1024),
    default=1,
    help="Sessions that share the verifier, each on its own edge.",
)
@json_option("Print one JSON object with a row per method or cell.")
def plan(**options: Any) -> int:
    """Predict tokens per second of each method, or recompute a paper's table.

    Without --paper, give --draft-ms, --verify-ms and --acceptance. Drafts are accepted
    independently. Methods in rounds follow the papers' own models with their misprints corrected:
    token ids cost no bytes. 'picospec', 'stream' and 'cloud-draft', and every method of several
    --sessions, follow the schedule of their preset step by step, with all that it sends.
    Figures are per session; 'bytes' are per token and in expectation.
    """
    if options["paper"] is not None:
        return _paper(options["paper"], options["as_json"])
    _predict(options)
    return 0


def _paper(paper: str, as_json: bool) -> int:
    cells = PAPERS[paper]()
    good = sum(cell.within_rounding for cell in cells)
    if as_json:
        derived = ("relative_difference", "within_rounding")
        rows = [asdict(cell) | {name: getattr(cell, name) for name in derived} for cell in cells]
        outcome = {"paper": paper, "cells": len(cells), "within_rounding": good, "rows": rows}
        click.echo(json.dumps(outcome))
    else:
        click.echo("draft length  acceptance  1 - a^n  printed  T_comm (ms)  printed  agrees")
        for cell in cells:
            click.echo(
                f"{cell.draft_length:12}  {cell.acceptance_rate:10.2f}"
                f"  {cell.rejection_probability:7.3f}  {cell.printed_rejection_probability:7.2f}"
                f"  {cell.communication_s * 1e3:11.3f}  {cell.printed_communication_s * 1e3:7.2f}"
                f"  {'yes' if cell.within_rounding else 'NO':>6}"
            )
        click.echo(f"{good} of {len(cells)} cells agree with the printed ones within rounding")
    return 0 if good == len(cells) else NOT_REPRODUCED


def _predict(options: dict[str, Any]) -> None:
    predictions = _predictions(options, options["methods"] or list(METHODS))
    if options["as_json"]:
        inputs = {name: options[name] for name in options if name not in ("paper", "as_json")}
        rows = [_row(method, answer) for method, answer in predictions.items()]
        click.echo(json.dumps({"inputs": inputs, "rows": rows}))
        return
    click.echo("method       acceptance  TPOT (ms)  tokens/s  speedup    bytes up  bytes down")
    for method, answer in predictions.items():
        rate = "-" if answer.acceptance_rate is None else f"{answer.acceptance_rate:.2f}"
        prediction = answer.prediction
        tokens = prediction.tokens_per_round
        click.echo(
            f"{method:12} {rate:>10}  {prediction.tpot_s * 1e3:9.2f}  {1 / prediction.tpot_s:8.1f}"
            f"  {prediction.speedup_over_ar:6.2f}x  {prediction.uplink_bytes / tokens:10.0f}"
            f"  {prediction.downlink_bytes / tokens:10.0f}"
        )


def _predictions(options: dict[str, Any], methods: Sequence[str]) -> dict[str, Planned]:
    """Return what each method takes; InvalidArgument names the flag."""
    for field in ("draft_ms", "verify_ms", "acceptance"):
        if options[field] is None:
            raise InvalidArgument(field, "must be given, or --paper")
    rate = options["acceptance"]
    if not 0 <= rate <= 1:
        raise InvalidArgument("acceptance", f"must be within [0, 1], is {rate}")
    try:
        situation = _situation(options, rate)
        return {method: METHODS[method](situation) for method in methods}
    except InvalidArgument as error:
        raise InvalidArgument(_FLAGS.get(error.field, error.field), error.why) from error


_FLAGS = {
    "draft_s": "draft_ms",
    "verify_first_s": "verify_ms",
    "verify_further_s": "verify_further_ms",
    "rtt_s": "rtt_ms",
    "uplink_bytes_per_s": "mbps",
    "acceptance_rate": "acceptance_coupled",
    "vocabulary_size": "vocabulary",
    "expansion": "tree",
    "chunk": "window",
    "cloud_draft_s": "cloud_draft_ms",
}
"""What the cost models call the values of these flags. `acceptance` was checked before."""


def _situation(options: dict[str, Any], rate: float) -> Situation:
    link = shape_from(
        0.0, options["mbps"], mbps_up=options["mbps_up"], mbps_down=options["mbps_down"]
    )
    # 1 - TV is the rejection rule's rate; Gumbel coupling reaches at least (1 - TV)/(1 + TV).
    given = options["acceptance_coupled"]
    tree_rate = options["acceptance_tree"]
    if tree_rate is not None and not 0 <= tree_rate <= 1:
        raise InvalidArgument("acceptance_tree", f"must be within [0, 1], is {tree_rate}")
    cloud_draft_ms = options["cloud_draft_ms"]
    if cloud_draft_ms is not None:
        check_duration("cloud_draft_s", cloud_draft_ms / 1e3)
    return Situation(
        pair=PairTimes(
            *(options[name] / 1e3 for name in ("draft_ms", "verify_ms", "verify_further_ms"))
        ),
        link=LinkTimes(
            options["rtt_ms"] / 1e3, link.up.bytes_per_s or inf, link.down.bytes_per_s or inf
        ),
        rate=rate,
        coupled_rate=rate / (2 - rate) if given is None else given,
        layer_rate=rate if tree_rate is None else tree_rate,
        draft_length=options["draft_length"],
        vocabulary_size=options["vocabulary"],
        precision_bytes=options["precision_bytes"],
        miss_rate=options["miss_rate"],
        kept=options["kept"],
        expansion=_expansion(options["tree"]),
        window=options["window"],
        sessions=options["sessions"],
        cloud_draft_s=None if cloud_draft_ms is None else cloud_draft_ms / 1e3,
    )


def _expansion(words: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in words.split(","))
    except ValueError:
        raise InvalidArgument("tree", f"{words!r} is not a list of numbers k1,k2,…") from None


def _row(method: str, answer: Planned) -> dict[str, Any]:
    prediction = answer.prediction
    return {
        "preset": method,
        "draft_length": answer.draft_length,
        "acceptance_rate": answer.acceptance_rate,
        "predicted_tpot_s": prediction.tpot_s,
        "tokens_per_s": 1 / prediction.tpot_s,
        "speedup_over_ar": prediction.speedup_over_ar,
        "round_s": prediction.round_s,
        "tokens_per_round": prediction.tokens_per_round,
        "communication_s": prediction.communication_s,
        "uplink_bytes_per_token": prediction.uplink_bytes / prediction.tokens_per_round,
        "downlink_bytes_per_token": prediction.downlink_bytes / prediction.tokens_per_round,
    }
