"""Transfer of a document's keys and values between decoders (documented in decoding.proto and
aggregator.proto). Invariant: those of one model are never used by another."""

from dataclasses import dataclass

from tandem.core.errors import FailedPrecondition
from tandem.specdec.messages import Frame

KV_PART_BYTES = 60 * 2**10
"""Bytes of a chunk: below the least `max_message_bytes` that a service can be given."""


@dataclass(frozen=True, slots=True)
class KvModel:
    """What makes keys and values: content hashes of weights (with configuration and precision) and
    of the vocabulary; and a name for people, which is not compared."""

    weights: str
    vocabulary_hash: str
    name: str = ""

    def check_used_by(self, user: "KvModel") -> None:
        """Raises KvModelMismatch naming both unless `user` can use what this model makes."""
        if (self.weights, self.vocabulary_hash) != (user.weights, user.vocabulary_hash):
            raise KvModelMismatch(self, user)


class KvModelMismatch(FailedPrecondition):
    """Keys and values of one model were asked for by another."""

    def __init__(self, owner: KvModel, user: KvModel) -> None:
        made, used = (
            f"{model.name or 'a model'} (weights {model.weights[:12] or 'not named'}, vocabulary"
            f" {model.vocabulary_hash[:12]})"
            for model in (owner, user)
        )
        # What to do comes first: the other side cuts long words off.
        super().__init__(
            "document_kv: of another model; fetch the documents' text instead (drcg-text): keys and"
            f" values here are of {made}, there of {used}"
        )


class KvUnavailable(FailedPrecondition):
    """A decoder keeps its documents' keys and values to itself."""


@dataclass(frozen=True, slots=True)
class DocumentKv:
    """A document's keys and values, whose `size_bytes` follow. `document` is the content hash of
    its token ids, of which there are `tokens`; `sha256` the digest of what follows."""

    model: KvModel
    document: str
    tokens: int
    size_bytes: int
    sha256: bytes


KvPart = DocumentKv | bytes
"""What is sent: a description, then chunks."""


@dataclass(frozen=True, slots=True)
class DocumentRequest(Frame):
    """Device to cloud: the keys and values of the document that `opened` named in this place."""

    index: int


@dataclass(frozen=True, slots=True)
class DocumentPart(Frame):
    """Cloud to device: the next part of the requested document."""

    part: KvPart
