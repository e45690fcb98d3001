"""Figures of simulated answers, a link whose speed varies, fleets of edges and verifiers."""
