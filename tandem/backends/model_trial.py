"""A model's tokenizer and chat templates, tried in a process with limits before they are used here:
`python -m tandem.backends.model_trial`.

A tokenizer may be made so that it never ends, or takes all memory, or ends the process; so may a
chat template, which is a program. What is merely wrong is left to the loader, which says it better.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tandem.backends.model_files import (
    MOST_ADDED_TOKENS,
    MOST_TEMPLATE_CHARACTERS,
    check_model_folder,
    check_weights,
    tokenizer_parts,
)
from tandem.core.errors import InvalidArgument, Unavailable
from tandem.demo import is_demo

if TYPE_CHECKING:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

TOKENIZER_S = 30
"""Of a processor; the largest known take 2 s."""
TEMPLATE_S = 2
"""Of a processor, for all conversations below; known templates take a thousandth."""
TOKENIZER_BYTES = 2 * 2**30
TEMPLATE_BYTES = 2**30
"""Of addresses, the process and its libraries included."""
MOST_RENDERED_CHARACTERS = 2**20
"""Of a conversation of a few words."""
_WALL_S = 300.0
_OUT_OF_MEMORY = 97
_REFUSED = 98
_TOKENIZER, _TEMPLATE = "tokenizer", "chat template"
_RUN_LENGTH = 2000
_RUNS = "a 0.\n\tA_é中"
_TURNS = [
    {"role": "user", "content": "Hello?"},
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": "What is a list in Python?"},
]
_CONVERSATIONS = (_TURNS[:1], _TURNS, [{"role": "system", "content": "Be brief."}, *_TURNS])


def try_model(source: Path, tokenizer: Path | None, templates: Sequence[str]) -> None:
    """Raise InvalidArgument("model"), naming `source`, if its tokenizer or one of its templates
    takes too much, or ends the process that reads it. Raises Unavailable where none can be
    started."""
    if (tokenizer is None and not templates) or _is_installed(source):
        return
    if any(len(template) > MOST_TEMPLATE_CHARACTERS for template in templates):
        why = f"has more than {MOST_TEMPLATE_CHARACTERS} characters"
        raise InvalidArgument("model", f"{source}: its chat template {why}")
    asked = {"tokenizer": None if tokenizer is None else str(tokenizer), "templates": [*templates]}
    command = (sys.executable, "-P", "-m", "tandem.backends.model_trial")
    root = str(Path(__file__).parents[2])
    paths = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    # One thread: a core's time is what is limited, and each thread takes address space.
    threads = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command,
            input=json.dumps(asked).encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **threads, "PYTHONPATH": paths},
            start_new_session=True,
            timeout=_WALL_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InvalidArgument("model", f"{source}: its tokenizer takes too long to load") from None
    except OSError as error:
        raise Unavailable(f"cannot start a process to try a model's files: {error}") from error
    if done.returncode:
        said = done.stdout.decode("utf-8", "replace").splitlines() or [_TOKENIZER]
        why = _reason(done.returncode, said)
        raise InvalidArgument("model", f"{source}: its {why}")


def check_folder(folder: Path) -> None:
    """Raise InvalidArgument("model") for a folder that nothing should load: all checks at once."""
    check_model_folder(folder)
    check_weights(folder)
    try_model(folder, *tokenizer_parts(folder))


def _is_installed(source: Path) -> bool:
    """Return whether a model came with this program, or in a package: those run code anyway."""
    packages = Path(sysconfig.get_path("purelib")).resolve()
    return is_demo(source) or source.resolve().is_relative_to(packages)


def _reason(status: int, said: Sequence[str]) -> str:
    part = said[-1]
    limit_s, memory_bytes = TOKENIZER_S, TOKENIZER_BYTES
    if part == _TEMPLATE:
        limit_s, memory_bytes = TEMPLATE_S, TEMPLATE_BYTES
    if status == _REFUSED:
        return part
    if status in (-signal.SIGXCPU, -signal.SIGKILL):
        return f"{part} takes more than {limit_s} s of computing"
    if status in (_OUT_OF_MEMORY, -signal.SIGABRT):
        return f"{part} takes more than {memory_bytes // 2**30} GiB of memory"
    return f"{part} ends the process that reads it (status {status})"


def main() -> None:
    """Try what the input names; say each part before it is tried."""
    asked = json.load(sys.stdin)
    _limit(resource.RLIMIT_CORE, 0)
    for template in asked["templates"]:
        _begin(_TEMPLATE, TEMPLATE_S, TEMPLATE_BYTES)
        with _merely_wrong():
            _try_template(template)
    if asked["tokenizer"] is not None:
        _begin(_TOKENIZER, TOKENIZER_S, TOKENIZER_BYTES)
        with _merely_wrong():
            _try_tokenizer(asked["tokenizer"])


@contextmanager
def _merely_wrong() -> Iterator[None]:
    """Let errors be, but that of too much memory."""
    try:
        yield
    except MemoryError:
        os._exit(_OUT_OF_MEMORY)
    except Exception:
        return


def _begin(part: str, seconds: int, memory_bytes: int) -> None:
    print(part, flush=True)
    used = resource.getrusage(resource.RUSAGE_SELF)
    _limit(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + 1 + seconds)
    _limit(resource.RLIMIT_AS, memory_bytes)


def _limit(kind: int, most: int) -> None:
    """Limit this process; not every system has each limit."""
    with suppress(OSError, ValueError):
        resource.setrlimit(kind, (most, resource.getrlimit(kind)[1]))


def _refuse(why: str) -> None:
    print(ascii(why)[1:-1], flush=True)
    os._exit(_REFUSED)


def _try_tokenizer(path: str) -> None:
    from tokenizers import Tokenizer

    content = Path(path).read_bytes()
    added = content.count(b'"single_word"')  # which each of them says
    if added > MOST_ADDED_TOKENS:
        _refuse(f"tokenizer has {added} added tokens; the maximum is {MOST_ADDED_TOKENS}")
    try:
        tokenizer = Tokenizer.from_buffer(content)
        for run in (character * _RUN_LENGTH for character in _RUNS):
            tokenizer.decode(tokenizer.encode(run).ids)
    except Exception:
        raise
    except BaseException as error:  # what a library in Rust raises that panics is no Exception
        _refuse(f"tokenizer cannot be used: {' '.join(str(error).split())[:200]}")


def _try_template(source: str) -> None:
    template = _environment().from_string(source)
    for messages in _CONVERSATIONS:
        with _merely_wrong():  # one that wants turns of another kind
            text = template.render(messages=messages, add_generation_prompt=True)
            if len(text) > MOST_RENDERED_CHARACTERS:
                _refuse(f"chat template makes {len(text)} characters of a few words")


def _environment() -> ImmutableSandboxedEnvironment:
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """A tag of transformers', around what an assistant wrote."""

        tags = {"generation"}  # noqa: RUF012  # as jinja2 declares it

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))

    def stop(message: str) -> None:
        raise ValueError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = lambda value, **options: json.dumps(value)
    environment.globals.update(
        raise_exception=stop, strftime_now=lambda layout: "", bos_token="<s>", eos_token="</s>"
    )
    return environment


if __name__ == "__main__":
    main()
