"""Committed tokens as messages to the caller, with what it asked to be told of them. Invariant: a
message is written when the one before it has left."""

from collections.abc import Callable, Sequence
from contextlib import aclosing

from tandem.generation.conversation import Stream
from tandem.generation.request import GenerationRequest
from tandem.services.drafter.session import DrafterSession
from tandem.services.drafter.tokenising import PromptTokens
from tandem.specdec.events import Commit
from tandem.specdec.messages import TokenLogprob
from tandem.text.answer_text import AnswerText
from tandem.text.spelling import SpeltToken
from tandem.wire.common_codec import token_sources_to_proto
from tandem_api.common.v1 import generation_pb2 as pb

PROMPT_TOKENS_AT_ONCE = 1024
"""Of one message: with 20 likeliest tokens each, some 400 KB."""


async def write_commits(
    stream: Stream,
    session: DrafterSession,
    text: AnswerText,
    request: GenerationRequest,
    prompts: PromptTokens,
    on_commit: Callable[[int, Commit], None],
) -> None:
    """Write the session's commits to the caller, until the request ends. `on_commit` is called with
    the position of each commit in the whole text, and the commit, which may hold more than the
    caller asked for."""
    position = 0
    first = len(session.machine.request.prompt_ids)
    tells_prompt = request.params.prompt_logprobs
    async with aclosing(session.commits()) as commits:
        async for commit in commits:
            on_commit(first + position, commit)
            if tells_prompt:
                tells_prompt = False
                await _write_prompt(stream, session, prompts, request.tenant)
            committed = pb.Committed(
                position=position,
                token_ids=commit.token_ids,
                text=text.take(len(commit.token_ids)),
                unverified=commit.unverified,
                token_sources=token_sources_to_proto(commit.token_sources),
            )
            if request.params.logprobs and commit.logprobs:
                _fill_logprobs(committed, commit, text)
            elif request.token_texts:
                spelt, _ = text.spelt(commit.token_ids)
                committed.token_texts.extend(each.text for each in spelt)
            if request.rounds:
                committed.rounds.extend(session.take_rounds())
            position += len(commit.token_ids)
            await stream.write(pb.GenerateResponse(committed=committed))
    if rest := text.rest():
        committed = pb.Committed(position=position, text=rest)
        await stream.write(pb.GenerateResponse(committed=committed))


async def _write_prompt(
    stream: Stream, session: DrafterSession, prompts: PromptTokens, tenant: bytes
) -> None:
    """Tell how likely the prompt's tokens were, which is known once anything is committed."""
    machine = session.machine
    token_ids = machine.request.prompt_ids
    logprobs = machine.prompt_logprobs.all()
    likeliest = [[token_id for token_id, _ in each.top] for each in logprobs]
    spelt, others = await prompts.spelt_with_others(token_ids, likeliest, tenant=tenant)
    for first in range(0, len(token_ids), PROMPT_TOKENS_AT_ONCE):
        part = slice(first, first + PROMPT_TOKENS_AT_ONCE)
        tokens = pb.PromptTokens(position=first, token_ids=token_ids[part])
        _fill_spelt(tokens, logprobs[part], spelt[part], others[part])
        await stream.write(pb.GenerateResponse(prompt_tokens=tokens))


def _fill_logprobs(committed: pb.Committed, commit: Commit, text: AnswerText) -> None:
    """Fill in the log-probabilities of tokens, with their texts."""
    likeliest = [[token_id for token_id, _ in each.top] for each in commit.logprobs]
    spelt, others = text.spelt(commit.token_ids, likeliest)
    _fill_spelt(committed, commit.logprobs, spelt, others)


def _fill_spelt(
    message: pb.Committed | pb.PromptTokens,
    logprobs: Sequence[TokenLogprob],
    spelt: Sequence[SpeltToken],
    others: Sequence[Sequence[SpeltToken]],
) -> None:
    """Fill in log-probabilities, what each token spells, and the same of its likeliest tokens."""
    message.logprobs.extend(each.logprob for each in logprobs)
    message.token_texts.extend(each.text for each in spelt)
    message.token_bytes.extend(each.token_bytes for each in spelt)
    if not any(each.top for each in logprobs):
        return
    for each, spelt_there in zip(logprobs, others, strict=True):
        message.top_logprobs.add(
            token_ids=[token_id for token_id, _ in each.top],
            logprobs=[logprob for _, logprob in each.top],
            texts=[other.text for other in spelt_there],
            token_bytes=[other.token_bytes for other in spelt_there],
        )
