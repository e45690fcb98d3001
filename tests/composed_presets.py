"""Presets of answers from documents with overrides, in one word as a test's parameter: "dragon
placement=cloud"."""

from tandem.specdec.overrides import with_overrides
from tandem.two_sided.protocol.presets import AggregationPreset, find_aggregation_preset


def composed(method: str) -> AggregationPreset:
    """The preset as a request with these overrides has it."""
    name, *overrides = method.split()
    preset = with_overrides(find_aggregation_preset(name), overrides)
    preset.validate()
    return preset
