"""`tandem chat`: a conversation on the terminal, over HTTP. Invariant: a cancelled answer ends on
every service."""

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import click

from tandem.commands.answer_view import AnswerView
from tandem.commands.calling import file_option
from tandem.commands.chat_client import ChatClient, Reply, base_url
from tandem.commands.chat_commands import (
    ChatCommands,
    keep_pastes_whole,
    read_message,
    say_on_terminal,
)
from tandem.commands.conversation import Conversation, chat_sampling
from tandem.commands.help_groups import GroupedCommand
from tandem.commands.loading_line import loading_line
from tandem.commands.model_notes import chosen_pair, show_notes
from tandem.commands.options import FILE, json_option, model_options, no_memory_option
from tandem.commands.request_options import (
    generation_config_option,
    preset_option,
    request_options,
)
from tandem.commands.suite_choice import refuse_own_models
from tandem.core.errors import InvalidArgument, TandemError
from tandem.generation.figures import choice_line, figures_line, plain_line
from tandem.generation.request import DEFAULT_PRESET, LONGEST_ANSWER_S, unknown_preset
from tandem.runtime.tenant_memories import MemoryLimits
from tandem.specdec.presets import PRESETS
from tandem.suite.background import BackgroundSuite
from tandem.suite.models import load_pair
from tandem.suite.requirements import require_packages
from tandem.telemetry.logging import configure_logging
from tandem.two_sided.interface import AGGREGATION_PRESETS

PROMPT = "> "
FURTHER = "... "
HELP = "/help lists the commands; Ctrl-C stops an answer; Ctrl-D leaves"


@click.command(cls=GroupedCommand)
@click.argument("model", required=False)
@click.option(
    "--endpoint",
    metavar="ADDRESS",
    help="Address of a running suite: http://HOST:PORT or HOST:PORT. Default: start one.",
)
@file_option("call_key_file")
@click.option(
    "--ca",
    type=FILE,
    help="PEM certificates of the authorities that sign the certificate of an"
    " https --endpoint. Default: the system's.",
)
@click.option("--insecure", is_flag=True, help="Allow plain HTTP to another machine.")
@click.option("--system", metavar="TEXT", help="System message.")
@preset_option
@click.option(
    "--rag", is_flag=True, help="Answer from the documents of both sides. Requires --endpoint."
)
@click.option("--max-tokens", type=int, default=256, help="Maximum tokens per answer.")
@request_options("temperature", "top_p", "top_k", "repetition_penalty")
@generation_config_option
@no_memory_option
@click.option(
    "--seed",
    type=int,
    help="Seed of the sampling. The same seed and conversation give the same"
    " answers. Default: random.",
)
@model_options
@click.option("--timeout", type=float, default=LONGEST_ANSWER_S, help="Maximum seconds per answer.")
@click.option("--verbose", is_flag=True, help="Print all figures after each answer.")
@json_option("Read a line of standard input per turn; print one JSON object per answer.")
def chat(**options: Any) -> None:
    """Talk to the models.

    MODEL is the one that answers, as --target has it: a GGUF file, a folder, or a name of 'tandem
    models'. Without --endpoint it is loaded into this process, with the one of --draft if that is
    given; by default it is the best chat model on this machine. Answers appear as they grow, with a
    live status line below; Ctrl-C stops one, Ctrl-D leaves, and /help lists the commands. Where
    standard input is no terminal, each of its lines is a turn.
    """
    if not options["timeout"] > 0:
        raise InvalidArgument("timeout", f"must be above 0, is {options['timeout']:g}")
    if options["model"] is not None:
        _take_as_target(options)
    configure_logging("critical")
    with ExitStack() as stack:
        url = options["endpoint"]
        if url is None:
            _check_alone(options)  # before any model is loaded
            draft, target = chosen_pair(options)
            require_packages(draft, target)
            with _typing_kept(), loading_line(draft, target):
                suite = BackgroundSuite(load_pair(draft, target), _memory_of(options))
                url = stack.enter_context(suite).url
            show_notes(draft, target)
        else:
            refuse_own_models(options)
        url = base_url(url, options["insecure"])
        key = _key(options["call_key_file"])
        client = stack.enter_context(ChatClient(url, key, options["timeout"], options["ca"]))
        card = client.card()
        asked = {name: options[name] for name in ("max_tokens", "seed", "preset")}
        asked["rag"] = options["rag"] or None
        asked["store"] = False if options["no_memory"] else None
        asked |= chat_sampling(options, card)
        _talk(Conversation(client, card, asked, options["system"]), options)


def _talk(conversation: Conversation, options: dict[str, Any]) -> None:
    if options["as_json"] or not sys.stdin.isatty():
        for line in sys.stdin:
            if words := line.strip():
                _answer_line(conversation, words, options["as_json"])
        return
    keep_pastes_whole()
    say_on_terminal(f"{conversation.model.name}: {HELP}")
    commands = ChatCommands(conversation, say_on_terminal)
    staying = True
    while staying:
        try:
            staying = _turn(conversation, commands, verbose=options["verbose"])
        except KeyboardInterrupt:  # while nothing was being answered
            click.echo()


def _turn(conversation: Conversation, commands: ChatCommands, *, verbose: bool) -> bool:
    """Ask for words and answer or obey them; False when the person leaves."""
    try:
        words = read_message(input, PROMPT, FURTHER)
    except EOFError:
        click.echo()
        return False
    retried = False
    if words.startswith("/") and "\n" not in words:
        try:
            command = commands.obey(words.strip())
        except InvalidArgument as error:
            say_on_terminal(f"{error.field}: {error.why}")
            return True
        if command == "/exit":
            return False
        retried = command == "/retry"
        if not retried:
            return True
    if retried or words.strip():
        _answer_person(conversation, None if retried else words.strip(), verbose=verbose)
    return True


def _answer_person(conversation: Conversation, words: str | None, *, verbose: bool) -> None:
    """Answer `words`, or None: the last message again. A failed answer does not end the
    conversation, nor does Ctrl-C."""
    view = AnswerView(sys.stdout, sys.stderr)
    spelt = view.wants_token_texts
    saying = conversation.retry(spelt) if words is None else conversation.say(words, spelt)
    reply = None
    try:
        with _typing_kept(), view:
            for reply in saying:
                view.update(reply)
    except KeyboardInterrupt:
        click.echo("(stopped)", err=True)
    except TandemError as error:
        click.echo(f"error: {error}", err=True)
    else:
        if reply is not None:
            click.secho(_figures(reply, verbose), dim=True, err=True)
    finally:
        saying.close()  # which cancels the answer


def _figures(reply: Reply, verbose: bool) -> str:
    lines = [plain_line(reply.tandem, reply.finish_reason)]
    if verbose:
        lines += [figures_line(reply.tandem, reply.finish_reason), choice_line(reply.tandem)]
    return "\n".join(line for line in lines if line)


def _answer_line(conversation: Conversation, words: str, as_json: bool) -> None:
    reply = None
    view = None if as_json else AnswerView(sys.stdout, sys.stderr)
    with view or nullcontext():
        for reply in conversation.say(words, view is not None and view.wants_token_texts):
            if view is not None:
                view.update(reply)
    assert reply is not None
    if as_json:
        line = {"text": reply.text, "finish_reason": reply.finish_reason}
        click.echo(json.dumps(line | reply.tandem | {"sampling": conversation.sampling}))


def _memory_of(options: dict[str, Any]) -> MemoryLimits | None:
    return None if options["no_memory"] else MemoryLimits()


def _take_as_target(options: dict[str, Any]) -> None:
    """Put MODEL in the place of --target. Raises InvalidArgument where that is taken."""
    if options["target"] is not None:
        raise InvalidArgument("model", "is the same as --target; leave out one of the two")
    options["target"] = options["model"]


def _check_alone(options: dict[str, Any]) -> None:
    """Refuse options that the embedded suite does not support. Raises InvalidArgument naming the
    flag."""
    if options["rag"]:
        raise InvalidArgument(
            "rag", "needs --endpoint of a suite with documents ('tandem up --rag')"
        )
    preset = options["preset"] or DEFAULT_PRESET
    if preset in AGGREGATION_PRESETS:
        raise InvalidArgument("preset", f"{preset} needs --endpoint of a suite with documents")
    if preset not in PRESETS:
        raise unknown_preset(preset)


def _key(path: Path | None) -> str | None:
    if path is None:
        return None
    from tandem.net.auth import own_key
    from tandem.net.reloaded import BadFile

    try:
        return own_key(path).current()
    except BadFile as error:
        raise InvalidArgument("call_key_file", str(error)) from error


@contextmanager
def _typing_kept() -> Iterator[None]:
    """Keep what a person types while a chat answers for the next turn: until the context ends the
    terminal of standard input shows nothing of it, and has it for whoever reads next, after Ctrl-C
    too."""
    try:
        import termios
    except ImportError:  # Windows
        yield
        return
    if not sys.stdin.isatty():
        yield
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    local_flags = 3
    quiet = [*before]
    quiet[local_flags] = (before[local_flags] & ~termios.ECHO) | termios.NOFLSH
    termios.tcsetattr(terminal, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSANOW, before)
