"""Committed tokens as messages to the caller, with what it asked to be told of them. Invariant: a
message is written when the one before it has left."""

from contextlib import aclosing

from tandem.generation.conversation import Stream
from tandem.generation.request import GenerationRequest
from tandem.services.drafter.session import DrafterSession
from tandem.specdec.events import Commit
from tandem.text.answer_text import AnswerText
from tandem.wire.common_codec import token_sources_to_proto
from tandem_api.common.v1 import generation_pb2 as pb


async def write_commits(
    stream: Stream, session: DrafterSession, text: AnswerText, request: GenerationRequest
) -> None:
    """Until the request ends."""
    position = 0
    async with aclosing(session.commits()) as commits:
        async for commit in commits:
            committed = pb.Committed(
                position=position,
                token_ids=commit.token_ids,
                text=text.take(len(commit.token_ids)),
                unverified=commit.unverified,
                token_sources=token_sources_to_proto(commit.token_sources),
            )
            _fill_logprobs(committed, commit, text)
            if request.token_texts and not commit.logprobs:
                committed.token_texts.extend(text.spelt(commit.token_ids)[0])
            if request.rounds:
                committed.rounds.extend(session.take_rounds())
            position += len(commit.token_ids)
            await stream.write(pb.GenerateResponse(committed=committed))
    if rest := text.rest():
        committed = pb.Committed(position=position, text=rest)
        await stream.write(pb.GenerateResponse(committed=committed))


def _fill_logprobs(committed: pb.Committed, commit: Commit, text: AnswerText) -> None:
    """Fill in the log-probabilities of tokens, if requested, with their texts."""
    if not commit.logprobs:
        return
    tops = [each.top for each in commit.logprobs]
    likeliest = [[token_id for token_id, _ in top] for top in tops]
    spelt, others = text.spelt(commit.token_ids, likeliest)
    committed.token_texts.extend(spelt)
    committed.logprobs.extend(each.logprob for each in commit.logprobs)
    if any(tops):
        for top, token_ids, texts in zip(tops, likeliest, others, strict=True):
            logprobs = [logprob for _, logprob in top]
            committed.top_logprobs.add(token_ids=token_ids, logprobs=logprobs, texts=texts)
