"""`tandem plan`: what each preset gains, from step times, a link and an acceptance rate. No model
is needed: the services' state machines run in virtual time, and drafts are right by chance."""

import json
from statistics import fmean
from typing import Any

import click

from lab.commands.sim import HEAD, add_speedups, line_of
from lab.simulation.answer_figures import answers_figures, steady_tokens_per_s
from tandem.commands.options import json_option
from tandem.control.conditions import check_duration
from tandem.core.errors import InvalidArgument
from tandem.netem.link_model import shape_from
from tandem.specdec.presets import PRESETS, Preset
from tandem.testing.simulation.answer import Conditions, Question, SimulatedAnswer, simulate_answers
from tandem.testing.simulation.declared_pair import declared_pair
from tandem.testing.simulation.model_times import ModelTimes

SEEDS = 8
"""Texts of one session; many sessions write many texts with one seed."""
TOKENS = 160
TOKENS_OF_MANY = 64
MANY = 4
"""From so many sessions on answers are shorter."""
WORDS = 64
"""Tokens of the declared pair: small vocabularies draw sooner; distributions count padded."""
WARM = 0.25
"""The share of each answer that is not counted, while what is measured settles."""


@click.command()
@click.option("--draft-ms", type=float, required=True, help="Time of one draft step.")
@click.option("--verify-ms", type=float, required=True, help="Time of a target pass over a token.")
@click.option(
    "--verify-further-ms",
    type=float,
    default=0.0,
    help="Additional time of a target pass per further token.",
)
@click.option(
    "--cloud-draft-ms",
    type=float,
    help="Time of one draft step in the cloud, for presets that draft there; for auto only if it is"
    " given. Default: a fifth of --draft-ms.",
)
@click.option("--rtt-ms", type=float, default=0.0, help="Round-trip time of the link.")
@click.option("--mbps", type=float, help="Bandwidth per direction, in Mbit/s. Default: unlimited.")
@click.option("--mbps-up", type=float, help="Bandwidth from edge to cloud. Default: --mbps.")
@click.option("--mbps-down", type=float, help="Bandwidth from cloud to edge. Default: --mbps.")
@click.option("--acceptance", type=float, required=True, help="How often a draft is right: 0 to 1.")
@click.option(
    "--draft-length",
    type=click.IntRange(1, 1024),
    help="Draft tokens per round. Default: the preset's own.",
)
@click.option(
    "--vocabulary",
    type=click.IntRange(1),
    default=32_000,
    help="Vocabulary size used for the message size of whole distributions.",
)
@click.option(
    "--preset", "presets", type=click.Choice(list(PRESETS)), multiple=True, help="Default: all."
)
@click.option(
    "--sessions",
    type=click.IntRange(1, 64),
    default=1,
    help="Sessions that share one verifier, each with its own edge.",
)
@json_option("Print one JSON object with a row per preset.")
def plan(**options: Any) -> None:
    """Predict the speed of every preset from step times, link and acceptance.

    Runs the protocol's own state machines in virtual time, with drafts that are right as often as
    you say. Tokens per second are those of one of the sessions.
    """
    conditions = _conditions(options)
    if not 0 <= options["acceptance"] <= 1:
        raise InvalidArgument("acceptance", f"must be within [0, 1], is {options['acceptance']}")
    rows = [
        _row(_preset(name, options), conditions, options["acceptance"], options["sessions"])
        for name in ("ar", *(name for name in options["presets"] or PRESETS if name != "ar"))
    ]
    add_speedups(rows)
    if options["as_json"]:
        click.echo(json.dumps({"sessions": options["sessions"], "rows": rows}))
        return
    click.echo(HEAD)
    for row in rows:
        click.echo(line_of(row))
    click.echo("Virtual time: durations and acceptance are declared.")


def _conditions(options: dict[str, Any]) -> Conditions:
    """Raise InvalidArgument naming a bad flag."""
    for name in ("draft_ms", "verify_ms", "verify_further_ms", "cloud_draft_ms", "rtt_ms"):
        if options[name] is not None:
            check_duration(name, options[name])
    if not options["verify_ms"]:
        raise InvalidArgument("verify_ms", "must be above 0")
    cloud_ms = options["cloud_draft_ms"]
    times = ModelTimes(
        options["draft_ms"] / 1e3,
        options["verify_ms"] / 1e3,
        options["verify_further_ms"] / 1e3,
        cloud_draft_s=None if cloud_ms is None else cloud_ms / 1e3,
        offers_cloud_drafts=cloud_ms is not None,
    )
    link = shape_from(
        options["rtt_ms"] / 1e3,
        options["mbps"],
        mbps_up=options["mbps_up"],
        mbps_down=options["mbps_down"],
    )
    return Conditions(
        times,
        options["rtt_ms"] / 1e3,
        options["mbps"],
        padded_vocabulary=max(WORDS, options["vocabulary"]),
        link=link,
    )


def _preset(name: str, options: dict[str, Any]) -> Preset:
    preset = PRESETS[name]
    if options["draft_length"] is not None:
        preset = preset.with_draft_length(options["draft_length"])
    preset.validate()
    return preset


def _row(preset: Preset, conditions: Conditions, rate: float, sessions: int) -> dict[str, Any]:
    answered = [
        _answers(preset, conditions, rate, sessions, seed)
        for seed in range(SEEDS if sessions < MANY else 1)
    ]
    figures = answers_figures([answer for answers in answered for answer in answers])
    if sessions > 1:  # while all of them are under way
        warm = int(WARM * (TOKENS if sessions < MANY else TOKENS_OF_MANY))
        together = fmean(steady_tokens_per_s(answers, warm) for answers in answered)
        figures["tpot_s"] = sessions / together
    return figures | {
        "preset": preset.name,
        "draft_length": preset.schedule.chunk if preset.drafts else None,
        "rtt_s": conditions.rtt_s,
        "mbps": conditions.mbps,
        "tokens_per_s": 1 / figures["tpot_s"],
        "speedup_over_ar": None,
    }


def _answers(
    preset: Preset, conditions: Conditions, rate: float, sessions: int, seed: int
) -> list[SimulatedAnswer]:
    """Return an answer of each session; they begin at slightly different moments."""
    tokens = TOKENS if sessions < MANY else TOKENS_OF_MANY
    first_s = 4 * conditions.times.pass_s(1)
    questions = [
        Question((number, seed), tokens, seed, start_s=number * 0.618 % 1 * first_s)
        for number in range(sessions)
    ]
    pair = declared_pair(rate, seed=seed, vocabulary_size=WORDS)
    return simulate_answers(preset, pair, conditions, questions)
