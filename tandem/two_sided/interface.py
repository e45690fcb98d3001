"""The one door of answers from documents on two sides (DRAGON): the rest of Tandem imports from
here and from nowhere else in the package.

- Asking: `AGGREGATION_PRESETS` and what a preset says.
- The device's half (`DeviceSession`) and the cloud's (`CloudSession`), each around a `SideMachine`
  and a `DecoderLink`; and documents that only travel (`ImportedDocuments`, `ExportedDocuments`).
- The decoder beside either (`DecodingServicer` on a `DocumentDecoder`).
- What the choice of the aggregating side is made from (`Profiling`, `measure_fit`)."""

from tandem.two_sided.decoding.document_decoder import DocumentDecoder, Documents, documents_of
from tandem.two_sided.decoding.document_files import open_document_files
from tandem.two_sided.many_sides import LastOpened, ManySides, ManySidesMachine, SideStreams
from tandem.two_sided.profiling.decode_fits import (
    FIT_CONTEXT_TOKENS,
    FIT_DOCUMENT_TOKENS,
    StoredFit,
    default_fits_path,
    measure_fit,
    read_fits,
    write_fits,
)
from tandem.two_sided.profiling.profile_sources import Profiling
from tandem.two_sided.profiling.side_metrics import AggregationGauge
from tandem.two_sided.protocol.decoder_messages import ContextDocument, DecodingOpen, DecodingOpened
from tandem.two_sided.protocol.local_drafting import local_drafting
from tandem.two_sided.protocol.messages import (
    AggregationRequest,
    CloudSideMessage,
    CollaborationOpen,
    CollaborationOpened,
    DeviceMessage,
)
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.presets import (
    AGGREGATION_PRESETS,
    MAX_QUERY_CHARACTERS,
    AggregationPreset,
    DocumentTransfer,
    Sources,
    find_aggregation_preset,
)
from tandem.two_sided.protocol.side_machine import SideMachine
from tandem.two_sided.serving.cloud_session import (
    CloudSession,
    CollaborationStream,
    read_opening,
    wrong_side_error,
)
from tandem.two_sided.serving.decoder_link import DecoderEvents, DecoderLink
from tandem.two_sided.serving.decoding_service import DecodingServicer
from tandem.two_sided.serving.device_session import (
    DeviceSession,
    committed_message,
    started_message,
    summary_message,
)
from tandem.two_sided.serving.document_transfer import ExportedDocuments, ImportedDocuments
from tandem.two_sided.serving.peer_codec import CloudSideCodec, DeviceCodec

__all__ = [
    "AGGREGATION_PRESETS",
    "FIT_CONTEXT_TOKENS",
    "FIT_DOCUMENT_TOKENS",
    "MAX_QUERY_CHARACTERS",
    "AggregationGauge",
    "AggregationPreset",
    "AggregationRequest",
    "CloudSession",
    "CloudSideCodec",
    "CloudSideMessage",
    "CollaborationOpen",
    "CollaborationOpened",
    "CollaborationStream",
    "ContextDocument",
    "DecoderEvents",
    "DecoderLink",
    "DecodingOpen",
    "DecodingOpened",
    "DecodingServicer",
    "DeviceCodec",
    "DeviceMessage",
    "DeviceSession",
    "DocumentDecoder",
    "DocumentTransfer",
    "Documents",
    "ExportedDocuments",
    "ImportedDocuments",
    "LastOpened",
    "ManySides",
    "ManySidesMachine",
    "Profiling",
    "Side",
    "SideMachine",
    "SideStreams",
    "Sources",
    "StoredFit",
    "committed_message",
    "default_fits_path",
    "documents_of",
    "find_aggregation_preset",
    "local_drafting",
    "measure_fit",
    "open_document_files",
    "read_fits",
    "read_opening",
    "started_message",
    "summary_message",
    "write_fits",
    "wrong_side_error",
]
