"""Presets of answers from documents with overrides, written as one name."""

from dataclasses import replace

from tandem.specdec.overrides import with_overrides
from tandem.two_sided.protocol.presets import AggregationPreset, find_aggregation_preset


def overridden(method: str) -> AggregationPreset:
    """Return the preset that `method` says, as in "dragon placement=cloud", under that name. Raises
    InvalidArgument."""
    name, *overrides = method.split()
    preset = with_overrides(find_aggregation_preset(name), overrides)
    preset.validate()
    return replace(preset, name=method)
