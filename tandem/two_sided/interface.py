"""The one door of answers from documents on two sides (DRAGON): the rest of Tandem imports from
here and from nowhere else in the package.

- What can be asked for: `AGGREGATION_PRESETS`, by their names; `find_aggregation_preset` gives the
  `AggregationPreset` of one. A query may have `MAX_QUERY_CHARACTERS`.
- An aggregator answers. At the device `DeviceAnswers` takes a `DeviceRequest` and yields the
  messages for its caller; at the cloud `CloudAnswers` serves the devices' streams. Both are given
  the `ContextDocument`s of their own `Side`, and what `Profiling` knows, by which the aggregating
  side is chosen.
- A decoder stands beside each aggregator: `DecodingServicer` serves a `DocumentDecoder`, which runs
  a service's own model after its `Documents`; `open_document_files` keeps these on disk.
- `profile_decoding` measures how long a model's tokens take, and stores it at `default_fits_path`
  for `Profiling` to read."""

from tandem.two_sided.cloud_answers import CloudAnswers
from tandem.two_sided.decoding.document_decoder import DocumentDecoder, Documents
from tandem.two_sided.decoding.document_files import open_document_files
from tandem.two_sided.device_answers import DeviceAnswers, DeviceRequest
from tandem.two_sided.profiling.decode_fits import default_fits_path, profile_decoding
from tandem.two_sided.profiling.profile_sources import Profiling
from tandem.two_sided.protocol.messages import ContextDocument
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.presets import (
    AGGREGATION_PRESETS,
    MAX_QUERY_CHARACTERS,
    AggregationPreset,
    find_aggregation_preset,
)
from tandem.two_sided.serving.decoding_service import DecodingServicer

__all__ = [
    "AGGREGATION_PRESETS",
    "MAX_QUERY_CHARACTERS",
    "AggregationPreset",
    "CloudAnswers",
    "ContextDocument",
    "DecodingServicer",
    "DeviceAnswers",
    "DeviceRequest",
    "DocumentDecoder",
    "Documents",
    "Profiling",
    "Side",
    "default_fits_path",
    "find_aggregation_preset",
    "open_document_files",
    "profile_decoding",
]
