"""A draft model that learns, on the device, from what its target said.

The drafter knows one hook (`runtime/draft_hook.py`), and `drafter.py` is what stands behind it.
The life of what is learned:

1. An answer begins: its tenant's adapter, if there is one, gives the session products of its own
   (`drafter.py`, `torch/low_rank.py`).
2. While it runs, what the cloud tells of the target's distributions is noted.
3. It ends: its text is an `Example` (`examples.py`), kept in the tenant's `ReplayBuffer`. The hash
   of its prompt decides whether it trains or validates.
4. No request is open: `Learner` gives the engine thread one training step after the other.
5. After enough tokens (`schedule.py`) the candidate's acceptance on validation texts is compared
   with that of the adapter in use and of the draft model alone (`evaluation.py`).
6. If it rises by more than chance, the candidate becomes the next version (`store.py`), which the
   next answer uses.

`TenantLearning` is 3 to 6 for one tenant. Torch is imported in `torch/` alone.
"""
