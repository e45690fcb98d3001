"""Documents' keys and values on their way: plain values to protobuf and back. Invariant: decoding
bounds-checks everything a peer could get wrong and raises InvalidArgument naming the field."""

from tandem.core.errors import InvalidArgument
from tandem.two_sided.protocol.document_kv import KV_PART_BYTES, DocumentKv, KvModel, KvPart
from tandem_api.decoding.v1 import decoding_pb2 as pb

SHA256_BYTES = 32
MAX_HASH_CHARACTERS = 128


def model_to_proto(model: KvModel) -> pb.KvModel:
    return pb.KvModel(
        weights=model.weights, vocabulary_hash=model.vocabulary_hash, model_name=model.name
    )


def model_from_proto(message: pb.KvModel, field: str) -> KvModel:
    """Raises InvalidArgument naming `field`."""
    if not message.weights or not message.vocabulary_hash:
        raise InvalidArgument(field, "names no weights or no vocabulary")
    if max(map(len, (message.weights, message.vocabulary_hash))) > MAX_HASH_CHARACTERS:
        raise InvalidArgument(field, "has longer hashes than there are")
    return KvModel(message.weights, message.vocabulary_hash, message.model_name)


def part_to_proto(part: KvPart) -> pb.DocumentPart:
    if isinstance(part, bytes):
        return pb.DocumentPart(chunk=part)
    kv = pb.DocumentKv(
        model=model_to_proto(part.model),
        document=part.document,
        tokens=part.tokens,
        size_bytes=part.size_bytes,
        sha256=part.sha256,
    )
    return pb.DocumentPart(kv=kv)


def part_from_proto(message: pb.DocumentPart) -> KvPart:
    """Raises InvalidArgument naming the field."""
    match message.WhichOneof("part"):
        case "kv":
            return _kv_from_proto(message.kv)
        case "chunk":
            size = len(message.chunk)
            if not 1 <= size <= KV_PART_BYTES:
                raise InvalidArgument("chunk", f"{size} bytes are not in 1…{KV_PART_BYTES}")
            return message.chunk
    raise InvalidArgument("part", "the frame carries none")


def _kv_from_proto(kv: pb.DocumentKv) -> DocumentKv:
    if len(kv.document) > MAX_HASH_CHARACTERS:
        raise InvalidArgument("document", "is a longer hash than there are")
    for field in ("tokens", "size_bytes"):
        if getattr(kv, field) < 1:
            raise InvalidArgument(field, "must be at least 1")
    if len(kv.sha256) != SHA256_BYTES:
        raise InvalidArgument("sha256", f"has {len(kv.sha256)} bytes, not {SHA256_BYTES}")
    model = model_from_proto(kv.model, "model")
    return DocumentKv(model, kv.document, kv.tokens, kv.size_bytes, kv.sha256)
