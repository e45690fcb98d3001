"""What a finished answer took, as an object that machines read (DESIGN §7).

Invariant: the same names wherever figures are told: the command line, HTTP. Must not import torch.
"""

from __future__ import annotations

from typing import Any

from tandem.rpc.aggregator_client import Generated
from tandem_api.common.v1.generation_pb2 import Summary


def answer_figures(result: Generated) -> dict[str, Any]:
    """Method, times in seconds by this process's clock, counts, bytes; None where there is none."""
    summary = result.summary
    assert summary is not None
    resolved = summary.predraft_hits + summary.predraft_misses
    return {
        "preset": summary.preset,
        "ttft_s": result.ttft_s,
        "tpot_s": result.tpot_s,
        "duration_s": result.duration_s,
        "tokens": summary.tokens,
        "rounds": summary.rounds,
        "drafted": summary.drafted,
        "accepted": summary.accepted,
        "acceptance_rate": summary.accepted / summary.drafted if summary.drafted else None,
        "target_passes": summary.target_passes,
        "uplink_bytes": summary.uplink_bytes,
        "downlink_bytes": summary.downlink_bytes,
        "prompt_tokens": summary.prompt_tokens,
        "resumes": summary.resumes,
        "unverified": result.unverified,
        "links_lost": summary.links_lost,
        "predrafted": summary.predrafted,
        "predraft_hits": summary.predraft_hits,
        "predraft_misses": summary.predraft_misses,
        "predraft_miss_rate": summary.predraft_misses / resolved if resolved else None,
        "early_verdicts": summary.early_verdicts,
        "lossy": summary.lossy,
        **_two_sided_figures(summary),
    }


def _two_sided_figures(summary: Summary) -> dict[str, Any]:
    """Of an answer from documents on two sides; nothing of any other."""
    if not summary.HasField("device"):
        return {}
    return {
        "side_moves": summary.side_moves,
        "fetches": summary.fetches,
        **{
            side: {
                "documents": own.documents,
                "document_tokens": own.document_tokens,
                "drafted": own.drafted,
                "accepted": own.accepted,
                "acceptance_rate": own.accepted / own.drafted if own.drafted else None,
                "decode_s": own.decode_s,
            }
            for side, own in (("device", summary.device), ("cloud", summary.cloud))
        },
    }
