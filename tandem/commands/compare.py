"""`tandem compare`: one question by a preset and by the large model alone, in turns, and whether
drafts paid. Invariant: nothing of one answer is remembered for another; each answer is drafted and
verified anew, with the same seed."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import click

from tandem.commands.ask_suite import answer_object, ask
from tandem.commands.generate import as_text
from tandem.commands.help_groups import GroupedCommand
from tandem.commands.open_sampling import open_sampling
from tandem.commands.options import json_option
from tandem.commands.prompt_input import prompt_of
from tandem.commands.request_options import (
    generation_config_option,
    preset_option,
    request_options,
)
from tandem.commands.suite_choice import check_timeout, run_on_suite, suite_options
from tandem.core.default_sampling import NAMES
from tandem.core.errors import InvalidArgument
from tandem.generation.client import Generated
from tandem.generation.comparison import Comparison, passes_per_token, speeds
from tandem.generation.figures import answer_figures
from tandem.generation.request import (
    CLOUD_ALONE_PRESET,
    DEFAULT_PRESET,
    GenerationRequest,
)
from tandem.generation.request_fields import given_fields
from tandem.net.access import ClientAccess
from tandem.telemetry.logging import configure_logging


@click.command(cls=GroupedCommand)
@click.argument("text", required=False)
@click.option("--raw", is_flag=True, help="Continue the text, in the place of answering it.")
@preset_option
@click.option(
    "--turns",
    type=click.IntRange(2, 100),
    default=5,
    help="Answers of each of the two; who begins changes with each turn.",
)
@request_options("max_tokens", "seed", *NAMES)
@generation_config_option
@suite_options
@json_option("Print one JSON object with all answers, the speeds and the verdict.")
def compare(**options: Any) -> None:
    """Find out whether drafts pay here: answer TEXT by a preset and by the large model alone.

    Both answer in turns, with the same seed, and without memory of earlier texts. A first answer
    of each is not counted. Shown are each turn, the middle and the spread of both speeds, and one
    line that says whether drafts paid, and why.
    """
    preset = options["preset"] or DEFAULT_PRESET
    prompt = prompt_of(options)
    request = GenerationRequest(prompt).with_fields(
        **given_fields(options), preset=preset, no_memory=True
    )
    request.validate()
    check_timeout(options)
    if preset == CLOUD_ALONE_PRESET:
        raise InvalidArgument("preset", f"{preset} is what others are compared with")
    if request.from_two_sides:
        raise InvalidArgument(
            "preset", f"{preset} answers from documents, the large model does not"
        )
    configure_logging("critical")
    run_on_suite(lambda endpoint, access: _show(endpoint, request, options, access), options)


async def _show(
    endpoint: str,
    request: GenerationRequest,
    options: dict[str, Any],
    access: ClientAccess | None,
) -> None:
    sampling = await open_sampling(endpoint, request, options, access)
    request = request.with_fields(**sampling.settings)

    async def answer(asked: GenerationRequest) -> Generated:
        return await ask(endpoint, asked, options["timeout"], access=access)

    try:
        await answer(request)
    except InvalidArgument as error:
        request = as_text(request, error)
        await answer(request)
    by_alone = replace(request, preset=CLOUD_ALONE_PRESET)
    await answer(by_alone)
    own: list[Generated] = []
    alone: list[Generated] = []
    for turn in range(options["turns"]):
        in_order = ((by_alone, alone), (request, own))
        for asked, answers in in_order if turn % 2 == 0 else reversed(in_order):
            answers.append(await answer(asked))
        click.echo(_turn_line(turn + 1, request.preset, own[-1], alone[-1]), err=True)
    comparison = Comparison(tuple(own), tuple(alone))
    if options["as_json"]:
        click.echo(json.dumps(_object(comparison, request, by_alone)))
    else:
        click.echo("\n".join(_lines(comparison, request.preset)))


def _turn_line(number: int, preset: str, own: Generated, alone: Generated) -> str:
    shown = (_rate(1 / one.tpot_s) if one.tpot_s else "-" for one in (alone, own))
    speed_alone, speed_own = shown
    return f"turn {number}: the large model alone {speed_alone}, {preset} {speed_own} tokens/s"


def _lines(comparison: Comparison, preset: str) -> list[str]:
    lines = []
    for name, answers in (("the large model alone", comparison.alone), (preset, comparison.own)):
        spread = speeds(answers)
        passes = passes_per_token(answer_figures(answers[-1]))
        lines.append(
            f"{name}: {_rate(spread.middle)} tokens/s ({_rate(spread.lowest)} to"
            f" {_rate(spread.highest)}), {passes:.2f} passes of the large model a token"
        )
    same = "the texts are the same" if comparison.is_same_text else "the texts differ"
    return [*lines, same, comparison.verdict()]


def _object(
    comparison: Comparison, request: GenerationRequest, by_alone: GenerationRequest
) -> dict[str, Any]:
    return {
        "preset": request.preset,
        "speedup": asdict(comparison.speedup),
        "tokens_per_s": asdict(speeds(comparison.own)),
        "tokens_per_s_alone": asdict(speeds(comparison.alone)),
        "same_text": comparison.is_same_text,
        "verdict": comparison.verdict(),
        "answers": [answer_object(request, one) for one in comparison.own],
        "answers_alone": [answer_object(by_alone, one) for one in comparison.alone],
    }


def _rate(tokens_per_s: float) -> str:
    return f"{tokens_per_s:.0f}" if tokens_per_s >= 10 else f"{tokens_per_s:.1f}"
