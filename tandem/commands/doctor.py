"""`tandem doctor`: is this installation whole, do the models fit, do both ends fit?"""

import json
from typing import Any

import click

from tandem.commands.calling import access_options, access_to, aggregator_of
from tandem.commands.checks import Check, index_checks
from tandem.commands.options import ENDPOINT, FILE, FOLDER, json_option, model_options

UNFIT = 1


@click.command()
@click.option("--endpoint", type=ENDPOINT, help="Also check this running suite.")
@access_options
@model_options
@click.option(
    "--profile",
    is_flag=True,
    help="Measure the time of a decoding step of each model and store it for the scheduler.",
)
@click.option(
    "--profile-file",
    type=FILE,
    help="File for the measurements. Default: in the user's cache folder.",
)
@click.option(
    "--profile-documents",
    type=click.IntRange(1, 64),
    default=2,
    help="Documents per side, decoded concurrently.",
)
@click.option(
    "--memory",
    is_flag=True,
    help="Start the services with these models, ask them once, and print the memory of each"
    " (Linux only).",
)
@click.option(
    "--index",
    "indexes",
    multiple=True,
    type=FOLDER,
    help="Verify the checksums of this index folder; repeatable.",
)
@json_option("Print one JSON object with all checks.")
def doctor(**options: Any) -> int:
    """Check the installation, the models, and with --endpoint both ends of a running suite.

    Prints a line per check, with what to do where one is bad. Exit code 1 if any is. With
    --endpoint or --index, local models are checked only if --draft, --target or --demo is given.
    --profile takes some seconds and wants the machine to itself.
    """
    checks = _all_checks(options)
    good = all(check.ok for check in checks)
    if options["as_json"]:
        click.echo(json.dumps({"ok": good, "checks": [check.as_object() for check in checks]}))
    else:
        for check in checks:
            click.echo(check.line())
    if not good:
        bad = ", ".join(check.name for check in checks if not check.ok)
        click.echo(f"error: bad: {bad}; see above for what to do", err=True)
    return 0 if good else UNFIT


def _all_checks(options: dict[str, Any]) -> list[Check]:
    from tandem.commands.check_installation import installation_checks
    from tandem.commands.check_models import model_checks
    from tandem.commands.check_suite import suite_checks

    checks = installation_checks()
    endpoint = options["endpoint"]
    named = options["draft"] or options["target"] or options["demo"]
    if named or not (endpoint or options["indexes"]):
        checks += model_checks(options)
    checks += index_checks(options["indexes"])
    if options["profile"]:
        from tandem.commands.profile_models import profile_checks

        checks += profile_checks(options)
    if options["memory"]:
        from tandem.commands.measure_memory import memory_checks

        checks += memory_checks(options)
    if endpoint is not None:
        checks += suite_checks(aggregator_of(options), access_to(endpoint, options))
    return checks
