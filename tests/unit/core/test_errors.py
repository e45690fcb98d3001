"""Errors say what was wrong, in words and in attributes."""

from tandem.core.errors import InvalidArgument, ProtocolError, TandemError


def test_invalid_argument_names_its_field() -> None:
    error = InvalidArgument("top_p", "2.0 is not in (0, 1]")
    assert isinstance(error, TandemError)
    assert str(error) == "top_p: 2.0 is not in (0, 1]"
    assert (error.field, error.why) == ("top_p", "2.0 is not in (0, 1]")


def test_protocol_error_names_state_and_message() -> None:
    error = ProtocolError("closed", "draft")
    assert isinstance(error, TandemError)
    assert str(error) == "draft in state closed"
    assert str(ProtocolError("open", "verdict", "epoch 3 > 2")).endswith(": epoch 3 > 2")
    assert (error.state, error.message) == ("closed", "draft")
