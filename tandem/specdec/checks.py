"""What an edge checks of a cloud's frames before they change anything."""

from __future__ import annotations

from collections.abc import Sequence

from tandem.core.errors import FailedPrecondition, ProtocolError
from tandem.core.probs import Array
from tandem.core.sparse_payload import FullPayload, SparsePayload
from tandem.core.tokens import PrefixedTokens, PrefixMismatch
from tandem.specdec.choices import RejectionPayload
from tandem.specdec.events import EdgeRequest
from tandem.specdec.logprobs import check_logprobs
from tandem.specdec.messages import Committed, Frame, Opened, PromptLogprobs, TokenLogprob
from tandem.specdec.presets import MAX_DRAFT_LENGTH
from tandem.specdec.rules import Replacement

_KINDS = {
    RejectionPayload.TOKEN: int,
    RejectionPayload.FULL_DISTRIBUTION: FullPayload,
    RejectionPayload.LOSSLESS_SPARSE: SparsePayload,
    RejectionPayload.TOP_K: SparsePayload,
}
"""What comes in the place of a rejected draft."""


def check_opened(opened: Opened, request: EdgeRequest) -> None:
    """Raise FailedPrecondition where the cloud does not draft what it was asked to."""
    preset = request.preset
    if preset.drafts_in_cloud and opened.cloud_drafts is not preset.cloud_drafts:
        raise FailedPrecondition(
            f"cloud_drafts: the cloud does not draft what preset {preset.name!r} asks it to"
        )


def check_committed(
    message: Committed,
    request: EdgeRequest,
    committed: PrefixedTokens,
    sent: Sequence[int],
) -> None:
    """Check that a message commits drafts that were sent and tokens of the vocabulary, no more of
    them than the answer has room for, as the preset says.

    Args:
        message: the frame.
        request: whose preset and vocabulary it must fit.
        committed: the edge's text.
        sent: token ids of the drafts that it may speak of, oldest first.

    Raises ProtocolError, or PrefixMismatch where the two texts differ."""
    check_base(message, committed)
    if not 0 <= message.accepted <= len(sent):
        raise ProtocolError(f"{len(sent)} drafts sent", f"Committed with {message.accepted}")
    appended = (*sent[: message.accepted], *message.token_ids)
    room = len(request.prompt_ids) + request.max_tokens - message.base
    if len(appended) > room:
        raise ProtocolError(f"at most {room} tokens expected", f"{len(appended)} committed")
    for token in message.token_ids:
        check_token(token, request, "Committed")
    if message.accepted < len(sent) and message.token_ids:
        _check_replacement(message.token_ids[0], request)
    if message.draw_from is not None:
        if message.token_ids or message.accepted == len(sent):
            raise ProtocolError("no draft rejected", "a distribution to draw from")
        _check_replacement(message.draw_from, request)
    elif not appended:
        raise ProtocolError("tokens expected", "Committed without any")
    if message.work.cloud_drafts or message.cloud_accepted:
        _check_cloud_drafts(message, request)
    if message.logprobs or (request.params.logprobs and not request.logprobs_are_optional):
        _check_logprobs(message.logprobs, len(appended), request, "Committed")
    check_prefix(message, committed, appended)


def _check_cloud_drafts(message: Committed, request: EdgeRequest) -> None:
    """Check what a cloud says of drafts that it made itself: as many as it may make, and more where
    it may have remembered them."""
    preset = request.preset
    most = 0
    if preset.may_draft_in_cloud:
        most = MAX_DRAFT_LENGTH if request.allows_memory else preset.cloud_draft_length
    judged = message.work.cloud_drafts
    if judged > most:
        raise ProtocolError(f"{most} drafts of the cloud", f"Committed after {judged}")
    if message.cloud_accepted > min(judged, len(message.token_ids)):
        raise ProtocolError(f"{judged} drafts of the cloud", f"{message.cloud_accepted} accepted")


def check_prompt_tokens(message: PromptLogprobs, request: EdgeRequest) -> None:
    """Check that they are log-probabilities, with as many likeliest tokens as were asked for."""
    _check_logprobs(message.logprobs, len(message.logprobs), request, "PromptLogprobs")


def _check_logprobs(
    logprobs: Sequence[TokenLogprob], tokens: int, request: EdgeRequest, message: str
) -> None:
    check_logprobs(logprobs, tokens, request.params, request.vocabulary_size, message)


def check_base(message: Frame, committed: PrefixedTokens) -> None:
    if message.base != committed.end:
        state = f"{committed.end} tokens committed"
        raise ProtocolError(state, f"{type(message).__name__} at {message.base}")


def _check_replacement(replacement: Replacement, request: EdgeRequest) -> None:
    """Check that what comes in the place of a draft is what the preset says."""
    preset = request.preset
    if not isinstance(replacement, _KINDS[preset.rejection_payload]):
        state = f"rejection payloads '{preset.rejection_payload}'"
        raise ProtocolError(state, f"a rejection that carries {type(replacement).__name__}")
    if isinstance(replacement, FullPayload):
        check_shape(replacement.target_probs, request, "Committed")


def check_token(token: int, request: EdgeRequest, message: str) -> None:
    if not 0 <= token < request.vocabulary_size:
        state = f"vocabulary of {request.vocabulary_size}"
        raise ProtocolError(state, message, f"has token {token}")


def check_shape(probs: Array, request: EdgeRequest, message: str) -> None:
    if probs.shape != (request.vocabulary_size,):
        state = f"vocabulary of {request.vocabulary_size}"
        raise ProtocolError(state, message, f"has a distribution of shape {probs.shape}")


def check_prefix(message: Frame, committed: PrefixedTokens, appended: Sequence[int]) -> None:
    """Check that the frame carries the hash of the committed text once it is applied."""
    if committed.prefix_with(appended) != message.prefix_hash:
        raise PrefixMismatch(committed.end + len(appended))
