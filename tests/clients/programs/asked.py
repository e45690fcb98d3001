"""What every program asks, and whom; and how it says what it heard."""

from __future__ import annotations

import json
import sys
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

URL, MODEL, EMBEDDING = sys.argv[1:]
V1 = f"{URL}/v1"
KEY = "none"  # this server asks for none, and most clients insist on one
QUESTION = "Tom has 3 apples."
SYSTEM = "Be brief."
MAX_TOKENS = 24
TEXTS = ["A heron stands in the water.", "The train leaves at noon.", "Bread is baked at night."]
SEARCH = "When does the train leave?"


class Add(BaseModel):
    """Add two numbers."""

    model_config = ConfigDict(extra="forbid")  # the small model here would invent more of them

    a: Literal[1, 2]
    b: Literal[3, 4]


ADD: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"enum": [1, 2]}, "b": {"enum": [3, 4]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


def tell(**heard: Any) -> None:
    """Print what was heard, as the last line."""
    print(json.dumps(heard))
