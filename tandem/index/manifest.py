"""What a folder of documents was made with. Two settings never mix in one folder.

Must not import grpc.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from tandem.index.durable_file import write_atomically
from tandem.index.errors import FolderDamaged, FolderMismatch

VERSION = 1
_NAME = "manifest.json"
_OURS_BEFORE_MANIFEST = {"lock", f"{_NAME}.tmp"}


@dataclass(frozen=True, slots=True)
class Manifest:
    """`embedding` names the model and its content, or is "lexical" with dimension 0."""

    embedding: str
    dimension: int
    max_tokens: int
    overlap_tokens: int
    version: int = VERSION


def read_manifest(folder: Path) -> Manifest | None:
    """None where there is none. Raises FolderDamaged or, for a newer version, FolderMismatch."""
    path = folder / _NAME
    try:
        fields = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise FolderDamaged(f"{path}: is no JSON: {error}") from error
    if isinstance(fields, dict) and fields.get("version", VERSION) != VERSION:
        why = f"is of version {fields['version']}, this program knows {VERSION}"
        raise FolderMismatch(f"{path}: {why}")
    try:
        return Manifest(**fields)
    except TypeError as error:
        raise FolderDamaged(f"{path}: lacks or has too many fields: {error}") from error


def refuse_strangers(folder: Path) -> None:
    """Raise FolderMismatch when the folder, which has no manifest, holds other things."""
    inside = folder.iterdir() if folder.exists() else ()
    strangers = sorted(path.name for path in inside if path.name not in _OURS_BEFORE_MANIFEST)
    if strangers:
        why = f"is not empty ({strangers[0]}) and has no {_NAME}, so it is no index"
        raise FolderMismatch(f"{folder}: {why}; choose another folder")


def settle_manifest(folder: Path, wanted: Manifest) -> None:
    """Write it into a new folder, or check that the folder was made with the same."""
    stored = read_manifest(folder)
    if stored is None:
        refuse_strangers(folder)
        write_atomically(folder / _NAME, [json.dumps(asdict(wanted)).encode()])
        return
    if (stored.embedding, stored.dimension) != (wanted.embedding, wanted.dimension):
        raise FolderMismatch(
            f"{folder}: holds vectors of {_shown(stored)}, not of {_shown(wanted)}; "
            "use the same embedding or another folder"
        )
    if stored != wanted:
        raise FolderMismatch(
            f"{folder}: has chunks of {stored.max_tokens} tokens with {stored.overlap_tokens} "
            f"shared, not of {wanted.max_tokens} with {wanted.overlap_tokens}; "
            "use the same or another folder"
        )


def _shown(manifest: Manifest) -> str:
    return f"{manifest.embedding} (dimension {manifest.dimension})"
