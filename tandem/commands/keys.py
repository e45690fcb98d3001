"""`tandem keys`: who may call; makes keys and takes them back.

Must not import grpc or torch.
"""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

import click

from tandem.commands.options import json_option
from tandem.commands.whole_files import PRIVATE, PUBLIC, replace_file
from tandem.core.access_keys import KEY_BYTES, key_line, new_key, parse_keys
from tandem.core.errors import InvalidArgument

DEFAULT_FILE = Path("certs/keys")


@click.command()
@click.argument("holder")
@click.option(
    "--file",
    type=click.Path(dir_okay=False, path_type=Path),
    default=DEFAULT_FILE,
    show_default=True,
    help="What services are given as --keys-file; made if need be.",
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the key to this file, for a --call-key-file, and not to standard output.",
)
@click.option("--revoke", is_flag=True, help="Take back all keys of HOLDER and make none.")
@json_option("Print one JSON object: holder, file, and the key or how many were taken back.")
def keys(**options: Any) -> None:
    """Make a key for HOLDER, and let services know its hash.

    The key is shown once and kept nowhere. A holder may have several, so that a new one can be
    handed out before the old ones are taken back. Running services take the file's changes over by
    themselves; calls under way go on to their end.
    """
    holder, path = options["holder"], options["file"]
    if options["revoke"]:
        if options["out"] is not None:
            raise InvalidArgument("out", "no key is made; leave out --out or --revoke")
        _tell(options, holder, {"revoked": revoke(path, holder)})
        return
    key = add_key(path, holder)
    if options["out"] is None:
        _tell(options, holder, {"key": key})
    else:
        replace_file(options["out"], f"{key}\n".encode(), PRIVATE)
        _tell(options, holder, {"key_file": str(options["out"])})


def add_key(path: Path, holder: str) -> str:
    """A fresh key of `holder`, whose hash is added to the file at `path`."""
    key = new_key(secrets.token_bytes(KEY_BYTES))
    lines = [*_lines(path), key_line(holder, key)]
    _write(path, lines)
    return key


def revoke(path: Path, holder: str) -> int:
    """How many keys of `holder` the file at `path` had; it has none any more."""
    lines = _lines(path)
    kept = [line for line in lines if not _is_of(line, holder)]
    if len(kept) == len(lines):
        raise InvalidArgument("holder", f"{holder!r} has no key in {path}")
    _write(path, kept)
    return len(lines) - len(kept)


def _lines(path: Path) -> list[str]:
    """The file's lines, comments included, once they were found good."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return []
    except UnicodeDecodeError:
        raise InvalidArgument("file", f"{path} is no text") from None
    try:
        parse_keys(text)
    except InvalidArgument as error:
        raise InvalidArgument("file", f"{path}: {error.why}") from error
    return text.splitlines()


def _is_of(line: str, holder: str) -> bool:
    return not line.strip().startswith("#") and line.split()[:1] == [holder]


def _write(path: Path, lines: list[str]) -> None:
    replace_file(path, "".join(f"{line}\n" for line in lines).encode(), PUBLIC)


def _tell(options: dict[str, Any], holder: str, outcome: dict[str, Any]) -> None:
    if options["as_json"]:
        click.echo(json.dumps({"holder": holder, "file": str(options["file"]), **outcome}))
    elif "key" in outcome:
        click.echo(outcome["key"])
    elif "revoked" in outcome:
        click.echo(f"{outcome['revoked']} keys of {holder} taken back")
    else:
        click.echo(f"key of {holder}: {outcome['key_file']}")
