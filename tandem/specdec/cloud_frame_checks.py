"""Checks of what the cloud sent, before any state of the edge changes. Invariant: each failure is a
ProtocolError (or PrefixMismatch) and leaves the machine as it was, so that a fresh stream can
resume from the committed text. Values inside distributions are checked on decoding."""

from __future__ import annotations

from collections.abc import Sequence

from tandem.core.errors import FailedPrecondition, ProtocolError
from tandem.core.probs import Array, SamplingParams
from tandem.core.processors import Processors
from tandem.core.sparse_payload import FullPayload
from tandem.core.tokens import PrefixedTokens, PrefixMismatch
from tandem.specdec.events import EdgeRequest
from tandem.specdec.logprobs import check_logprobs
from tandem.specdec.messages import EarlyVerdict, FullDistribution, Opened, Tokens, Verdict
from tandem.specdec.rules import payload_type

_Based = Verdict | EarlyVerdict | Tokens | FullDistribution


def check_opened(opened: Opened, request: EdgeRequest) -> None:
    """FailedPrecondition where the cloud is older than what was asked for: it passes over what it
    does not know, and its text would be that of another request."""
    check_processes(opened.processes, request.params.sampling, request.params.processors)


def check_processes(
    processes: bool, sampling: SamplingParams, processors: Processors, place: str = "cloud"
) -> None:
    """`processes`: whether the other end, at that place, says that it knows all of both."""
    newer = processors.active or sampling.min_p > 0 or sampling.typical_p < 1
    if newer and not processes:
        raise FailedPrecondition(f"the {place} is of a version without logits processors")


def check_verdict(
    verdict: Verdict,
    request: EdgeRequest,
    committed: PrefixedTokens,
    sent: Sequence[int],
    epoch: int,
) -> None:
    """It judges drafts that were sent (token ids `sent`), in this epoch, as the preset says."""
    _check_base(verdict, committed)
    _check_judged(verdict, len(sent), "a verdict")
    if verdict.epoch != epoch + verdict.rejected:
        raise ProtocolError(f"epoch {epoch}", f"a verdict of epoch {verdict.epoch}")
    outcome = verdict.outcome
    appended = tuple(sent[: verdict.accepted])
    if isinstance(outcome, int):
        _check_token(outcome, request, "Verdict")
        appended = (*appended, outcome)
    if verdict.rejected:
        _check_payload(verdict, request)
    elif not (outcome is None or isinstance(outcome, int)):
        raise ProtocolError("no draft rejected", "a distribution to draw from")
    _check_logprobs(verdict, len(appended), request)
    _check_prefix(verdict, committed, appended)


def check_early_verdict(
    verdict: EarlyVerdict,
    request: EdgeRequest,
    committed: PrefixedTokens,
    sent: Sequence[int],
    epoch: int,
) -> None:
    """It was asked for, and judges drafts that were sent, in this epoch, as the preset says."""
    preset = request.preset
    if not preset.exits:
        raise ProtocolError("no early exits asked for", "EarlyVerdict")
    _check_base(verdict, committed)
    _check_judged(verdict, len(sent), "an early verdict")
    if verdict.epoch != epoch:
        raise ProtocolError(f"epoch {epoch}", f"an early verdict of epoch {verdict.epoch}")
    if isinstance(verdict.outcome, int):
        _check_token(verdict.outcome, request, "EarlyVerdict")
    elif not verdict.rejected or preset.cloud_draws:
        raise ProtocolError("nothing to draw", "an early verdict with a distribution to draw from")
    _check_prefix(verdict, committed, ())


def check_tokens(message: Tokens, request: EdgeRequest, committed: PrefixedTokens) -> None:
    """Tokens of the vocabulary that follow the committed ones."""
    _check_base(message, committed)
    for token in message.token_ids:
        _check_token(token, request, "Tokens")
    _check_logprobs(message, len(message.token_ids), request)
    _check_prefix(message, committed, message.token_ids)


def check_full_distribution(
    message: FullDistribution, request: EdgeRequest, committed: PrefixedTokens
) -> None:
    """A distribution at the position that is being drawn."""
    _check_base(message, committed)
    _check_shape(message.target_probs, request, "FullDistribution")
    _check_prefix(message, committed, ())


def _check_logprobs(message: Verdict | Tokens, tokens: int, request: EdgeRequest) -> None:
    kind, size = type(message).__name__, request.vocabulary_size
    check_logprobs(message.logprobs, tokens, request.params, size, kind)


def _check_base(message: _Based, committed: PrefixedTokens) -> None:
    if message.base != len(committed):
        state = f"{len(committed)} tokens committed"
        raise ProtocolError(state, f"{type(message).__name__} at {message.base}")


def _check_judged(verdict: Verdict | EarlyVerdict, sent: int, name: str) -> None:
    judged = verdict.accepted + verdict.rejected
    if verdict.accepted < 0 or not 1 <= judged <= sent:
        raise ProtocolError(f"{sent} drafts sent", f"{name} on {judged}")


def _check_payload(verdict: Verdict, request: EdgeRequest) -> None:
    preset, outcome = request.preset, verdict.outcome
    if not isinstance(outcome, payload_type(preset).kind):
        state = f"rejection payloads '{preset.rejection_payload}'"
        raise ProtocolError(state, f"a rejection that carries {type(outcome).__name__}")
    if isinstance(outcome, FullPayload):
        _check_shape(outcome.target_probs, request, "Verdict")


def _check_token(token: int, request: EdgeRequest, message: str) -> None:
    if not 0 <= token < request.vocabulary_size:
        state = f"vocabulary of {request.vocabulary_size}"
        raise ProtocolError(state, message, f"has token {token}")


def _check_shape(probs: Array, request: EdgeRequest, message: str) -> None:
    if probs.shape != (request.vocabulary_size,):
        state = f"vocabulary of {request.vocabulary_size}"
        raise ProtocolError(state, message, f"has a distribution of shape {probs.shape}")


def _check_prefix(message: _Based, committed: PrefixedTokens, appended: Sequence[int]) -> None:
    """The frame carries the hash of the committed text once it is applied."""
    if committed.prefix_with(appended) != message.prefix:
        raise PrefixMismatch(len(committed) + len(appended))
