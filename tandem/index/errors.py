"""What a folder of documents can refuse. Bad input is InvalidArgument, a full disk or a limit
ResourceExhausted; these are the faults of the folder itself.

Must not import grpc.
"""

from __future__ import annotations

from tandem.core.errors import TandemError


class FolderInUse(TandemError):
    """Another process has the folder open."""


class FolderMismatch(TandemError):
    """The folder was made with other settings than it is opened with."""


class FolderDamaged(TandemError):
    """What is stored cannot be read back in full, so nothing of it is served."""


class FolderReadOnly(TandemError):
    """A failed write could not be undone; the folder takes no more until it is opened anew."""
