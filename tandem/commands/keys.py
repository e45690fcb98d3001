"""`tandem keys`: makes and revokes the keys of callers."""

import fcntl
import json
import os
import secrets
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click

from tandem.commands.options import FILE, json_option
from tandem.core.errors import InvalidArgument, TandemError
from tandem.net.access_keys import KEY_BYTES, key_line, new_key, parse_keys
from tandem.net.reloaded import MOST_BYTES
from tandem.net.scopes import Scope

DEFAULT_FILE = Path("certs/edge.keys")
PUBLIC = 0o644
PRIVATE = 0o600
UNCHANGED = -1
"""For fchown: that of this process."""


@click.command()
@click.argument("holder")
@click.option(
    "--file",
    type=FILE,
    default=DEFAULT_FILE,
    help="Keys file of the services (--keys-file); created if missing.",
)
@click.option(
    "--out",
    type=FILE,
    help="Write the key to this file (for --call-key-file) instead of standard output.",
)
@click.option(
    "--scope",
    "scopes",
    type=click.Choice([scope.value for scope in Scope]),
    multiple=True,
    default=(Scope.GENERATE.value,),
    help="Scope of the key; repeatable. Scopes do not include each other.",
)
@click.option("--revoke", is_flag=True, help="Revoke all keys of HOLDER without making a new one.")
@json_option("Print one JSON object: holder, file, and the key or how many were revoked.")
def keys(**options: Any) -> None:
    """Make a key for HOLDER, and add its hash to a keys file.

    The key is printed once and not stored. A holder may have several keys, so that you can hand
    out a new one before you revoke the old ones. Running services reload the file by themselves; a
    stream whose key was revoked ends within a minute.
    """
    holder = options["holder"]
    path = options["file"]
    out = options["out"]
    scopes = frozenset(map(Scope, options["scopes"]))
    if options["revoke"]:
        if out is not None:
            raise InvalidArgument("out", "cannot be combined with --revoke")
        _tell(options, holder, {"revoked": revoke(path, holder)})
    elif out is None:
        _tell(options, holder, {"key": add_key(path, holder, scopes)})
    else:
        key = new_key(secrets.token_bytes(KEY_BYTES))
        with replacing(out, f"{key}\n".encode(), PRIVATE):
            let_in(path, holder, key, scopes)
        _tell(options, holder, {"key_file": str(out)})


def add_key(path: Path, holder: str, scopes: Collection[Scope]) -> str:
    """Make a new key of `holder` for `scopes`, add its hash to the file at `path`, and return the
    key."""
    key = new_key(secrets.token_bytes(KEY_BYTES))
    let_in(path, holder, key, scopes)
    return key


def let_in(path: Path, holder: str, key: str, scopes: Collection[Scope]) -> None:
    """Add the hash of a `key` that `holder` has to the file at `path`."""
    line = key_line(holder, key, scopes)
    with _changing(path) as lines:
        lines.append(line)


def revoke(path: Path, holder: str) -> int:
    """Remove the keys of `holder` from the file at `path`; returns how many there were."""
    with _changing(path) as lines:
        count = len(lines)
        lines[:] = [line for line in lines if line.split()[:1] != [holder]]
        if len(lines) == count:
            raise InvalidArgument("holder", f"{holder!r} has no key in {path}")
        return count - len(lines)


def replace_file(path: Path, content: bytes, mode: int) -> None:
    """Replace the file at `path` as a whole: readers see the old content or the new, and nobody
    whom `mode` keeps out ever reads it. A power cut after this has returned takes nothing back."""
    with replacing(path, content, mode):
        pass


@contextmanager
def replacing(path: Path, content: bytes, mode: int, keeps_owner: bool = False) -> Iterator[None]:
    """Replace the file after the body, and only if that ends well; there is room for the content
    before the body begins. `keeps_owner`: an existing file keeps its owner and mode. Raises
    TandemError naming the file."""
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with _named(path):
            handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with os.fdopen(handle, "wb") as file:
                if keeps_owner:
                    _keep_owner(path, handle)
                file.write(content)
                file.flush()
                os.fsync(handle)
        yield
        with _named(path):
            new.replace(path)
    except BaseException:
        with suppress(OSError):
            new.unlink()
        raise
    with suppress(OSError):  # not every file system can write a folder's names to disk
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TandemError(f"{path}: cannot be written: {error.strerror}") from error


def _keep_owner(path: Path, handle: int) -> None:
    """Give the new file the owner and the mode of the one at `path`, so that the same users can
    read it, and nobody else. Where only root could do that, and it matters, this fails, which is
    better than a file that its service cannot read."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return
    group = status.st_gid if status.st_mode & stat.S_IRWXG else UNCHANGED
    try:
        os.fchown(handle, status.st_uid, group)
    except PermissionError:
        if not status.st_mode & stat.S_IROTH:
            raise
    os.fchmod(handle, stat.S_IMODE(status.st_mode))  # which the umask may have narrowed


@contextmanager
def _changing(path: Path) -> Iterator[list[str]]:
    """Yield the file's lines, to be changed by one process at a time; at the end they are checked
    and written. The lock is on the folder, since the file itself is replaced; not every file system
    has locks."""
    path = path.resolve()  # a link stays one, and the lock is where the file is
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(folder, fcntl.LOCK_EX)
        lines = _lines(path)
        yield lines
        text = "".join(f"{line}\n" for line in lines)
        _check(path, text)
        with replacing(path, text.encode(), PUBLIC, keeps_owner=True):
            pass
    finally:
        os.close(folder)


def _lines(path: Path) -> list[str]:
    """Return the file's lines, validated, comments included; none if there is no file."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return []
    except UnicodeDecodeError:
        raise InvalidArgument("file", f"{path} is not a text file") from None
    _check(path, text)
    return text.splitlines()


def _check(path: Path, text: str) -> None:
    """Check that services can use the whole file; InvalidArgument names the line that they could
    not."""
    try:
        parse_keys(text)
    except InvalidArgument as error:
        raise InvalidArgument("file", f"{path}: {error.why}; nothing was changed") from error
    if (size := len(text.encode())) > MOST_BYTES:
        why = f"{path}: would have {size} bytes; the maximum is {MOST_BYTES}"
        raise InvalidArgument("file", f"{why}; nothing was changed")


def _tell(options: dict[str, Any], holder: str, outcome: dict[str, Any]) -> None:
    if options["as_json"]:
        click.echo(json.dumps({"holder": holder, "file": str(options["file"]), **outcome}))
    elif "key" in outcome:
        click.echo(outcome["key"])
    elif "revoked" in outcome:
        click.echo(f"Revoked {outcome['revoked']} keys of {holder}.")
    else:
        click.echo(f"key of {holder}: {outcome['key_file']}")
