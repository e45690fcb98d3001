"""`python -m tandem.net.probe [HOST:PORT]`: asks a service for its health; exit code 0 is SERVING.
A container's HEALTHCHECK, so an image needs no other tool. Without an address it asks this machine
at `TANDEM_HEALTH_PORT`, which is plain and open. A draining service is NOT_SERVING and fails."""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

PORT_VARIABLE = "TANDEM_HEALTH_PORT"
TIMEOUT_S = 4.0


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Print one line and return an exit code: 0 serving, 1 not serving or not reached, 2 no address
    given."""
    port = environment.get(PORT_VARIABLE)
    if len(arguments) > 1 or not (arguments or port):
        words = f"usage: python -m tandem.net.probe HOST:PORT (or set {PORT_VARIABLE})"
        print(words, file=sys.stderr)
        return 2
    target = arguments[0] if arguments else f"127.0.0.1:{port}"
    status = ask(target)
    print(f"{target} {status}")
    return 0 if status == "SERVING" else 1


def ask(target: str, timeout_s: float = TIMEOUT_S) -> str:
    """Return the status that the whole server reports, or gRPC's word for why there is none."""
    with grpc.insecure_channel(target) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)  # the published types know no methods of it
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=timeout_s)
        except grpc.RpcError as error:
            return error.code().name
    return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
