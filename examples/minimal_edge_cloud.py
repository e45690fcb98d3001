"""One edge and one cloud, as small as they can be: Tandem's machines and protocol, no more.

    python examples/minimal_edge_cloud.py                          # both, in one process
    python examples/minimal_edge_cloud.py --serve 50070            # the cloud
    python examples/minimal_edge_cloud.py --cloud localhost:50070  # the edge, in another process

The edge drafts and the cloud verifies, over gRPC: `protos/tandem_api/verifier/v1/verifier.proto`.
The two state machines (`EdgeMachine`, `CloudMachine`) and codecs are the product's. The models are
scripted: they count the characters of a short text. What serves real requests adds an engine with a
KV cache in place of `Model`, batches of sessions, reconnecting, limits, TLS and metrics.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator
from itertools import chain
from typing import Any

import grpc
import numpy as np

from tandem.core.probs import Array, SamplingParams
from tandem.specdec.cloud import CloudMachine
from tandem.specdec.cloud_checks import CloudModel
from tandem.specdec.drafting import draw_draft
from tandem.specdec.edge import EdgeMachine
from tandem.specdec.events import (
    Commit,
    Drafted,
    DraftTask,
    EdgeOutput,
    EdgeRequest,
    Finish,
    Interrupt,
    Reconnect,
    Send,
)
from tandem.specdec.liveness import Liveness, LivenessTimes, LostCloud
from tandem.specdec.messages import CloudMessage, GenerationParams, Open, Work
from tandem.specdec.presets import PRESETS
from tandem.wire.verifier_codec import CloudCodec, EdgeCodec, describe_model
from tandem_api.verifier.v1 import verifier_pb2 as pb
from tandem_api.verifier.v1 import verifier_pb2_grpc as pb_grpc

TEXT = """\
the edge drafts a few tokens, and the cloud verifies all of them in one pass.
the cloud accepts the drafts up to the first that it would not have said itself.
the edge reads the verdict, and drafts again after the last token that both know.
a draft that is right costs the cloud no pass; a draft that is wrong costs no text.
"""

# Tokens are characters here. Both ends must have one vocabulary, and say so by a hash of it.
VOCABULARY = sorted(set(TEXT))
VOCABULARY_HASH = "characters of a short text"
END = VOCABULARY.index("\n")


def encode(text: str) -> tuple[int, ...]:
    return tuple(VOCABULARY.index(character) for character in text)


def decode(token_ids: tuple[int, ...]) -> str:
    return "".join(VOCABULARY[token_id] for token_id in token_ids)


class Model:
    """A language model: what follows a context is as likely as it follows the context's last
    `order` characters in TEXT."""

    def __init__(self, order: int) -> None:
        self._order = order
        self._counts: defaultdict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
        token_ids = encode(TEXT)
        for end, token_id in enumerate(token_ids):
            for length in range(min(order, end) + 1):
                self._counts[token_ids[end - length : end]][token_id] += 1

    def probs(self, context: tuple[int, ...]) -> Array:
        """Return the distribution of the next token, float32 [vocabulary]; after something new the
        one after fewer characters."""
        last = context[-self._order :]
        while last not in self._counts:
            last = last[1:]
        counts = np.zeros(len(VOCABULARY), dtype=np.float32)
        for token_id, count in self._counts[last].items():
            counts[token_id] = count
        probs: Array = counts / counts.sum()
        return probs


class Kv:
    """The tokens that a model has been fed, in place of their keys and values."""

    def __init__(self) -> None:
        self.token_ids: tuple[int, ...] = ()

    def feed(self, keep: int, token_ids: tuple[int, ...]) -> None:
        """Forget all but the first `keep` tokens, then add these."""
        self.token_ids = self.token_ids[:keep] + token_ids


# The cloud.

Context = grpc.aio.ServicerContext[Any, Any]

TARGET = Model(order=6)
SERVED = CloudModel(
    model_name="six characters",
    vocabulary_hash=VOCABULARY_HASH,
    vocabulary_size=len(VOCABULARY),
    context_length=4096,
    eos_token_ids=frozenset({END}),
)


class Cloud(pb_grpc.VerifierServiceServicer):
    """Serves the target model."""

    async def Describe(  # noqa: N802  # the RPC's name
        self, request: pb.DescribeRequest, context: Context
    ) -> pb.DescribeResponse:
        return pb.DescribeResponse(model=describe_model(SERVED))

    async def Verify(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.VerifyRequest], context: Context
    ) -> AsyncIterator[pb.VerifyResponse]:
        """Serve one session, from its opening frame to the end of the stream."""
        codec = CloudCodec(SERVED)
        opening = codec.decode(await anext(request_iterator))
        if not isinstance(opening, Open):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "open: must be the first message")
        machine = CloudMachine(opening, SERVED)
        kv = Kv()
        for message in chain([machine.opened()], due_passes(machine, kv)):
            yield codec.encode(message)
        async for frame in request_iterator:
            for message in chain(machine.receive(codec.decode(frame)), due_passes(machine, kv)):
                yield codec.encode(message)


def due_passes(machine: CloudMachine, kv: Kv) -> Iterator[CloudMessage]:
    """Run the target model as often as the machine wants, and yield what it then tells the edge."""
    while (task := machine.work()) is not None:
        contexts = task.contexts(kv.token_ids[: task.keep])
        kv.feed(task.keep, task.token_ids)
        # One row of probabilities for each token that is judged: what a forward pass computes.
        rows = [TARGET.probs(each) for each in contexts]
        yield from machine.complete(task.judge.judge(lambda row: rows[row]), Work())  # noqa: B023


async def serve(port: int) -> tuple[grpc.aio.Server, str]:
    """Start the cloud, and return its address. Port 0: any that is free."""
    server = grpc.aio.server()
    pb_grpc.add_VerifierServiceServicer_to_server(Cloud(), server)
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    return server, f"127.0.0.1:{port}"


# The edge.

DRAFT = Model(order=2)


async def generate(cloud: str, prompt: str, preset: str, seed: int) -> None:
    """Print the answer to a prompt as it is committed, then what it took."""
    request = EdgeRequest(
        session=1,
        prompt_ids=encode(prompt),
        vocabulary_hash=VOCABULARY_HASH,
        vocabulary_size=len(VOCABULARY),
        params=GenerationParams(sampling=SamplingParams(), max_tokens=200, seed=seed),
        preset=PRESETS[preset],
        eos_token_ids=frozenset({END}),
    )
    now = time.monotonic
    machine = EdgeMachine(request, Liveness(LostCloud.WAIT, LivenessTimes(), now=now()))
    codec = EdgeCodec(len(VOCABULARY), request.preset.verify_settings)
    kv = Kv()
    print(prompt, end="")
    async with grpc.aio.insecure_channel(cloud) as channel:
        stream = pb_grpc.VerifierServiceStub(channel).Verify()
        outputs = machine.connect(now())
        while not await performed(outputs, stream, codec):
            if (task := machine.work(now())) is not None:
                began_s = now()
                drafts = drafted(task, machine, kv)
                took_s = now() - began_s
                outputs = machine.drafted(task, drafts, len(kv.token_ids), took_s, now())
            else:  # nothing to draft before the cloud answers
                frame = await stream.read()
                if not isinstance(frame, pb.VerifyResponse):
                    raise SystemExit("the cloud has ended the stream")
                outputs = machine.receive(codec.decode(frame), now())
    stats = machine.stats
    tokens = len(machine.committed) - len(request.prompt_ids)
    print(f"{tokens} tokens in {stats.target_passes} passes of the target model;", end=" ")
    print(f"{stats.accepted} of {stats.drafted} drafts accepted")


async def performed(
    outputs: list[EdgeOutput],
    stream: grpc.aio.StreamStreamCall[pb.VerifyRequest, pb.VerifyResponse],
    codec: EdgeCodec,
) -> bool:
    """Do what the machine asks for, and return whether the request is over."""
    for output in outputs:
        match output:
            case Send(message):
                await stream.write(codec.encode(message))
            case Commit(token_ids):
                print(decode(token_ids), end="", flush=True)
            case Finish():
                await stream.done_writing()
                return True
            case Reconnect():
                raise SystemExit("the cloud is lost")
            case Interrupt():
                pass  # `drafted` returns when all is drafted: nothing is under way here
    return False


def drafted(task: DraftTask, machine: EdgeMachine, kv: Kv) -> list[Drafted]:
    """Run the draft model, token by token."""
    kv.feed(task.keep, task.token_ids)
    drafts: list[Drafted] = []
    while len(drafts) < task.count:
        if drafts:
            kv.feed(len(kv.token_ids), (drafts[-1].token_id,))
        position = task.position + len(drafts)
        probs = DRAFT.probs(kv.token_ids)
        token_id, judged_by = draw_draft(
            probs, machine.request.preset, machine.rule.propose, position
        )
        drafts.append(Drafted(token_id, judged_by))
        if token_id in task.ends:
            break
    return drafts


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("prompt", nargs="?", default="the ", help="in characters of TEXT")
    parser.add_argument("--serve", type=int, metavar="PORT", help="be the cloud only")
    parser.add_argument("--cloud", metavar="HOST:PORT", help="be the edge alone")
    parser.add_argument("--preset", default="coupled", choices=("coupled", "dsd", "dssd", "ar"))
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    if unknown := set(asked.prompt) - set(VOCABULARY):
        parser.error(f"prompt: {sorted(unknown)} are not in TEXT")
    if asked.cloud:
        await generate(asked.cloud, asked.prompt, asked.preset, asked.seed)
        return
    server, address = await serve(asked.serve or 0)
    if asked.serve is None:
        await generate(address, asked.prompt, asked.preset, asked.seed)
        await server.stop(grace=1.0)
    else:
        print(f"serving at {address}", file=sys.stderr, flush=True)
        await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main())
