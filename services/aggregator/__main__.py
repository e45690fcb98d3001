"""`python -m services.aggregator`: the aggregator as a process."""

from __future__ import annotations

from services.aggregator.config import AggregatorSettings
from services.aggregator.servicer import AggregatorServicer
from tandem.rpc.process import run_service

if __name__ == "__main__":
    run_service(AggregatorSettings, AggregatorServicer, side="device")
