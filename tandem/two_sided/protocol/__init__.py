"""The pure half: mixture arithmetic, presets, state machines, side scheduler, profiler."""
