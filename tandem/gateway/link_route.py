"""Routes to read and change the emulated link between the two sides (the sliders of the web page).
They exist only where the aggregator knows the link's control socket on this machine. Invariant:
each request sends one line to that socket and reads one answer."""

import asyncio
import json
from contextlib import closing
from typing import Any

from fastapi import FastAPI, Request
from pydantic import Field
from starlette.responses import Response

from tandem.core.errors import Unavailable
from tandem.gateway.body_parsing import Strict, parse_body
from tandem.gateway.connection_body import read_body
from tandem.gateway.errors import invalid, json_response

LINK_PATH = "/v1/tandem/link"
MAX_BODY_BYTES = 1024
TIMEOUT_S = 2.0


class LinkChange(Strict):
    """Changes to the emulated link. Omitted fields keep their values."""

    rtt_ms: float | None = Field(
        default=None, ge=0, le=10_000, description="Round-trip time in milliseconds."
    )
    mbps: float | None = Field(
        default=None,
        ge=0,
        le=100_000,
        description="Bandwidth in each direction, in Mbit/s. 0: unlimited.",
    )
    mbps_up: float | None = Field(
        default=None,
        ge=0,
        le=100_000,
        description="Bandwidth from edge to cloud, in Mbit/s. 0: unlimited.",
    )
    mbps_down: float | None = Field(
        default=None,
        ge=0,
        le=100_000,
        description="Bandwidth from cloud to edge, in Mbit/s. 0: unlimited.",
    )
    cut: bool | None = Field(
        default=None,
        description="Cut the link. Open streams break and nothing is transmitted until it is"
        " restored.",
    )


class LinkState(Strict):
    rtt_ms: float
    mbps: float = Field(
        description="Bandwidth of the slower direction, in Mbit/s. 0: both are unlimited."
    )
    mbps_up: float = Field(description="Bandwidth from edge to cloud, in Mbit/s. 0: unlimited.")
    mbps_down: float = Field(description="Bandwidth from cloud to edge, in Mbit/s. 0: unlimited.")
    cut: bool


class LinkRoute:
    """`control` is HOST:PORT of the socket that `tandem link --control-port` opens."""

    def __init__(self, control: str) -> None:
        host, _, port = control.rpartition(":")
        self._place = host or "127.0.0.1", int(port)

    def add_routes(self, app: FastAPI) -> None:
        app.add_api_route(LINK_PATH, self.state, methods=["GET"], response_model=None)
        app.add_api_route(LINK_PATH, self.change, methods=["POST"], response_model=None)

    async def state(self) -> Response:
        """Return the delay and bandwidth of the emulated link, and whether it is cut."""
        return json_response(_state(await self._ask([{"op": "stats"}])))

    async def change(self, request: Request) -> Response:
        """Change the delay or bandwidth of the emulated link, cut it or restore it."""
        raw = await read_body(request, MAX_BODY_BYTES)
        wanted = parse_body(raw, LinkChange, 0)
        lines: list[dict[str, Any]] = []
        if wanted.rtt_ms is not None:
            lines.append({"op": "set", "rtt_s": wanted.rtt_ms / 1e3})
        for field in ("mbps", "mbps_up", "mbps_down"):
            if (mbps := getattr(wanted, field)) is not None:
                lines.append({"op": "set", field: mbps or None})
        if wanted.cut is not None:
            lines.append({"op": "cut" if wanted.cut else "restore"})
        return json_response(_state(await self._ask(lines or [{"op": "stats"}])))

    async def _ask(self, lines: list[dict[str, Any]]) -> dict[str, Any]:
        """Send the lines, and return the answer to the last one. Raises Unavailable if there is no
        answer, ApiError for a line that is refused."""
        answer: dict[str, Any] = {}
        try:
            async with asyncio.timeout(TIMEOUT_S):
                reader, writer = await asyncio.open_connection(*self._place)
                with closing(writer):
                    for line in lines:
                        writer.write(json.dumps(line).encode() + b"\n")
                        answer = json.loads(await reader.readline())
                        if not answer["ok"]:
                            raise invalid(None, f"link: {answer['error']}")
        except (OSError, TimeoutError, ValueError) as error:
            raise Unavailable(f"the link's control socket does not answer: {error}") from error
        return answer


def _state(answer: dict[str, Any]) -> dict[str, Any]:
    up = answer["up"]
    down = answer["down"]
    rtt_ms = round((up["delay_s"] + down["delay_s"]) * 1e3, 3)
    rates = [round(8e-6 * (side["bytes_per_s"] or 0), 6) for side in (up, down)]
    return LinkState(
        rtt_ms=rtt_ms,
        mbps=min((rate for rate in rates if rate), default=0),
        mbps_up=rates[0],
        mbps_down=rates[1],
        cut=answer["cut"],
    ).model_dump()
