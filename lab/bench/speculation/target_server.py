"""`bench target-server`: `auto` beside the server's own stream, where an unmodified server computes
the target.

Both are read through the same verifier: preset `ar` is one streamed request and nothing more. They
take turns, prompt by prompt, so that load from elsewhere meets both alike."""

from __future__ import annotations

from statistics import median

from lab.bench.harness.baselines import ALONE
from lab.bench.harness.models import Models
from lab.bench.harness.report import Goal, Report, counted
from lab.bench.harness.suite import running_suite
from lab.bench.harness.texts import prompts
from lab.bench.speculation.peer_configurations import TandemConfiguration
from tandem.core.errors import InvalidArgument

AUTO = "auto"
TURNS = 24
TURNS_QUICKLY = 8
TOKENS = 192
MOST_LONGER = 1.03
"""Time of an answer by `auto`, relative to the stream's."""
COLUMNS = ("method", "tokens_per_s", "tpot_s", "ttft_s", "acceptance_rate", "tokens")


def run(report: Report, models: Models, url: str | None) -> None:
    """Fill the report with a row for each preset at temperature 0, and the goal. `url`: of the
    server, which serves the model whose folder the target is. Raises InvalidArgument("url")."""
    if url is None:
        raise InvalidArgument("url", "is needed: the address of a vLLM or SGLang server")
    options = ("--target-url", url)
    with running_suite(models, shares_cores=True, verifier_options=options) as suite:
        both = [
            TandemConfiguration(suite, preset, None, 0.0, threads="2 shared")
            for preset in (AUTO, ALONE)
        ]
        for configuration in both:  # the first answers find out what a pass costs
            configuration.take_turn(prompts(1), TOKENS, report.seed)
            configuration.answers.clear()
        turns = prompts(TURNS_QUICKLY if report.quick else TURNS)
        for turn, text in enumerate(counted(turns, lambda text: "both answer")):
            for configuration in both if turn % 2 else reversed(both):
                configuration.take_turn([text], TOKENS, report.seed + turn)
    report.add("A server's target, temperature 0", COLUMNS, [one.row() for one in both])
    auto, alone = (one.answers for one in both)
    times = [ours.duration_s / its.duration_s for ours, its in zip(auto, alone, strict=True)]
    report.goals.append(Goal("auto ÷ ar, time of an answer", median(times), MOST_LONGER, "at most"))
    same = all(ours.token_ids == its.token_ids for ours, its in zip(auto, alone, strict=True))
    report.goals.append(Goal("equal texts", float(same), 1.0, "at least"))
