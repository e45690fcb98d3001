"""The verifiers of one drafter: which it knows, where a session goes, how it moves."""
