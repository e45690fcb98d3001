"""`tandem chat`: a conversation on the terminal, over HTTP. Invariant: a cancelled answer ends on
every service; its text so far stays in the conversation, and a failed turn does not."""

import json
import sys
from collections.abc import Generator
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from typing import Any

import click

from tandem.commands.answer_view import AnswerView
from tandem.commands.calling import file_option
from tandem.commands.chat_client import ChatClient, Reply, base_url
from tandem.commands.options import FILE, json_option, model_options
from tandem.commands.request_options import request_options
from tandem.core.errors import InvalidArgument, TandemError
from tandem.generation.figures import figures_line
from tandem.generation.request import DEFAULT_PRESET, RAG_PRESET
from tandem.specdec.presets import PRESETS, find_preset
from tandem.suite.background import BackgroundSuite
from tandem.suite.models import choose_pair, load_pair
from tandem.suite.requirements import require_packages
from tandem.telemetry.logging import configure_logging
from tandem.two_sided.interface import AGGREGATION_PRESETS

PROMPT = "> "
HELP = "/new forgets the conversation; Ctrl-C stops an answer; Ctrl-D leaves"


@click.command()
@click.option(
    "--endpoint",
    metavar="URL",
    help="HTTP API of a running aggregator, for example http://127.0.0.1:8000."
    " Default: start an embedded suite.",
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
@click.option(
    "--preset",
    metavar="NAME",
    help=f"Decoding method: {', '.join(PRESETS)}; with documents: {', '.join(AGGREGATION_PRESETS)}."
    f" Default: {DEFAULT_PRESET}, with --rag {RAG_PRESET}.",
)
@click.option(
    "--rag", is_flag=True, help="Answer from the documents of both sides. Requires --endpoint."
)
@click.option("--max-tokens", type=int, default=256, help="Maximum tokens per answer.")
@request_options("temperature", "top_p")
@click.option(
    "--seed",
    type=int,
    help="Seed of the sampling. The same seed and conversation give the same"
    " answers. Default: random.",
)
@model_options
@click.option("--timeout", type=float, default=600.0, help="Maximum seconds per answer.")
@json_option("Read a line of standard input per turn; print one JSON object per answer.")
def chat(**options: Any) -> None:
    """Talk to the models.

    Without --endpoint the two models (--draft, --target; the demo pair if not given) are loaded
    into this process. Answers appear as they grow, with a live status line below; Ctrl-C stops one,
    Ctrl-D leaves. Where standard input is no terminal, each of its lines is a turn.
    """
    if not options["timeout"] > 0:
        raise InvalidArgument("timeout", f"must be above 0, is {options['timeout']:g}")
    configure_logging("critical")
    with ExitStack() as stack:
        url = options["endpoint"]
        if url is None:
            _check_alone(options)  # before any model is loaded
            pair = choose_pair(options)
            require_packages(*pair)
            url = stack.enter_context(BackgroundSuite(load_pair(*pair))).url
        url = base_url(url, options["insecure"])
        key = _key(options["call_key_file"])
        client = stack.enter_context(ChatClient(url, key, options["timeout"], options["ca"]))
        _talk(_Conversation(client, client.model(), options), options["as_json"])


class _Conversation:
    """The messages so far, and the way to ask for more."""

    def __init__(self, client: ChatClient, model: str, options: dict[str, Any]) -> None:
        self._client = client
        self._asking = {
            "model": model,
            "max_tokens": options["max_tokens"],
            "temperature": options["temperature"],
            "top_p": options["top_p"],
            "tandem": {name: options[name] for name in ("preset", "rag") if options[name]},
        }
        if options["seed"] is not None:
            self._asking["seed"] = options["seed"]
        system = options["system"]
        self._opening = [] if system is None else [{"role": "system", "content": system}]
        self.model = model
        self.forget()

    def forget(self) -> None:
        self._messages = [*self._opening]

    def say(self, words: str, token_texts: bool = False) -> Generator[Reply, None, None]:
        """The growing answer, with what each token spells if wanted. It is part of the conversation
        once something of it was heard."""
        self._messages.append({"role": "user", "content": words})
        reply = None
        tandem = self._asking["tandem"] | ({"token_texts": True} if token_texts else {})
        try:
            for reply in self._client.answer(self._messages, **self._asking | {"tandem": tandem}):
                yield reply
        except TandemError:
            reply = None
            raise
        finally:
            if reply is not None and reply.text:
                self._messages.append({"role": "assistant", "content": reply.text})
            else:
                self._messages.pop()


def _talk(conversation: _Conversation, as_json: bool) -> None:
    if as_json or not sys.stdin.isatty():
        for line in sys.stdin:
            if words := line.strip():
                _answer_line(conversation, words, as_json)
        return
    with suppress(ImportError):
        import readline  # noqa: F401  # gives `input` editing and earlier lines
    click.echo(f"{conversation.model}: {HELP}", err=True)
    staying = True
    while staying:
        try:
            staying = _turn(conversation)
        except KeyboardInterrupt:  # while nothing was being answered
            click.echo()


def _turn(conversation: _Conversation) -> bool:
    """Ask for words and answer them; False when the person leaves."""
    try:
        words = input(PROMPT).strip()
    except EOFError:
        click.echo()
        return False
    if words == "/new":
        conversation.forget()
    elif words.startswith("/"):
        click.echo(HELP, err=True)
    elif words:
        _answer_person(conversation, words)
    return True


def _answer_person(conversation: _Conversation, words: str) -> None:
    """A failed answer does not end the conversation, nor does Ctrl-C."""
    view = AnswerView(sys.stdout, sys.stderr)
    saying = conversation.say(words, view.wants_token_texts)
    reply = None
    try:
        with view:
            for reply in saying:
                view.update(reply)
    except KeyboardInterrupt:
        click.echo("(stopped)", err=True)
    except TandemError as error:
        click.echo(f"error: {error}", err=True)
    else:
        if reply is not None:
            click.secho(figures_line(reply.tandem, reply.finish_reason), dim=True, err=True)
    finally:
        saying.close()  # which cancels the answer


def _answer_line(conversation: _Conversation, words: str, as_json: bool) -> None:
    reply = None
    view = None if as_json else AnswerView(sys.stdout, sys.stderr)
    with view or nullcontext():
        for reply in conversation.say(words, view is not None and view.wants_token_texts):
            if view is not None:
                view.update(reply)
    assert reply is not None
    if as_json:
        line = {"text": reply.text, "finish_reason": reply.finish_reason}
        click.echo(json.dumps(line | reply.tandem))


def _check_alone(options: dict[str, Any]) -> None:
    """Refuse options that the embedded suite does not support. Raises InvalidArgument naming the
    flag."""
    if options["rag"]:
        raise InvalidArgument(
            "rag", "needs --endpoint of a suite with documents ('tandem up --rag')"
        )
    find_preset(options["preset"] or DEFAULT_PRESET)


def _key(path: Path | None) -> str | None:
    if path is None:
        return None
    from tandem.net.auth import own_key
    from tandem.net.reloaded import BadFile

    try:
        return own_key(path).current()
    except BadFile as error:
        raise InvalidArgument("call_key_file", str(error)) from error
