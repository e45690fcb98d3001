"""A draft model that learns, on the device, from what its target said."""
