"""The command line, `tandem`: names the commands; each is a module of `tandem.commands`.

Must not import anything heavy: a command is imported when it is called. To add one, add a line to
COMMANDS, or call `main.add_command`.
"""

from __future__ import annotations

import click

from tandem import __version__
from tandem.commands.group import CommandGroup, LazyCommand

COMMANDS = {
    "generate": LazyCommand(
        "tandem.commands.generate:generate", "Answer a prompt; on its own or by a running suite."
    ),
    "chat": LazyCommand("tandem.commands.chat:chat", "Talk to the models on the terminal."),
    "up": LazyCommand("tandem.commands.up:up", "Run all services as processes of this machine."),
    "serve": LazyCommand("tandem.commands.serve:serve", "Run one service."),
    "ingest": LazyCommand(
        "tandem.commands.ingest:ingest", "Put documents into a retriever or a local folder."
    ),
    "search": LazyCommand(
        "tandem.commands.search:search", "Find the best chunks of ingested documents."
    ),
    "certs": LazyCommand(
        "tandem.commands.certs:certs", "Make certificates and keys for the services."
    ),
    "keys": LazyCommand("tandem.commands.keys:keys", "Make a key for a caller, or take it back."),
    "link": LazyCommand("tandem.commands.link:link", "Emulate a slow or narrow link over TCP."),
    "plan": LazyCommand(
        "tandem.commands.plan:plan", "Predict what each method gains, from step times and a link."
    ),
    "sim": LazyCommand(
        "tandem.commands.sim:sim", "Simulate every preset in virtual time, over any link."
    ),
    "train-exits": LazyCommand(
        "tandem.commands.train_exits:train_exits", "Train early exits for a target model."
    ),
    "bench": LazyCommand(
        "bench.main:bench", "Measure the suite; figures count on a quiet machine."
    ),
    "doctor": LazyCommand(
        "tandem.commands.doctor:doctor", "Check the installation, the models and both ends."
    ),
}


@click.group(
    cls=CommandGroup,
    commands_on_demand=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, message="%(version)s")
@click.option("--debug", is_flag=True, help="Show the trace of an unexpected error.")
def main(debug: bool) -> None:
    """Text generation shared between a small model at the edge and a large one in the cloud.

    Exit codes: 0 done, 1 failed, 2 bad usage or value, 130 interrupted.
    """


if __name__ == "__main__":
    main()
