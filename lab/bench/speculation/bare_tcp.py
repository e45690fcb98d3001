"""The same bare round over a plain socket: a lower bound without gRPC.

As `lab.bench.speculation.bare_round_trip`, but the thread that reads through the weights also
blocks on the socket: no gRPC, no event loop, no handover between threads. What is left is the
machine: two system calls and two sleeping cores that are woken.
`python -m lab.bench.speculation.bare_tcp BYTES` is the server.
"""

from __future__ import annotations

import socket
import struct
import sys
import time
from statistics import median

import numpy as np
from numpy.typing import NDArray

from lab.bench.harness.suite import PinnedProcess
from lab.bench.speculation.bare_round_trip import MESSAGE_BYTES, WARM_UP_ROUNDS
from lab.machine import pinned, usable_cores

Weights = NDArray[np.float32]


def measure_bare_tcp(draft_bytes: int, target_bytes: int, drafts: int, rounds: int) -> float:
    """Return the median seconds of a round without the reading; for the arguments see
    `measure_bare_round_trip`."""
    server = PinnedProcess(
        "lab.bench.speculation.bare_tcp", (str(target_bytes),), usable_cores()[-1]
    )
    with server, pinned(usable_cores()[0]):
        host, port = server.address.rsplit(":", 1)
        weights = _weights(draft_bytes)
        with socket.create_connection((host, int(port))) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            round_overheads_s = [
                _round_trip_s(connection, weights, drafts) for _ in range(rounds + WARM_UP_ROUNDS)
            ]
    return median(round_overheads_s[WARM_UP_ROUNDS:])


def _round_trip_s(connection: socket.socket, weights: Weights, drafts: int) -> float:
    for _ in range(drafts):
        weights.sum()
    drafted_s = time.perf_counter()
    connection.sendall(bytes(MESSAGE_BYTES))
    answer = connection.recv(MESSAGE_BYTES, socket.MSG_WAITALL)
    return time.perf_counter() - drafted_s - float(struct.unpack_from("d", answer)[0])


def _serve(target_bytes: int) -> None:
    weights = _weights(target_bytes)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(f"listening 127.0.0.1:{listening.getsockname()[1]}", flush=True)
        connection, _ = listening.accept()
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while connection.recv(MESSAGE_BYTES, socket.MSG_WAITALL):
                started_s = time.perf_counter()
                weights.sum()
                took_s = time.perf_counter() - started_s
                connection.sendall(struct.pack("d", took_s).ljust(MESSAGE_BYTES, b"\0"))
        while True:  # until it is stopped, as every server of a suite
            time.sleep(3600)


def _weights(size_bytes: int) -> Weights:
    return np.ones(max(1, size_bytes // 4), np.float32)


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
