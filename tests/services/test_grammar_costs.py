"""Nobody pays for a caller who was not admitted, and who has had his share of grammars gets no
more of them."""

from __future__ import annotations

from typing import Any

import pytest
from grpc import StatusCode

from tandem.core.errors import InvalidArgument
from tandem.core.processors import Grammar, GrammarKind, Processors
from tandem.generation.request import GenerationRequest
from tandem.grammar.compiler import GrammarCompiler
from tandem.net.quotas import Quota
from tandem.net.status import Rejected
from tandem.net.tenant import Tenant
from tandem.services.drafter.servicer import DrafterLimits
from tandem.services.drafter.tokenising import PromptTokens
from tandem.services.verifier.servicer import VerifierLimits
from tandem.specdec.cloud import CloudMachine
from tandem.specdec.messages import GenerationParams
from tests.services.scripted_suite import Suite, scripted_suite

PLAIN = GenerationRequest("abc", params=GenerationParams(max_tokens=4, seed=1))
GRAMMAR = Processors(grammar=Grammar(GrammarKind.REGEX, "a+"))
ONE_REQUEST = Quota(requests_per_minute=1)


def with_grammar(preset: str = "coupled") -> GenerationRequest:
    return GenerationRequest(
        "abc", preset, GenerationParams(max_tokens=4, seed=1, processors=GRAMMAR)
    )


async def refusal(suite: Suite, request: GenerationRequest) -> Rejected:
    with pytest.raises(Rejected) as refused:
        await suite.client.generate(request)
    return refused.value


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was done for requests, in order."""
    done = list[str]()
    tokenise, make_machine = PromptTokens.of, CloudMachine.__init__

    async def compiling(self: GrammarCompiler, *given: Any) -> Any:
        done.append("compiled")
        raise InvalidArgument("grammar", "this model spells nothing")

    async def tokenising(self: PromptTokens, request: GenerationRequest) -> tuple[int, ...]:
        done.append("tokenised")
        return await tokenise(self, request)

    def machine(self: CloudMachine, *given: Any, **more: Any) -> None:
        done.append("machine")
        make_machine(self, *given, **more)

    monkeypatch.setattr(GrammarCompiler, "session_mask", compiling)
    monkeypatch.setattr(PromptTokens, "of", tokenising)
    monkeypatch.setattr(CloudMachine, "__init__", machine)
    return done


async def test_a_drafter_does_nothing_for_who_is_not_admitted(work: list[str]) -> None:
    async with scripted_suite(drafter_limits=DrafterLimits(quota=ONE_REQUEST)) as suite:
        await suite.client.generate(PLAIN)
        del work[:]
        refused = await refusal(suite, with_grammar())
    assert refused.code is StatusCode.RESOURCE_EXHAUSTED
    assert "everybody together has used its 1 requests per minute" in str(refused)
    assert not work


async def test_a_verifier_does_nothing_for_who_is_not_admitted(work: list[str]) -> None:
    """`ar` drafts nothing, so that the drafter needs no grammar."""
    async with scripted_suite(VerifierLimits(quota=ONE_REQUEST)) as suite:
        await suite.client.generate(PLAIN)
        del work[:]
        refused = await refusal(suite, with_grammar("ar"))
    assert refused.code is StatusCode.RESOURCE_EXHAUSTED
    assert work == ["tokenised"], "at the drafter, which admitted it"


@pytest.mark.parametrize("preset", ["ar", "coupled"])
async def test_what_fails_after_it_was_admitted_leaves_nothing(
    preset: str, work: list[str]
) -> None:
    async with scripted_suite() as suite:
        refused = await refusal(suite, with_grammar(preset))
        assert refused.code is StatusCode.INVALID_ARGUMENT
        assert "compiled" in work
        await suite.idle()
        assert (await suite.client.generate(PLAIN)).token_ids


@pytest.mark.parametrize("place", ["drafter", "verifier"])
async def test_who_has_had_its_seconds_of_grammars_gets_other_answers_only(
    place: str, work: list[str]
) -> None:
    quota = Quota(grammar_s_per_minute=10)
    limits = (VerifierLimits(quota=quota), DrafterLimits(quota=quota))
    async with scripted_suite(*limits) as suite:
        preset = "ar" if place == "verifier" else "coupled"
        await refusal(suite, with_grammar(preset))
        admission = getattr(suite, place).service._admission
        admission.spend_grammar(Tenant(""), quota, 12.0)
        refused = await refusal(suite, with_grammar(preset))
        assert refused.code is StatusCode.RESOURCE_EXHAUSTED
        assert "everybody together has used its 10 s of computing grammars per minute" in str(
            refused
        )
        assert "try again in" in str(refused)
        assert work.count("compiled") == 1
        assert (await suite.client.generate(PLAIN)).token_ids
