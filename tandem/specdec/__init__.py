"""Pure speculative decoding of edge and cloud: presets, rules and both ends' state machines."""
