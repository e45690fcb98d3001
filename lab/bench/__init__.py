"""Experiments: what each measures, the processes it needs, its table, plots and JSON.

A figure here is measured on the real services as separate processes, or on the real machines and
codecs; what was paced or synthetic says so in its rows.
"""
