"""The command line, `tandem`. Its commands are those in _SUMMARIES, most of them modules of
`tandem.commands`, and those of the laboratory, where that is installed."""

import click
from click.shell_completion import get_completion_class

from tandem.commands.group import CommandGroup, InstalledCommand, LazyCommand
from tandem.commands.service_help import HELP, HELP_ALL, write_service_help
from tandem.core.version import __version__
from tandem.suite.supervised import run_module

SERVICES = ("verifier", "drafter", "aggregator", "retriever")
_SUMMARIES = {
    "generate": "Answer a prompt; on its own or by a running suite.",
    "chat": "Talk to the models on the terminal.",
    "compare": "Find out whether drafts pay here, by answers in turns.",
    "up": "Run all services as processes of this machine.",
    "ingest": "Put documents into a retriever or a local folder.",
    "search": "Find the best chunks of ingested documents.",
    "certs": "Make certificates and keys for the services.",
    "keys": "Make a key for a caller, or revoke it.",
    "join": "Draft on this machine for a verifier on another.",
    "link": "Emulate a slow or narrow link over TCP.",
    "models": "List the models on this machine.",
    "pull": "Download a model of the Hugging Face hub.",
    "pair": "Find models that can draft for a target.",
    "learning": "Show, roll back or reset what the draft model has learned.",
    "presets": "List the decoding methods that --preset can name.",
    "doctor": "Check the installation, the models and both ends.",
}
_OF_THE_LABORATORY = {
    "verify-lossless": "Test that answers are distributed as the target's own.",
    "plan": "Predict what each method gains, from step times and a link.",
    "sim": "Simulate every preset in virtual time, over any link.",
    "train-exits": "Train early exits for a target model.",
    "distill": "Make a draft model for a target.",
    "bench": "Measure the suite; figures count on a quiet machine.",
}
_OTHER_NAMES = {
    **dict.fromkeys(("list", "ls", "tags"), "models"),
    **dict.fromkeys(("run", "repl", "talk"), "chat"),
    **dict.fromkeys(("ask", "complete", "prompt"), "generate"),
    **dict.fromkeys(("start", "demo", "suite"), "up"),
    **dict.fromkeys(("status", "check", "ps"), "doctor"),
    **dict.fromkeys(("methods", "preset"), "presets"),
    **dict.fromkeys(("download", "fetch"), "pull"),
    **dict.fromkeys(("benchmark", "perf"), "bench"),
    **dict.fromkeys(("add", "index"), "ingest"),
    **dict.fromkeys(("find", "query"), "search"),
}
"""What other programs call some of these commands; suggested, not accepted."""
_MISSING = "needs the laboratory; in a checkout of the repository: pip install --editable ./lab"
_MODULES = {"learning": "tandem.learning.command"}
"""Of commands that another room brings."""
COMMANDS = {
    name: LazyCommand(_MODULES.get(name, f"tandem.commands.{function}"), function, summary)
    for name, summary in _SUMMARIES.items()
    for function in [name.replace("-", "_")]
} | {
    name: InstalledCommand(name, summary, _MISSING) for name, summary in _OF_THE_LABORATORY.items()
}


@click.group(
    cls=CommandGroup,
    commands_on_demand=COMMANDS,
    other_names=_OTHER_NAMES,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "show_default": True,
    },
)
@click.version_option(__version__, message="%(version)s")
@click.option("--debug", is_flag=True, help="Show the trace of an unexpected error.")
def main(debug: bool) -> None:
    """Text generation shared between a small model at the edge and a large one in the cloud. Exit
    codes: 0 done, 1 failed, 2 bad usage or value, 130 interrupted."""


@main.command(
    short_help="Run one service.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("service", type=click.Choice(SERVICES))
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def serve(ctx: click.Context, service: str, flags: tuple[str, ...]) -> None:
    """Run one service until a signal; it then drains and exits. FLAGS are the service's own: see
    'tandem serve SERVICE --help'. The same as 'python -P -m tandem.services.SERVICE FLAGS'. Writes
    'listening HOST:PORT' to standard output once it serves."""
    if {*flags} & {*HELP, HELP_ALL}:
        write_service_help(ctx, service, everything=HELP_ALL in flags)
        return
    words = [*flags]
    if service == "verifier":
        from tandem.commands.invite import with_invitation

        words = with_invitation(words)
    run_module(f"tandem.services.{service}", words)


@main.command(short_help="Print what lets a shell complete 'tandem'.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a script that lets SHELL complete commands, flags and their values. For bash:
    'eval "$(tandem completion bash)"' in ~/.bashrc; zsh likewise; for fish: 'tandem completion fish
    > ~/.config/fish/completions/tandem.fish'."""
    kind = get_completion_class(shell)
    assert kind is not None, "click has these"
    click.echo(kind(main, {}, "tandem", "_TANDEM_COMPLETE").source())


if __name__ == "__main__":
    main()
