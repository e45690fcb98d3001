"""Where what was learned is kept: a private folder for each tenant, named by a hash.

Invariants: a tenant's folder is used for that tenant alone; a caller with many tenants displaces
its own and nobody else's, and no more folders are made than the limit."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from tandem.learning.versions import STATE, TEXTS
from tandem.net.tenant import Tenant
from tandem.runtime.private_files import make_private_folder, user_state_folder

MOST_TENANTS = 64
_CALLER_DIGITS = 12
_TENANT_DIGITS = 20


def default_folder() -> Path:
    """Return the user's own folder: in $XDG_STATE_HOME, or ~/.local/state."""
    return user_state_folder("learning")


class TenantFolders:
    """The folders in `root`."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def open(self, tenant: Tenant) -> Path | None:
        """Return the tenant's folder, made if it is not there; None where there is no room for
        another one. Raises OSError."""
        make_private_folder(self._root)
        caller = _digest(tenant.caller.encode())[:_CALLER_DIGITS]
        folder = self._root / f"{caller}-{_digest(tenant.key)[:_TENANT_DIGITS]}"
        if not folder.is_dir():
            folders = tenant_folders(self._root)
            if len(folders) >= MOST_TENANTS:
                same = [each for each in folders if each.name.startswith(f"{caller}-")]
                if not same:
                    return None
                shutil.rmtree(min(same, key=_last_use))
            make_private_folder(folder)
        return folder


def tenant_folders(root: Path) -> list[Path]:
    """Return the folders of all tenants, by name."""
    if not root.is_dir():
        return []
    return sorted(each for each in root.iterdir() if each.is_dir())


def _last_use(folder: Path) -> float:
    times = [path.stat().st_mtime for name in (STATE, TEXTS) if (path := folder / name).exists()]
    return max(times, default=0.0)


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()
