"""Sessions over the pages of vLLM's KV cache, and the passes that fill them.

Invariants: a page that other sessions may read (one with a hash, in the prefix cache) is never
written to: a session that goes back into one gives its pages up, and finds them in the cache again.
A refused draft is never hashed. Reserved pages never exceed the pool, so that no pass lacks one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tandem.backends.interface import ForwardRequest, PrefixTotals
from tandem.backends.request_checks import check_length
from tandem.core.errors import InvalidArgument, ResourceExhausted


@dataclass(eq=False, slots=True)
class Fed:
    """A request on its way through one or more passes. `whole`: all the session's tokens then."""

    request: ForwardRequest
    session: PagedSession
    whole: list[int]
    count: int = 0
    """Tokens in the pass that is being made up."""
    logits: list[Any] = field(default_factory=list)
    """Logits of each pass that gave some; or what the reader made of all, where it `read` them."""
    read: bool = False

    @property
    def logits_to_keep(self) -> int:
        return self.request.logits_to_keep

    @property
    def left(self) -> int:
        return len(self.whole) - self.session.computed

    @property
    def settled(self) -> int:
        """Tokens that no verdict is awaited for: rows are wanted from the last of them on."""
        return len(self.whole) - max(0, self.logits_to_keep - 1)

    @property
    def rows(self) -> int:
        """Wanted rows of the pass: at the end of what it computes."""
        end = self.session.computed + self.count
        return max(0, end - max(self.session.computed, len(self.whole) - self.logits_to_keep))


class PagedSession:
    """`tokens` are the committed ones, of which the first `computed` have keys and values in the
    pages of `request`, vLLM's record of the session; the others are fed again before the next. The
    workers know the first `sent`."""

    tree = None

    def __init__(
        self, pages: PagePool, capacity: int, tokens: Sequence[int] = (), *, salt: str
    ) -> None:
        """Begin with the committed `tokens`, and reserve pages for `capacity` tokens. Pages are
        found only by sessions with the same `salt`."""
        self.capacity = self.slots = capacity
        self.own_capacity = capacity - len(tokens)
        self.salt = salt
        self.tokens = list(tokens)
        self.computed = self.sent = 0
        self.request: Any = None
        self._pages = pages
        pages.admit(self)

    @property
    def length(self) -> int:
        return len(self.tokens)

    def rollback(self, length: int) -> None:
        self._check_open()
        check_length(length, self.length)
        del self.tokens[length:]
        self.forget_beyond(length)

    def forget_beyond(self, length: int) -> None:
        """Drop the keys and values beyond a length; those whose pages may be shared go back to the
        cache whole."""
        if self.request is not None and length < self.request.num_tokens:
            self._pages.release(self)
        self.computed = min(self.computed, length)
        self.sent = min(self.sent, length)

    def keep_path(self, indices: Sequence[int]) -> None:
        self._check_open()
        raise InvalidArgument("indices", "this back end does not support token trees")

    def close(self) -> None:
        self._pages.dismiss(self)

    def _check_open(self) -> None:
        if self not in self._pages.sessions:
            raise InvalidArgument("session", "the session is closed")


@dataclass(eq=False)
class PagePool:
    """The pages of each session: vLLM's own scheduler-side cache, driven from here. `core` is its
    EngineCore, which is never stepped."""

    core: Any
    sessions: set[PagedSession] = field(default_factory=set)
    prefix_totals: PrefixTotals = field(default_factory=PrefixTotals)

    def __post_init__(self) -> None:
        config = self.core.vllm_config
        self._cache = self.core.scheduler.kv_cache_manager
        self.page_tokens = int(self.core.scheduler.block_size)
        # The first page stands for none. The last is for the watchdog's probe.
        self.pages = int(config.cache_config.num_gpu_blocks) - 2
        self.most_sessions = int(config.scheduler_config.max_num_seqs)
        self.pass_tokens = int(config.scheduler_config.max_num_batched_tokens)
        """Of one pass over all sessions; what is more is fed in pieces."""
        self._second_runner = bool(config.use_v2_model_runner)
        self._finished: set[str] = set()
        self._named = 0

    @property
    def used(self) -> int:
        """Pages that sessions hold now."""
        free = self._cache.block_pool.get_num_free_blocks()
        return int(self.core.vllm_config.cache_config.num_gpu_blocks - 1 - free)

    def admit(self, session: PagedSession) -> None:
        """Reserve the pages of its capacity. Raises ResourceExhausted."""
        needed = self._pages_of(session)
        held = sum(self._pages_of(other) for other in self.sessions)
        if needed > 1 and held + needed > self.pages:
            why = f"{needed} KV pages are needed, {self.pages - held} of {self.pages} are free"
            raise ResourceExhausted(why)
        if len(self.sessions) >= self.most_sessions:
            raise ResourceExhausted(f"vLLM serves at most {self.most_sessions} sessions at once")
        self.sessions.add(session)

    def _pages_of(self, session: PagedSession) -> int:
        return -(-session.capacity // self.page_tokens)

    def dismiss(self, session: PagedSession) -> None:
        if session in self.sessions:
            self.sessions.discard(session)
            self.release(session)

    def release(self, session: PagedSession) -> None:
        """Give a session's pages back; what they hold stays in the prefix cache until they are
        needed."""
        if session.request is not None:
            self._cache.free(session.request)
            self._finished.add(session.request.request_id)
            session.request = None
            session.computed = 0
            session.sent = 0

    def fed(self, request: ForwardRequest, session: PagedSession) -> Fed:
        return Fed(request, session, [*session.tokens, *request.token_ids])

    def next_pass(self, waiting: Sequence[Fed]) -> tuple[list[Fed], Any]:
        """Return as many waiting chunks as one pass takes, and the pass as vLLM's
        SchedulerOutput."""
        room = self.pass_tokens
        taken = []
        news = []
        for fed in waiting:
            if not room:
                break
            hits = self._begin(fed)
            fed.count = min(fed.left, room)
            room -= fed.count
            news.append(self._scheduled(fed, hits))
            taken.append(fed)
        return taken, self._output(taken, news)

    def _begin(self, fed: Fed) -> tuple[Any, int]:
        """Bring vLLM's record up to what is settled; pages and tokens found in the cache."""
        from vllm import SamplingParams
        from vllm.v1.request import Request

        session = fed.session
        settled = fed.whole[: fed.settled]
        if session.request is not None:
            known = session.request.num_tokens
            if len(settled) > known:
                session.request.append_output_token_ids(settled[known:])
            session.request.num_computed_tokens = session.computed
            return None, 0
        self._named += 1
        session.request = Request(
            f"session-{self._named}",
            settled,
            SamplingParams(temperature=0, max_tokens=1),
            None,
            cache_salt=session.salt,
            block_hasher=self.core.request_block_hasher,
        )
        pages, hits, _ = self._cache.get_computed_blocks(session.request)
        session.computed = hits
        self.prefix_totals = self.prefix_totals.looked_up(len(settled), hits)
        return pages, hits

    def _scheduled(self, fed: Fed, computed: tuple[Any, int]) -> Any:
        """Return a request as if it were new, with those of its tokens that the workers have not:
        they then replace what they know of it, by which drafts are taken back."""
        from vllm.v1.core.sched.output import NewRequestData

        pages, hits = computed
        record = fed.session.request
        allocated = self._cache.allocate_slots(
            record, fed.count, num_new_computed_tokens=hits, new_computed_blocks=pages
        )
        assert allocated is not None, "every session's pages are reserved"
        unsent = fed.whole[fed.session.sent :]
        return NewRequestData(
            req_id=record.request_id,
            prompt_token_ids=unsent,
            prefill_token_ids=unsent if self._second_runner else None,
            mm_features=[],
            sampling_params=record.sampling_params,
            pooling_params=None,
            block_ids=self._cache.get_block_ids(record.request_id),
            num_computed_tokens=fed.session.computed,
            lora_request=None,
        )

    def _output(self, taken: Sequence[Fed], news: list[Any]) -> Any:
        from vllm.v1.core.sched.output import CachedRequestData, SchedulerOutput

        counts = {fed.session.request.request_id: fed.count for fed in taken}
        zeroed = self.core.scheduler.needs_kv_cache_zeroing
        output = SchedulerOutput(
            scheduled_new_reqs=news,
            scheduled_cached_reqs=CachedRequestData.make_empty(),
            num_scheduled_tokens=counts,
            total_num_scheduled_tokens=sum(counts.values()),
            scheduled_spec_decode_tokens={},
            scheduled_encoder_inputs={},
            finished_req_ids=self._finished,
            free_encoder_mm_hashes=[],
            new_block_ids_to_zero=self._cache.take_new_block_ids() if zeroed else None,
        )
        copies, _ = self._cache.take_kv_cache_block_copies()
        output.kv_cache_block_copies = copies or None
        self._finished = set()
        return output
