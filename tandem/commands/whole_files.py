"""Files that change as a whole: who reads one sees the old content or the new, never a part.

Must not import grpc or torch.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

PUBLIC, PRIVATE = 0o644, 0o600


def replace_file(path: Path, content: bytes, mode: int) -> None:
    """Write `content` in the place of what was at `path`; nobody without `mode` ever reads it."""
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
