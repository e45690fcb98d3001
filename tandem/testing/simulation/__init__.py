"""Requests in virtual time: real machines, modelled links, distributions of a pair."""
