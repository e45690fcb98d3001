"""A body as FastAPI reads it for a handler."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ValidationError

from tandem.gateway.body_parsing import parse_json
from tandem.gateway.errors import validation_error

Body = TypeVar("Body", bound=BaseModel)


def parse_body(raw: bytes, kind: type[Body], max_ids: int) -> Body:
    """`raw` as a `kind`; raises ApiError as a request would be refused."""
    content = parse_json(raw, max_ids)
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise validation_error(error.errors(include_url=False)) from None
