"""The engine for Hugging Face decoders: sessions, packed passes, and the choice of forward pass.

Nothing here knows an architecture; `generic` runs any of them, `fast_path` the Llama family faster.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate

import torch
from transformers import PreTrainedModel

from tandem.backends.interface import (
    Capabilities,
    EngineDefaults,
    ForwardRequest,
    Logits,
    Session,
    Vision,
    never,
)
from tandem.backends.request_checks import (
    check_batch,
    check_capacity,
    check_length,
    check_sessions,
    own_session,
)
from tandem.backends.torch.exit_adapters import EarlyExits, ExitAdapters
from tandem.backends.torch.generic_forward import GenericForward
from tandem.backends.torch.kv_cache import KvPool, KvSession
from tandem.backends.torch.kv_files import TorchKvFiles
from tandem.backends.torch.linear import FEW_ROWS
from tandem.backends.torch.llama_forward import LlamaForward, llama_forward_serves
from tandem.backends.torch.packed_batch import PackedBatch
from tandem.backends.torch.quantised import quantise_modules
from tandem.core.errors import InvalidArgument


class HuggingFaceEngine(EngineDefaults):
    """Implements `tandem.backends.interface.Engine` over a loaded model, which it takes over.

    `vocabulary_size` drops the logits beyond it: models of one family pad their vocabulary to
    different sizes, with rows that no token has. `fast_path=False` keeps the generic path for a
    model that the Llama path would serve. `exits` are early exits that requests may read.
    `single_rows` is for an engine that mostly feeds one token at a time, as a drafter's does.
    `bits`, 8 or 4, quantises the weights; all else is float32 then. `head_tokens` [n] are the only
    tokens that a draft proposes; the generic path proposes all. With `first_layers` only so many
    run, of a model that the Llama path serves: what a pass answers are their hidden states [rows,
    hidden size] in the place of logits, for the edge of split inference.
    Raises InvalidArgument("model") for a model whose attention cannot be packed.
    """

    kv_files: TorchKvFiles
    kv_copies: TorchKvFiles

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        model_name: str,
        vocabulary_hash: str,
        eos_token_ids: frozenset[int] = frozenset(),
        vocabulary_size: int | None = None,
        fast_path: bool = True,
        exits: ExitAdapters | None = None,
        single_rows: bool = False,
        vision: Vision | None = None,
        bits: int | None = None,
        head_tokens: torch.Tensor | None = None,
        first_layers: int = 0,
    ) -> None:
        model.train(False)
        model.requires_grad_(False)
        self.fast_path = fast_path and llama_forward_serves(model)
        dtype = model.dtype if bits is None else torch.float32
        if bits is not None and not self.fast_path:
            quantise_modules(model, bits)
        generic = GenericForward(model)
        layers, logits = generic.survey()
        self.layer_count = len(layers) if self.fast_path else 0
        self.hidden_size = int(model.config.get_text_config().hidden_size) if self.fast_path else 0
        self._answers_hidden = first_layers > 0
        if first_layers:
            if not 0 < first_layers < self.layer_count:
                why = f"{model_name}: its first {first_layers} layers cannot run alone"
                raise InvalidArgument("model", why)
            layers = layers[:first_layers]
        self.vocabulary_size = logits if vocabulary_size is None else min(logits, vocabulary_size)
        self.model_name = model_name
        self.vision = vision
        exact = dtype == torch.float32 and bits is None
        self.capabilities = Capabilities(
            trees=True,
            forks=True,
            cancellation=True,
            exits=exits is not None,
            vision=vision is not None,
            embeddings=vision is not None,
            kv_files=True,
            splits=self.fast_path and not first_layers,
            same_bits=exact and model.device.type == "cpu",
        )
        self.vocabulary_hash = vocabulary_hash
        self.eos_token_ids = frozenset(t for t in eos_token_ids if t < self.vocabulary_size)
        self.context_length = _context_length(model)
        self._single_rows = single_rows
        self._like = torch.empty(0, dtype=dtype, device=model.device)
        early = EarlyExits(exits, self._like, self.vocabulary_size) if exits else None
        self.early_exits = early
        self.exit_depths = early.depths if early else ()
        self.exit_temperatures = early.temperatures if early else ()
        self._run: LlamaForward | GenericForward = generic
        if self.fast_path:
            self._run = LlamaForward(
                model, layers, early, single_rows=single_rows, bits=bits, head_tokens=head_tokens
            )
        elif early:
            generic.read(early)
        self.trainable: LlamaForward | None = None
        """The pass of a draft, through which gradients go to products of a session's own: neither
        quantised nor a part of the model."""
        if (
            single_rows
            and bits is None
            and not first_layers
            and isinstance(self._run, LlamaForward)
        ):
            self.trainable = self._run
        self._pool = KvPool(layers, dtype, model.device)
        self.kv_bytes_per_token = self._pool.bytes_per_token
        self.kv_files = self.kv_copies = TorchKvFiles(self._pool)
        check_sessions(self, 1e-3 if exact else 0.1)

    @property
    def kv_bytes_in_use(self) -> int:
        return self._pool.bytes_in_use

    @property
    def sessions_open(self) -> int:
        return len(self._pool.sessions)

    def open(self, capacity: int, spare: int = 0) -> KvSession:
        check_capacity(capacity, self.context_length)
        return self._pool.open(capacity, spare)

    def fork(self, parent: Session, length: int, capacity: int) -> KvSession:
        source = own_session(parent, KvSession, self._pool.sessions)
        check_length(length, source.length)
        check_capacity(capacity, self.context_length, length)
        return self._pool.fork(source, length, capacity)

    def forward(
        self, batch: Sequence[ForwardRequest], cancelled: Callable[[], bool] = never
    ) -> list[Logits]:
        sessions = [
            own_session(request.session, KvSession, self._pool.sessions) for request in batch
        ]
        check_batch(batch, self)
        by_number: dict[int, Logits] = {}
        for numbers in self._passes(batch, sessions):
            some = [batch[number] for number in numbers]
            logits = self._pass(some, [sessions[number] for number in numbers], cancelled)
            by_number |= zip(numbers, logits, strict=True)
            cancelled = never  # what has run stands, so the rest must run as well
        return [by_number[number] for number in range(len(batch))]

    def _passes(
        self, batch: Sequence[ForwardRequest], sessions: Sequence[KvSession]
    ) -> list[list[int]]:
        """Return the indices of the requests that share each pass: those that begin with the same
        layer and multiply by the same products. Where weights are laid out for single rows, few and
        many rows are multiplied differently, so that a prompt must not share one with single
        tokens."""
        passes = dict[tuple[int, bool, int], list[int]]()
        for number, (request, session) in enumerate(zip(batch, sessions, strict=True)):
            few = self._single_rows and len(request.token_ids) <= FEW_ROWS
            key = (request.first_layer, few, id(session.products))
            passes.setdefault(key, []).append(number)
        return list(passes.values())

    def _pass(
        self, batch: list[ForwardRequest], sessions: list[KvSession], cancelled: Callable[[], bool]
    ) -> list[Logits]:
        for session, request in zip(sessions, batch, strict=True):
            session.prepare(request.extends_tree)
        packed = PackedBatch(batch, sessions, cancelled, self._like)
        answers = self._run(packed)
        if not self._answers_hidden:
            answers = answers[:, : self.vocabulary_size]
        logits: Logits = answers.float().cpu().numpy()
        packed.exit_copies.hand_over(wait=True)
        for session, request in zip(sessions, batch, strict=True):
            session.finish(len(request.token_ids), request.parents)
        ends = list(accumulate(request.logits_to_keep for request in batch))
        return [logits[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def _context_length(model: PreTrainedModel) -> int:
    """Return the number of positions that the model has; if its rotary frequencies depend on the
    length, those of the first regime only. Raises InvalidArgument("model") if it has none."""
    config = model.config.get_text_config()
    length = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", 0)
    if not length:
        raise InvalidArgument("model", f"{type(model).__name__} has no context length")
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") in ("dynamic", "longrope"):
        length = min(length, rope.get("original_max_position_embeddings") or length)
    return int(length)
