"""Training of the draft model in `models/real-draft`: a few layers of a target, distilled on the
target's own answers."""
