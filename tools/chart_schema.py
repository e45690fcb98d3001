"""Write which settings each component of the Helm chart takes into its values.schema.json.

`python -m tools.chart_schema`; a test says when the file is not current. Settings that the chart
itself derives from other values are left out, so that no value says a thing twice.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tandem.services.aggregator.config import AggregatorSettings
from tandem.services.drafter.config import DrafterSettings
from tandem.services.retriever.config import RetrieverSettings
from tandem.services.verifier.config import VerifierSettings
from tandem.settings import ServiceSettings

SCHEMA = Path(__file__).resolve().parents[1] / "deploy/k8s/tandem/values.schema.json"

COMPONENTS: dict[str, type[ServiceSettings]] = {
    "verifier": VerifierSettings,
    "cloudRetriever": RetrieverSettings,
    "cloudAggregator": AggregatorSettings,
    "drafter": DrafterSettings,
    "edgeRetriever": RetrieverSettings,
    "edgeAggregator": AggregatorSettings,
}

OF_THE_CHART = {
    *("host", "port", "health_port", "metrics_host", "metrics_port", "drain_s", "log_level"),
    *("insecure", "tls_certificate", "tls_key", "tls_ca", "keys_file", "call_key_file"),
    "cloud_key_file",
    *("verifier", "drafter", "folder", "role", "own_side", "side"),
    *("http", "http_host", "http_port", "http_hosts", "http_keys_file"),
    *("device", "document_kv_folder"),
    *("target_url", "target_key_file", "target_ca"),
}
"""Derived from the chart's own values."""


def with_settings(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with the names of today's settings."""
    schema["$defs"].pop("settings", None)
    for component, model in COMPONENTS.items():
        schema["properties"][component]["properties"]["settings"] = {
            "type": "object",
            "description": "Settings of the service by name, but for those that the chart sets.",
            "propertyNames": {"enum": sorted(set(model.model_fields) - OF_THE_CHART)},
            "additionalProperties": {"type": ["string", "number", "boolean"]},
        }
    return schema


def to_json(schema: dict[str, Any]) -> str:
    return json.dumps(schema, indent=2) + "\n"


if __name__ == "__main__":
    SCHEMA.write_text(to_json(with_settings(json.loads(SCHEMA.read_text()))))
