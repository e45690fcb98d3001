"""Channel and server options: message limits, keepalive, reconnection. A dead link must be seen
within seconds by both ends: the edge's state machine pings on the stream, and HTTP/2 keepalive lets
the server drop a client that vanished."""

import asyncio
import json
import socket

import grpc

from tandem.net.access import ClientAccess

Options = list[tuple[str, int | str]]


_BALANCED = json.dumps(
    {"loadBalancingConfig": [{"round_robin": {}}], "healthCheckConfig": {"serviceName": ""}}
)
"""New calls go to the replicas in turn, and to none whose health says that it is leaving."""


def is_replicated(target: str) -> bool:
    """Return whether `target` names every replica of a service: `dns:///HOST:PORT`, as of a
    headless service in Kubernetes, or a list, as `ipv4:HOST:PORT,HOST:PORT`."""
    return target.startswith("dns:///") or "," in target


def server_options(max_message_bytes: int) -> Options:
    return [
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.keepalive_time_ms", 4_000),
        ("grpc.keepalive_timeout_ms", 4_000),
        ("grpc.keepalive_permit_without_calls", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 500),
        # Two servers on one port would share its connections unnoticed.
        ("grpc.so_reuseport", 0),
    ]


async def replicas_of(target: str) -> list[str]:
    """Return the address of each replica that `target` stands for now; `target` itself if it names
    one. Raises OSError for a name that cannot be resolved."""
    if not target.startswith("dns:///"):
        return [target]
    host, _, port = target.removeprefix("dns:///").rpartition(":")
    loop = asyncio.get_running_loop()
    resolved = await loop.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    addresses = dict.fromkeys(str(address[0]) for *_, address in resolved)
    return [
        f"[{address}]:{port}" if ":" in address else f"{address}:{port}" for address in addresses
    ]


def open_channel(
    target: str, max_message_bytes: int, access: ClientAccess | None = None, name: str = ""
) -> grpc.aio.Channel:
    """Return a channel of its own (no shared subchannels), so that closing it closes its
    connection. Without `access` it is plain. Where `target` stands for replicas, calls are spread
    over them; each stays where it began. `name` is what the certificate of an address must say,
    where `access` does not know the one certificate."""
    options: Options = [
        ("grpc.max_receive_message_length", max_message_bytes),
        # What is too large to send, the receiver refuses with RESOURCE_EXHAUSTED; a limit here
        # would make it INTERNAL.
        ("grpc.max_send_message_length", -1),
        ("grpc.keepalive_time_ms", 4_000),
        ("grpc.keepalive_timeout_ms", 4_000),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.min_reconnect_backoff_ms", 1_000),
        ("grpc.max_reconnect_backoff_ms", 2_000),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    if name := (access.called if access is not None else "") or name:
        options.append(("grpc.ssl_target_name_override", name))
    if is_replicated(target):
        options.append(("grpc.service_config", _BALANCED))
    credentials = None if access is None else access.channel_credentials()
    if credentials is None:
        return grpc.aio.insecure_channel(target, options=options)
    return grpc.aio.secure_channel(target, credentials, options=options)
