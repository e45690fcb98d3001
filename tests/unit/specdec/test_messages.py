"""What a frame or a request says by saying nothing."""

from tandem.core.probs import SamplingParams
from tandem.core.processors import Processors
from tandem.specdec.messages import (
    Committed,
    Drafts,
    GenerationParams,
    Open,
    Opened,
    TokenLogprob,
    Work,
)
from tandem.specdec.presets import PRESETS


def test_a_request_that_sets_nothing_gets_the_same_text_in_every_release() -> None:
    assert GenerationParams() == GenerationParams(
        sampling=SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, typical_p=1.0),
        max_tokens=128,
        seed=0,
        ignore_eos=False,
        images=(),
        logprobs=False,
        top_logprobs=0,
        processors=Processors(),
    )


def test_a_pass_that_tells_nothing_of_its_cost_was_free_and_nobody_else_s() -> None:
    work = Work(verify_s=0.0, queue_s=0.0, batch_size=1, target_passes=0, drafts=0)
    assert Committed(1, 2, 9, accepted=1).work == work


def test_a_cloud_that_does_not_say_so_has_nothing_kept_and_promises_no_bits() -> None:
    opened = Opened(1, 2, 9, 8, frozenset(), "plain")
    assert opened.cached_tokens == 0
    assert not opened.same_bits
    assert not opened.batch_invariant
    assert opened.row_share is None


def test_drafts_that_say_nothing_else_are_a_chain_of_ids() -> None:
    draft = Drafts(1, 2, 9, token_ids=(3,), end_of_chunk=True)
    assert (draft.probabilities, draft.distributions, draft.parents) == (None, None, None)


def test_what_need_not_be_said() -> None:
    committed = Committed(1, 2, 9, accepted=1)
    assert (committed.token_ids, committed.path, committed.logprobs) == ((), (), ())
    assert (committed.draw_from, committed.cloud_accepted) == (None, 0)
    assert Committed(1, 2, 9, token_ids=(3,)).work == Work()
    assert TokenLogprob(-0.5).top == ()
    assert GenerationParams().prompt_logprobs is False
    asked = Open(
        *(1, 2, 9, "hash", 50, (1, 2), ()), GenerationParams(), PRESETS["ar"].verify_settings
    )
    assert (asked.tenant, asked.public_tokens) == (b"", 0)
