"""Help in groups: options under titles, and those that few people need with `--help-all` only.

A group names options by the names of their parameters, in the order in which they are shown. The
groups below are those of the commands that ask for answers; those of services are in their settings
(`service_help`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

Row = tuple[str, str]
"""An option with its value, and what it does."""

OTHER = "Other"
"""The title of what no group names."""
_EVERYTHING = "tandem.help-all"
_COLUMN = 30
"""Longest first column; what is longer stands on a line alone."""


@dataclass(frozen=True, slots=True)
class OptionGroup:
    """Options under one title; `rare` ones are shown by `--help-all` only."""

    title: str
    usual: tuple[str, ...]
    rare: tuple[str, ...] = ()


GROUPS = (
    OptionGroup(
        "Prompt",
        ("prompt", "raw", "images", "system"),
        ("prompt_ids", "suffix", "prediction", "truncate"),
    ),
    OptionGroup(
        "Model",
        ("draft", "target", "demo", "dtype_draft", "dtype_target", "device_draft", "device_target"),
        (
            *("engine_draft", "engine_target", "exits", "batch_invariant", "threads"),
            *("cloud_draft", "engine_cloud_draft", "device_cloud_draft", "dtype_cloud_draft"),
        ),
    ),
    OptionGroup(
        "Sampling",
        ("max_tokens", "temperature", "top_p", "top_k", "seed", "stop", "json_schema"),
        (
            *("generation_config", "min_p", "typical_p", "repetition_penalty"),
            *("presence_penalty", "frequency_penalty", "regex", "grammar", "logit_bias"),
            *("banned_token_ids", "allowed_token_ids", "stop_token_ids"),
            *("include_stop_str_in_output", "min_tokens", "ignore_eos", "thinking_token_budget"),
        ),
    ),
    OptionGroup(
        "Schedule",
        ("preset", "turns", "draft_length"),
        (
            *("overrides", "expansion", "draft_top_k", "draft_top_p"),
            *("payload_top", "payload_tail_draws", "lost_cloud", "no_memory", "priority"),
        ),
    ),
    OptionGroup(
        "Link",
        (
            *("endpoint", "call_key_file", "insecure", "timeout", "port", "http_port"),
            *("rtt_ms", "mbps", "jitter_ms"),
        ),
        (
            *("ca", "tls_ca", "tls_certificate", "tls_key", "metrics_port", "link_seed"),
            *("mbps_up", "mbps_down", "delay_up_ms", "delay_down_ms"),
            *("loss", "loss_burst", "verifiers", "pin", "drain_s"),
        ),
    ),
    OptionGroup(
        "Documents",
        ("rag", "device_documents", "cloud_documents"),
        ("query", "documents", "index_folder", "embedding"),
    ),
    OptionGroup(
        "Output",
        ("try", "verbose", "as_json", "help", "help_all"),
        ("explain", "logs"),
    ),
)


def sections_of(
    groups: Iterable[OptionGroup],
    rows: Mapping[str, Row],
    *,
    everything: bool,
    others: str = OTHER,
) -> list[tuple[str, list[Row]]]:
    """Return titles with what is to be shown under each: `rows`, by the names of parameters. What
    no group names is shown last, under the title `others`."""
    left = dict(rows)
    sections = []
    for group in groups:
        usual = [left.pop(name) for name in group.usual if name in left]
        rare = [left.pop(name) for name in group.rare if name in left]
        sections.append((group.title, usual + rare if everything else usual))
    sections.append((others, list(left.values())))
    return [(title, shown) for title, shown in sections if shown]


def write_sections(
    formatter: click.HelpFormatter, sections: Sequence[tuple[str, Sequence[Row]]]
) -> None:
    """Write all sections with one width of the first column, so that the words line up."""
    names = [name for _, rows in sections for name, _ in rows if len(name) <= _COLUMN]
    width = max(map(len, names), default=0)
    for title, rows in sections:
        with formatter.section(title):
            formatter.write_dl([(name.ljust(width), words) for name, words in rows], width)


class GroupedCommand(click.Command):
    """A command whose help shows its options in groups."""

    def __init__(
        self,
        *args: Any,
        groups: Sequence[OptionGroup] = GROUPS,
        others: str = OTHER,
        **attributes: Any,
    ) -> None:
        """Make a command whose options are shown in `groups`. `others`: the title of options that
        no group names."""
        super().__init__(*args, **attributes)
        self._groups = groups
        self._others = others
        names = {parameter.name for parameter in self.params}
        if any(name in names for group in groups for name in group.rare):
            self.params.append(_help_all())

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        help_option = self.get_help_option(ctx)  # whose name depends on the version of click
        rows = {
            "help" if parameter is help_option else str(parameter.name): row
            for parameter in self.get_params(ctx)
            if isinstance(parameter, click.Option)
            and (row := parameter.get_help_record(ctx)) is not None
        }
        everything = ctx.meta.get(_EVERYTHING, False)
        write_sections(
            formatter,
            sections_of(self._groups, rows, everything=everything, others=self._others),
        )


class SectionedGroup(click.Group):
    """A group whose help lists its commands under titles, with all that each says of itself.
    `sections`: the names of commands by their title."""

    def __init__(
        self, *args: Any, sections: Mapping[str, Sequence[str]], **attributes: Any
    ) -> None:
        super().__init__(*args, **attributes)
        self._sections = sections

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        shown = []
        for title, names in self._sections.items():
            commands = [(name, self.commands[name]) for name in names if name in self.commands]
            shown.append((title, [(name, command.help or "") for name, command in commands]))
        write_sections(formatter, shown)


def _help_all() -> click.Option:
    return click.Option(
        ["--help-all"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_show_everything,
        help="Show all options, including those that few people need.",
    )


def _show_everything(ctx: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        ctx.meta[_EVERYTHING] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()
