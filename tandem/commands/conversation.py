"""A conversation with a running suite: its messages, and what every answer is asked with.
Invariant: a cancelled answer's text so far stays in the conversation, and a failed turn does not.
"""

import secrets
from collections.abc import Generator, Mapping
from typing import Any

from tandem.commands.chat_client import ChatClient, ModelCard, Reply
from tandem.core.default_sampling import CHAT_TEMPERATURE, NAMES, NEUTRAL
from tandem.core.errors import InvalidArgument, TandemError, unknown_name
from tandem.generation.request import GenerationRequest, unknown_preset
from tandem.specdec.presets import PRESETS
from tandem.two_sided.interface import AGGREGATION_PRESETS

DEFAULT = "default"
"""The word that takes a setting back."""
_KINDS: Mapping[str, type] = {
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "min_p": float,
    "repetition_penalty": float,
    "presence_penalty": float,
    "frequency_penalty": float,
    "max_tokens": int,
    "seed": int,
    "preset": str,
}
"""Settings that can be changed in a conversation."""
_SEED_BITS = 32


class Conversation:
    """The messages so far, and the way to ask for more."""

    def __init__(
        self, client: ChatClient, model: ModelCard, settings: Mapping[str, Any], system: str | None
    ) -> None:
        """Begin a conversation. `settings`: values by their names, None for what the server
        chooses; "rag" among them asks for answers from documents."""
        self._client = client
        self.model = model
        self.system = system
        self.settings = {name: value for name, value in settings.items() if value is not None}
        self._messages: list[dict[str, str]] = []

    @property
    def messages(self) -> list[dict[str, str]]:
        """All of them, the system's first."""
        opening = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*opening, *self._messages]

    @property
    def sampling(self) -> dict[str, Any]:
        """The settings of the sampling that answers are drawn with, the model's own among them."""
        known = {**NEUTRAL, **self.model.default_sampling, **self.settings}
        return {name: known[name] for name in NAMES}

    def forget(self) -> None:
        """Begin again; the system message stays."""
        self._messages = []

    def change(self, name: str, value: str) -> None:
        """Set one of the settings; "default" takes it back. Raises InvalidArgument naming it."""
        if name not in _KINDS:
            raise unknown_name(name, name, _KINDS)
        if value == DEFAULT:
            self.settings.pop(name, None)
            return
        try:
            changed = _KINDS[name](value)
        except ValueError:
            kind = "a whole number" if _KINDS[name] is int else "a number"
            raise InvalidArgument(name, f"must be {kind}, is {value!r}") from None
        if name == "preset":
            if changed not in {*PRESETS, *AGGREGATION_PRESETS}:
                raise unknown_preset(changed)
        else:
            GenerationRequest(" ").with_fields(**{name: changed}).validate()
        self.settings[name] = changed

    def say(
        self, words: str, token_texts: bool = False, seed: int | None = None
    ) -> Generator[Reply, None, None]:
        """Send a message and yield the growing answer, with what each token spells if wanted. Both
        become part of the conversation if the answer does not fail and any of its text has arrived.
        `seed`: of this answer alone."""
        self._messages.append({"role": "user", "content": words})
        asked = self._asking(token_texts, seed)
        reply = None
        try:
            for reply in self._client.answer(self.messages, **asked):
                yield reply
        except TandemError:
            reply = None
            raise
        finally:
            if reply is not None and reply.text:
                self._messages.append({"role": "assistant", "content": reply.text})
            else:
                self._messages.pop()

    def retry(self, token_texts: bool = False) -> Generator[Reply, None, None]:
        """Yield another answer to the last message, with another seed. The first answer stays if no
        other one arrives. Raises InvalidArgument if there is no last message."""
        before = self._messages
        asked = [place for place, each in enumerate(before) if each["role"] == "user"]
        if not asked:
            raise InvalidArgument("/retry", "there is no message to answer again")
        self._messages = before[: asked[-1]]
        try:
            seed = secrets.randbits(_SEED_BITS)
            yield from self.say(before[asked[-1]]["content"], token_texts, seed)
        finally:
            if len(self._messages) <= asked[-1]:
                self._messages = before

    def _asking(self, token_texts: bool, seed: int | None) -> dict[str, Any]:
        of_tandem = ("preset", "rag")
        tandem = {name: self.settings[name] for name in of_tandem if self.settings.get(name)}
        tandem |= {"token_texts": True} if token_texts else {}
        others = {name: each for name, each in self.settings.items() if name not in of_tandem}
        others |= {} if seed is None else {"seed": seed}
        return {"model": self.model.name, **others, "tandem": tandem}


def chat_sampling(options: Mapping[str, Any], model: ModelCard) -> dict[str, Any]:
    """Return the settings of the sampling that a chat asks for: those of the flags, and the
    temperature where neither they nor the model have one. The server adds the model's own, unless
    `generation_config` is "none": then all are sent, those that change nothing."""
    given = {name: options[name] for name in NAMES if options[name] is not None}
    if options["generation_config"] == "none":
        return {**NEUTRAL, **given}
    if "temperature" not in model.default_sampling:
        given.setdefault("temperature", CHAT_TEMPERATURE)
    return given
