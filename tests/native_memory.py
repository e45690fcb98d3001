"""What C code of this process holds, which Python's own tools do not see."""

from __future__ import annotations

import ctypes


class _Heap(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _names = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks")
    _fields_ = [(name, ctypes.c_size_t) for name in (*_names, "fordblks", "keepcost")]


def bytes_in_use() -> int | None:
    """Return the bytes that are allocated and not freed; None where the C library cannot say."""
    heap = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if heap is None:
        return None
    heap.restype = _Heap
    now = heap()
    return int(now.uordblks + now.hblkhd)
