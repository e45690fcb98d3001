"""Tenants of a suite with keys: some who are honest, and one who is not."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

from tandem.commands.certs import certs
from tandem.commands.keys import add_key
from tandem.net.scopes import Scope

HONEST = 9
GREEDY = "greedy"


def make_tenants(folder: Path) -> None:
    """Write certificates for both sides, and the key of each tenant into a file of the tenant's
    name."""
    with contextlib.redirect_stdout(io.StringIO()):
        certs.main(["--out", str(folder)], standalone_mode=False)
    scopes = (Scope.GENERATE, Scope.DOCUMENTS_READ, Scope.DOCUMENTS_WRITE)
    for name in (GREEDY, *(f"honest{number}" for number in range(HONEST))):
        (folder / name).write_text(add_key(folder / "edge.keys", name, scopes) + "\n")
