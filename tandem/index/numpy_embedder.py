"""Vectors of texts by a BERT encoder without torch: a quarter of the memory, and it loads in a
fraction of a second. Equal to torch's but for rounding, so an index may change between both."""

from collections.abc import Sequence

import numpy as np
from safetensors.numpy import load_file
from threadpoolctl import ThreadpoolController
from tokenizers import Tokenizer

from tandem.core.reading import reading
from tandem.index.bert_encoder import BertEncoder
from tandem.index.model_folder import ModelFolder
from tandem.index.records import Vectors
from tandem.index.token_embedder import TokenEmbedder


class NumpyEmbedder(TokenEmbedder):
    """An `Embedder` by the BERT encoder in a folder."""

    def __init__(self, folder: ModelFolder, threads: int = 1) -> None:
        """Load the model in a folder. Raises InvalidArgument saying what is wrong with it.
        `threads` is for numpy's BLAS, in the whole process."""
        self._first_token = folder.pools_first_token
        ThreadpoolController().select(internal_api="openblas").limit(limits=threads)
        files = sorted(folder.path.glob("*.safetensors"))
        with reading(folder.path, "embedding"):
            if not files:
                raise FileNotFoundError("it has no file *.safetensors")
            weights = {name: each for file in files for name, each in load_file(file).items()}
            self._encoder = BertEncoder(folder.config, weights)
            tokenizer = Tokenizer.from_file(str(folder.path / "tokenizer.json"))
        super().__init__(
            folder,
            tokenizer,
            longest=min(folder.max_length or self._encoder.longest, self._encoder.longest),
            dimension=self._encoder.hidden_size,
            vocabulary_size=int(folder.config["vocab_size"]),
            unknown_id=tokenizer.token_to_id("[UNK]"),
        )

    def _pooled(self, marked: Sequence[Sequence[int]]) -> Vectors:
        states = self._encoder.states(marked)
        return np.stack([each[0] if self._first_token else each.mean(0) for each in states])
