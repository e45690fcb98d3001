"""Checks of what the cloud sent, before any state of the edge changes.

Invariant: each failure is a ProtocolError (or PrefixMismatch) and leaves the machine as it was, so
that a fresh stream can resume from the committed text. Values inside laws are checked where bytes
become laws. Must not import asyncio, grpc, torch or time.
"""

from __future__ import annotations

from collections.abc import Sequence

from tandem.core.errors import ProtocolError
from tandem.core.laws import Array
from tandem.core.sparse_answer import SparseAnswer
from tandem.policy.choices import Answer
from tandem.protocol.logprobs import check_logprobs
from tandem.protocol.messages import EarlyVerdict, FullAnswer, FullLaw, Tokens, Verdict
from tandem.protocol.outputs import EdgeRequest
from tandem.protocol.prefixes import PrefixedTokens, PrefixMismatch

_ANSWERS: dict[Answer, type] = {
    Answer.TOKEN: int,
    Answer.FULL_LAW: FullAnswer,
    Answer.LOSSLESS_SPARSE: SparseAnswer,
    Answer.TOP_K: SparseAnswer,
}

_Based = Verdict | EarlyVerdict | Tokens | FullLaw


def check_verdict(
    verdict: Verdict,
    request: EdgeRequest,
    committed: PrefixedTokens,
    sent: Sequence[int],
    epoch: int,
) -> None:
    """It speaks of drafts that were sent (token ids `sent`), in this epoch, as the preset says."""
    _check_base(verdict, committed)
    judged = verdict.accepted + verdict.rejected
    if verdict.accepted < 0 or not 1 <= judged <= len(sent):
        raise ProtocolError(f"{len(sent)} drafts sent", f"a verdict on {judged}")
    if verdict.epoch != epoch + verdict.rejected:
        raise ProtocolError(f"epoch {epoch}", f"a verdict of epoch {verdict.epoch}")
    outcome = verdict.outcome
    appended = tuple(sent[: verdict.accepted])
    if isinstance(outcome, int):
        _check_token(outcome, request, "Verdict")
        appended = (*appended, outcome)
    if verdict.rejected:
        _check_answer(verdict, request)
    elif not (outcome is None or isinstance(outcome, int)):
        raise ProtocolError("no draft refused", "a law to draw from")
    check_logprobs(verdict.logprobs, len(appended), request, "Verdict")
    _check_prefix(verdict, committed, appended)


def check_early_verdict(
    verdict: EarlyVerdict,
    request: EdgeRequest,
    committed: PrefixedTokens,
    sent: Sequence[int],
    epoch: int,
) -> None:
    """It was asked for, and speaks of drafts that were sent, in this epoch, as the preset says."""
    preset = request.preset
    if not preset.exits:
        raise ProtocolError("no early exits asked for", "EarlyVerdict")
    _check_base(verdict, committed)
    judged = verdict.accepted + verdict.rejected
    if verdict.accepted < 0 or not 1 <= judged <= len(sent):
        raise ProtocolError(f"{len(sent)} drafts sent", f"an early verdict on {judged}")
    if verdict.epoch != epoch:
        raise ProtocolError(f"epoch {epoch}", f"an early verdict of epoch {verdict.epoch}")
    if isinstance(verdict.outcome, int):
        _check_token(verdict.outcome, request, "EarlyVerdict")
    elif not verdict.rejected or preset.answer is Answer.TOKEN:
        raise ProtocolError("nothing to draw", "an early verdict with a law to draw from")
    _check_prefix(verdict, committed, ())


def check_tokens(message: Tokens, request: EdgeRequest, committed: PrefixedTokens) -> None:
    """Tokens of the vocabulary that follow the committed ones."""
    _check_base(message, committed)
    for token in message.token_ids:
        _check_token(token, request, "Tokens")
    check_logprobs(message.logprobs, len(message.token_ids), request, "Tokens")
    _check_prefix(message, committed, message.token_ids)


def check_full_law(message: FullLaw, request: EdgeRequest, committed: PrefixedTokens) -> None:
    """A law at the position that is being drawn."""
    _check_base(message, committed)
    _check_shape(message.target_probs, request, "FullLaw")
    _check_prefix(message, committed, ())


def _check_base(message: _Based, committed: PrefixedTokens) -> None:
    if message.base != len(committed):
        state = f"{len(committed)} tokens committed"
        raise ProtocolError(state, f"{type(message).__name__} at {message.base}")


def _check_answer(verdict: Verdict, request: EdgeRequest) -> None:
    wanted = request.preset.answer
    if not isinstance(verdict.outcome, _ANSWERS[wanted]):
        kind = type(verdict.outcome).__name__
        raise ProtocolError(f"answers of kind '{wanted}'", f"a refusal that carries {kind}")
    if isinstance(verdict.outcome, FullAnswer):
        _check_shape(verdict.outcome.target_probs, request, "Verdict")


def _check_token(token: int, request: EdgeRequest, message: str) -> None:
    if not 0 <= token < request.vocabulary_size:
        raise ProtocolError(
            f"vocabulary of {request.vocabulary_size}", message, f"has token {token}"
        )


def _check_shape(law: Array, request: EdgeRequest, message: str) -> None:
    if law.shape != (request.vocabulary_size,):
        raise ProtocolError(
            f"vocabulary of {request.vocabulary_size}", message, f"has a law of shape {law.shape}"
        )


def _check_prefix(message: _Based, committed: PrefixedTokens, appended: Sequence[int]) -> None:
    """The frame carries the hash of the committed text once it is applied."""
    if committed.prefix_with(appended) != message.prefix:
        raise PrefixMismatch(len(committed) + len(appended))
