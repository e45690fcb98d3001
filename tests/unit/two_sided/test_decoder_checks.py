"""What the decoder's machine refuses: openings, targets and relevances."""

from __future__ import annotations

from typing import Any

import pytest

from tandem.core.errors import FailedPrecondition, InvalidArgument, ProtocolError
from tandem.core.probs import SamplingParams
from tandem.core.tokens import PrefixMismatch
from tandem.two_sided.protocol.decoder_machine import (
    DecoderMachine,
)
from tests.unit.two_sided.decoder_frames import (
    DOCUMENTS,
    MODEL,
    PROMPT,
    VOCABULARY,
    Engine,
    machine,
    opening,
    target,
)


@pytest.mark.parametrize(
    ("changes", "prompt", "documents", "reason"),
    [
        ({}, (), DOCUMENTS, "prompt: is empty"),
        ({}, (1, VOCABULARY), DOCUMENTS, r"prompt: \[1\]"),
        ({}, (1,) * 40, DOCUMENTS, "prompt: 40 tokens; the context holds 40"),
        ({}, PROMPT, [(5,), ()], r"documents\[1\]: is empty"),
        ({}, PROMPT, [(5,), (-1,)], r"documents\[1\]: \[0\] = -1"),
        ({}, PROMPT, [(5,), (5,) * 37], r"documents\[1\]: 37 tokens; 37 of the context are left"),
        ({"committed_ids": (4,) * 20}, PROMPT, DOCUMENTS, "committed_ids: the answer is complete"),
        ({"committed_ids": (99,)}, PROMPT, DOCUMENTS, "committed_ids: .* 99"),
        ({"max_tokens": 0}, PROMPT, DOCUMENTS, "max_tokens: must be at least 1"),
        ({"sampling": SamplingParams(-1)}, PROMPT, DOCUMENTS, "temperature: "),
    ],
)
def test_openings_are_checked(
    changes: dict[str, Any],
    prompt: tuple[int, ...],
    documents: list[tuple[int, ...]],
    reason: str,
) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        DecoderMachine(opening(**changes), prompt_ids=prompt, documents=documents, model=MODEL)


@pytest.mark.parametrize("changes", [{"vocabulary_hash": "x"}, {"vocabulary_size": 49}])
def test_another_vocabulary_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(FailedPrecondition):
        machine(**changes)
    machine(vocabulary_hash="hash", vocabulary_size=VOCABULARY)


@pytest.mark.parametrize(
    ("changes", "error", "reason"),
    [
        ({"session": 1}, InvalidArgument, "session: 1"),
        ({"base": 4}, InvalidArgument, "base: 4 is not where the committed text ends, 3"),
        ({"prefix_hash": 1}, PrefixMismatch, "before position 3"),
        ({"token_ids": (50,)}, InvalidArgument, r"token_ids: \[0\] = 50"),
        ({"token_ids": ()}, InvalidArgument, "token_ids: a target that commits nothing"),
        ({"token_ids": (1,) * 21}, InvalidArgument, "token_ids: more than max_tokens, 20"),
    ],
)
def test_a_bad_target_changes_nothing(
    changes: dict[str, Any], error: type[Exception], reason: str
) -> None:
    decoder = machine()
    Engine(decoder).step()
    running = decoder.running
    with pytest.raises(error, match=reason):
        decoder.receive(target(decoder, 5, **changes))
    assert (len(decoder.committed), decoder.running) == (3, running)


def test_a_second_open_is_no_transition() -> None:
    with pytest.raises(ProtocolError, match="open in state decoding"):
        machine().receive(opening())
