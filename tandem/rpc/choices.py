"""Enumerations of protobuf as the choices they stand for. Must not import torch."""

from __future__ import annotations

from typing import Any

from tandem.core.errors import InvalidArgument


def choice_of(table: dict[Any, Any], number: int, field: str) -> Any:
    """The choice with that number; InvalidArgument(field) for an unknown one."""
    for choice, value in table.items():
        if value == number:
            return choice
    raise InvalidArgument(field, f"unknown value {number}")
