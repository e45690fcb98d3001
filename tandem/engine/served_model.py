"""What a service with a model makes of its settings beside the engine: its documents, its pace.

Must not import torch or grpc; torch is loaded where the engine was.
"""

from __future__ import annotations

from functools import cache

from tandem.engine.base import Engine, Tokenizer
from tandem.engine.document_decoder import Documents, Rescore
from tandem.engine.document_files import open_document_files
from tandem.engine.paced import PacedEngine
from tandem.settings import ModelSettings


def documents_of(
    settings: ModelSettings,
    model: str,
    engine: Engine,
    tokenizer: Tokenizer | None,
    rescore: Rescore | None,
) -> Documents:
    """What `engine`, of the model of that name, decodes documents with.

    Raises InvalidArgument for a folder that cannot be used.
    """
    from tandem.engine.load import model_hash

    # Once: it reads all of the weights.
    weights = cache(lambda: model_hash(model, settings.dtype, settings.revision))
    files = open_document_files(
        engine, settings.document_kv_folder, weights, settings.document_kv_disk_bytes
    )
    return Documents(tokenizer, settings.document_kv_budget_bytes, files, rescore, weights)


def paced(settings: ModelSettings, engine: Engine) -> Engine:
    """`engine` itself where no pace is declared."""
    if not settings.pace_first_s and not settings.pace_further_s:
        return engine
    return PacedEngine(engine, settings.pace_first_s, settings.pace_further_s)
