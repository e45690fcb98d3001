"""`tandem keys`: makes and revokes the keys of callers."""

import fcntl
import json
import os
import secrets
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from tandem.commands.options import FILE, json_option
from tandem.core.errors import InvalidArgument, TandemError
from tandem.net.access_keys import (
    KEY_BYTES,
    hash_key,
    key_line,
    new_key,
    parse_keys,
    scopes_field,
)
from tandem.net.quotas import NO_QUOTA, Quota
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
@click.option("--same-key", is_flag=True, help="Replace the scopes of HOLDER's existing keys.")
@click.option("--revoke", is_flag=True, help="Revoke all keys of HOLDER without making a new one.")
@json_option("Print one JSON object: holder, file, and the key or how many were changed.")
def keys(**options: Any) -> None:
    """Make a key for HOLDER, and add its hash to a keys file.

    The key is printed once and not stored. A holder may have several keys, so that you can hand
    out a new one before you revoke the old ones. Running services reload the file by themselves; a
    stream whose key was revoked ends within a minute.
    """
    holder = options["holder"]
    path = options["file"]
    scopes = frozenset(map(Scope, options["scopes"]))
    if options["revoke"] or options["same_key"]:
        if options["out"] is not None:
            raise InvalidArgument("out", "cannot be combined with --revoke or --same-key")
        if options["revoke"]:
            _tell(options, holder, {"revoked": revoke(path, holder)})
        else:
            _tell(options, holder, {"changed": change_scopes(path, holder, scopes)})
        return
    if (out := options["out"]) is None:
        _tell(options, holder, {"key": add_key(path, holder, scopes)})
        return
    key = new_key(secrets.token_bytes(KEY_BYTES))
    with replacing(out, f"{key}\n".encode(), PRIVATE):
        let_in(path, holder, key, scopes)
    _tell(options, holder, {"key_file": str(out)})


def add_key(
    path: Path,
    holder: str,
    scopes: Collection[Scope],
    quota: Quota = NO_QUOTA,
    first: bool = False,
) -> str:
    """Make a new key of `holder` for `scopes`, add its hash to the file at `path`, and return the
    key. `first`: refuse a holder that has one."""
    key = new_key(secrets.token_bytes(KEY_BYTES))
    let_in(path=path, holder=holder, key=key, scopes=scopes, quota=quota, first=first)
    return key


def let_in(
    path: Path,
    holder: str,
    key: str,
    scopes: Collection[Scope],
    quota: Quota = NO_QUOTA,
    first: bool = False,
) -> None:
    """Add the hash of a `key` that `holder` has to the file at `path`; `first`: see `add_key`."""
    line = " ".join([key_line(holder, key, scopes), *quota.words()])
    with _changing(path) as lines:
        if first and any(_is_of(holder, line) for line in lines):
            raise InvalidArgument(
                "names", f"{holder!r} has a key in {path}; revoke it with --revoke"
            )
        lines.append(line)


def holds_key(path: Path, holder: str, key: str) -> bool:
    """Return True if the file at `path` lets `holder` in with `key`."""
    lines = [line for line in _lines(path) if _is_of(holder, line)]
    return any(hash_key(key) in line.split() for line in lines)


def change_scopes(path: Path, holder: str, scopes: Collection[Scope]) -> int:
    """Give the keys of `holder` these scopes and no others; how many keys there are."""
    with _changing(path) as lines:
        numbers = {number for number, line in enumerate(lines) if _is_of(holder, line)}
        if not numbers:
            raise InvalidArgument("holder", f"{holder!r} has no key in {path}")
        for number in numbers:
            others = [word for word in lines[number].split() if not word.startswith("scopes=")]
            lines[number] = " ".join([*others, scopes_field(scopes)])
    return len(numbers)


def revoke(path: Path, holder: str) -> int:
    """Remove the keys of `holder` from the file at `path`; returns how many there were."""
    with _changing(path) as lines:
        count = len(lines)
        lines[:] = [line for line in lines if not _is_of(holder, line)]
        if len(lines) == count:
            raise InvalidArgument("holder", f"{holder!r} has no key in {path}")
        return count - len(lines)


@dataclass(frozen=True, slots=True)
class Owner:
    """Owner of a file, by numbers."""

    user: int
    group: int


def replace_file(path: Path, content: bytes, mode: int) -> None:
    """Replace the file at `path` as a whole: readers see the old content or the new, and nobody
    whom `mode` keeps out ever reads it. A power cut after this has returned takes nothing back."""
    with replacing(path, content, mode):
        pass


@contextmanager
def replacing(path: Path, content: bytes, mode: int, owner: Owner | None = None) -> Iterator[None]:
    """Replace the file after the body, and only if that ends well; there is room for the content
    before the body begins. `owner`: whose the file is to be, not this process's. Raises TandemError
    naming the file."""
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with _named(path):
            handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with os.fdopen(handle, "wb") as file:
                if owner is not None:
                    os.fchown(handle, owner.user, owner.group)
                    os.fchmod(handle, mode)  # which the process's umask may have narrowed
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
    _keep_names(path.parent)


def _keep_names(folder: Path) -> None:
    """Write the folder's names to disk as they are now, so that they outlast a power cut, where the
    file system can do that."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TandemError(f"{path}: cannot be written: {error.strerror}") from error


def _is_of(holder: str, line: str) -> bool:
    return line.lstrip()[:1] != "#" and line.split()[:1] == [holder]


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
    not. Keys of an older release may lack scopes: they get some one holder after the other."""
    try:
        parse_keys(text, may_lack_scopes=True)
    except InvalidArgument as error:
        raise InvalidArgument("file", f"{path}: {error.why}; nothing was changed") from error
    if (size := len(text.encode())) > MOST_BYTES:
        why = f"{path}: would have {size} bytes; the maximum is {MOST_BYTES}"
        raise InvalidArgument("file", f"{why}; nothing was changed")


@contextmanager
def _changing(path: Path) -> Iterator[list[str]]:
    """Yield the file's lines, to be changed by one process at a time; at the end they are checked
    and written, with the mode and the owner that the file has. The lock is on the folder, since the
    file itself is replaced. Not every file system has locks."""
    path = path.resolve()  # a link stays one, and the lock is where the file is
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(folder, fcntl.LOCK_EX)
        lines = _lines(path)
        yield lines
        text = "".join(f"{line}\n" for line in lines)
        _check(path, text)
        mode, owner = _mode_and_owner(path)
        with replacing(path, text.encode(), mode, owner):
            pass
    finally:
        os.close(folder)


def _mode_and_owner(path: Path) -> tuple[int, Owner | None]:
    """Return mode and owner of the existing file, so that the same users can read the new one, and
    nobody else. What only root could give back is left out where nobody's right to read depends on
    it; else the writing fails, which is better than a file that its service cannot read."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return PUBLIC, None
    mode = stat.S_IMODE(status.st_mode)
    user = os.geteuid()
    gives_user = user in (0, status.st_uid)
    gives_group = user == 0 or status.st_gid in (os.getegid(), *os.getgroups())
    if mode & stat.S_IROTH and not (gives_user and gives_group):
        return mode, None
    keeps_group = gives_group or mode & stat.S_IRWXG
    return mode, Owner(status.st_uid, status.st_gid if keeps_group else UNCHANGED)


def _tell(options: dict[str, Any], holder: str, outcome: dict[str, Any]) -> None:
    if options["as_json"]:
        click.echo(json.dumps({"holder": holder, "file": str(options["file"]), **outcome}))
    elif "key" in outcome:
        click.echo(outcome["key"])
    elif "changed" in outcome:
        click.echo(f"{outcome['changed']} keys of {holder} have these scopes now")
    elif "revoked" in outcome:
        click.echo(f"{outcome['revoked']} keys of {holder} taken back")
    else:
        click.echo(f"key of {holder}: {outcome['key_file']}")
