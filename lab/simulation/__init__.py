"""Figures of simulated answers, a link whose speed varies, sessions that share a verifier."""
