"""What a person types in a chat that is no message: commands such as /help, and blocks of several
lines between triple quotes."""

import json
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path

import click

from tandem.commands.conversation import DEFAULT, Conversation
from tandem.core.errors import InvalidArgument, os_words

COMMANDS = {
    "/help": "List the commands.",
    "/new": "Forget the conversation; the system message and the settings stay.",
    "/retry": "Answer the last message again, with another seed.",
    "/system": "TEXT: set the system message. none: remove it. Alone: show it.",
    "/set": "NAME VALUE: change a setting, for example /set temperature 0.2; 'default' takes it"
    " back. Alone: show the settings.",
    "/save": "FILE: save the conversation, as JSON if the name ends in .json, otherwise as text.",
    "/exit": "Leave, as Ctrl-D does.",
}
"""Each command, and what it does."""
_OTHER_NAMES = {"/bye": "/exit", "/quit": "/exit", "/?": "/help", "/clear": "/new"}
QUOTES = '"""'


class ChatCommands:
    """Obeys the commands of one chat."""

    def __init__(self, conversation: Conversation, say: Callable[[str], None]) -> None:
        """Obey commands about `conversation`; `say` writes a line to the person."""
        self._conversation = conversation
        self._say = say
        self._saved: set[Path] = set()

    def obey(self, line: str) -> str:
        """Do what `line` says. Returns the command's name: the caller does /exit and /retry. Raises
        InvalidArgument with words for the person."""
        name, _, rest = line.partition(" ")
        name = _OTHER_NAMES.get(name, name)
        rest = rest.strip()
        match name:
            case "/help":
                self._help()
            case "/new":
                self._conversation.forget()
            case "/system":
                self._system(rest)
            case "/set":
                self._set(rest)
            case "/save":
                self._save(rest)
            case "/retry" | "/exit":
                pass
            case _:
                raise InvalidArgument(name, _unknown(name))
        return name

    def _help(self) -> None:
        width = max(map(len, COMMANDS))
        for name, words in COMMANDS.items():
            self._say(f"{name:{width}}  {words}")
        self._say(
            f"Several lines: paste them, or begin and end with {QUOTES}. A message that begins with"
            " / needs a space before it. Ctrl-C stops an answer."
        )

    def _system(self, text: str) -> None:
        if not text:
            self._say(self._conversation.system or "no system message")
            return
        self._conversation.system = None if text == "none" else text

    def _set(self, text: str) -> None:
        if not text:
            settings = {**self._conversation.sampling, **self._conversation.settings}
            for name, value in settings.items():
                self._say(f"{name} {value}")
            return
        name, _, value = text.partition(" ")
        if not value.strip():
            raise InvalidArgument("/set", f"needs NAME and VALUE; {DEFAULT!r} takes a setting back")
        if name == "system":
            self._system(value.strip())
            return
        self._conversation.change(name.replace("-", "_"), value.strip())

    def _save(self, name: str) -> None:
        if not name:
            raise InvalidArgument("/save", "needs the name of a file")
        path = Path(name).expanduser()
        if path.exists() and path not in self._saved:
            raise InvalidArgument("/save", f"{path} exists; choose another name")
        try:
            path.write_text(self._written(path.suffix == ".json"), encoding="utf-8")
        except OSError as error:
            raise InvalidArgument("/save", os_words(error)) from error
        self._saved.add(path)
        self._say(f"saved {path}")

    def _written(self, as_json: bool) -> str:
        conversation = self._conversation
        if as_json:
            kept = {"model": conversation.model.name, "messages": conversation.messages}
            return json.dumps(kept, indent=2, ensure_ascii=False) + "\n"
        parts = (f"{each['role']}:\n{each['content']}\n" for each in conversation.messages)
        return "\n".join(parts)


def read_message(read_line: Callable[[str], str], prompt: str, further: str) -> str:
    """Read a line, or the lines of a block between triple quotes, without the quotes. `read_line`
    gets the text that it stands behind: `prompt`, or `further` within a block."""
    line = read_line(prompt)
    if not line.lstrip().startswith(QUOTES):
        return line
    lines = [line.lstrip().removeprefix(QUOTES)]
    while not lines[-1].rstrip().endswith(QUOTES):
        lines.append(read_line(further))
    lines[-1] = lines[-1].rstrip().removesuffix(QUOTES)
    return "\n".join(lines).strip("\n")


def keep_pastes_whole() -> None:
    """Let lines that are pasted together arrive together, where the terminal and the library for
    reading lines can tell them from typed ones; and have earlier lines by the arrow keys."""
    try:
        import readline
    except ImportError:
        return
    if "libedit" not in (readline.__doc__ or ""):  # of macOS, which has no such setting
        readline.parse_and_bind("set enable-bracketed-paste on")


def _unknown(name: str) -> str:
    close = get_close_matches(name, COMMANDS, n=1)
    meant = f"did you mean {close[0]}? Known" if close else "known"
    return f"unknown command; {meant}: {', '.join(COMMANDS)}"


def say_on_terminal(line: str) -> None:
    """Write `line` to standard error, where what is no answer goes."""
    click.echo(line, err=True)
