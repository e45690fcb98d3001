"""Sampling settings that a model's makers recommend, for requests that name none.

Hugging Face's folders have them in generation_config.json. They are for people and HTTP callers who
leave a setting open: whoever names one, a benchmark for example, gets what was named.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

CHAT_TEMPERATURE = 0.7
"""Where people talk to a model of whose temperature nothing is known: at 1 small models ramble."""
_HIGHEST_PENALTY = 10.0


@dataclass(frozen=True, slots=True)
class DefaultSampling:
    """None: the model has no opinion. `top_k` 0 and `top_p` 1 do not truncate."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    repetition_penalty: float | None = None

    @classmethod
    def from_config(cls, config: Mapping[str, Any], vocabulary_size: int) -> DefaultSampling:
        """Return what `config`, a generation_config, has of these. A value that no request could
        have is left out: the file is the model's, and nobody asked for it."""
        temperature = _number(config.get("temperature"))
        top_p = _number(config.get("top_p"))
        top_k = config.get("top_k")
        penalty = _number(config.get("repetition_penalty"))
        return cls(
            temperature=temperature if temperature is not None and temperature >= 0 else None,
            top_p=top_p if top_p is not None and 0 < top_p <= 1 else None,
            top_k=min(max(0, top_k), vocabulary_size) if type(top_k) is int else None,
            repetition_penalty=penalty
            if penalty is not None and 0 < penalty <= _HIGHEST_PENALTY
            else None,
        )

    @property
    def named(self) -> dict[str, float | int]:
        """The settings that the model has, by the names of request fields."""
        return {name: value for name, value in asdict(self).items() if value is not None}


NO_DEFAULTS = DefaultSampling()
NAMES = tuple(asdict(NO_DEFAULTS))
"""Request fields for which a model may have a default."""
NEUTRAL: Mapping[str, float | int] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "repetition_penalty": 1.0,
}
"""What changes nothing of the model's distribution."""


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        return None
    return float(value)
