"""llama.cpp's C interface, as the package xllamacpp exports it: our own declarations of its structs
and functions.

The layouts are those of one version (`llama.h` of ggml 0.26), so that version is pinned, and before
anything else runs the library's own defaults are read back through them: where one does not stand
where it is expected, the library is refused. `TANDEM_LLAMACPP_LIBRARY` names another build of the
same version, for example one for CUDA.
"""

import ctypes
import os
from collections.abc import Mapping
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_bool,
    c_char_p,
    c_float,
    c_int,
    c_int32,
    c_size_t,
    c_uint32,
    c_void_p,
)
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

LIBRARY_VARIABLE = "TANDEM_LLAMACPP_LIBRARY"
PACKAGE = "xllamacpp"
GGML_VERSION = "0.26.0"
"""Of the pinned package; pyproject.toml has its number."""


class ModelParams(Structure):
    """llama_model_params."""

    _fields_ = (
        ("devices", c_void_p),
        ("tensor_buft_overrides", c_void_p),
        ("n_gpu_layers", c_int32),
        ("split_mode", c_int),
        ("load_mode", c_int),
        ("lazy_mode", c_int),
        ("main_gpu", c_int32),
        ("tensor_split", c_void_p),
        ("progress_callback", c_void_p),
        ("progress_callback_user_data", c_void_p),
        ("kv_overrides", c_void_p),
        ("vocab_only", c_bool),
        ("check_tensors", c_bool),
        ("use_extra_bufts", c_bool),
        ("no_host", c_bool),
        ("no_alloc", c_bool),
        ("load_mtp", c_bool),
    )


class ContextParams(Structure):
    """llama_context_params."""

    _fields_ = (
        ("n_ctx", c_uint32),
        ("n_batch", c_uint32),
        ("n_ubatch", c_uint32),
        ("n_seq_max", c_uint32),
        ("n_rs_seq", c_uint32),
        ("n_outputs_max", c_uint32),
        ("n_outputs_max_per_seq", c_uint32),
        ("n_threads", c_int32),
        ("n_threads_batch", c_int32),
        ("ctx_type", c_int),
        ("rope_scaling_type", c_int),
        ("pooling_type", c_int),
        ("attention_type", c_int),
        ("flash_attn_type", c_int),
        ("rope_freq_base", c_float),
        ("rope_freq_scale", c_float),
        ("yarn_ext_factor", c_float),
        ("yarn_attn_factor", c_float),
        ("yarn_beta_fast", c_float),
        ("yarn_beta_slow", c_float),
        ("yarn_orig_ctx", c_uint32),
        ("defrag_thold", c_float),
        ("cb_eval", c_void_p),
        ("cb_eval_user_data", c_void_p),
        ("type_k", c_int),
        ("type_v", c_int),
        ("abort_callback", c_void_p),
        ("abort_callback_data", c_void_p),
        # One pointer more than the last release of llama.h had. It is left as the library sets it.
        ("further_callback", c_void_p),
        ("embeddings", c_bool),
        ("offload_kqv", c_bool),
        ("no_perf", c_bool),
        ("op_offload", c_bool),
        ("swa_full", c_bool),
        ("kv_unified", c_bool),
        ("samplers", c_void_p),
        ("n_samplers", c_size_t),
        ("ctx_other", c_void_p),
    )


class Batch(Structure):
    """llama_batch: addresses of arrays with one element a token."""

    _fields_ = (
        ("n_tokens", c_int32),
        ("token", c_void_p),
        ("embd", c_void_p),
        ("pos", c_void_p),
        ("n_seq_id", c_void_p),
        ("seq_id", c_void_p),
        ("logits", c_void_p),
    )


LogCallback = CFUNCTYPE(None, c_int, c_char_p, c_void_p)

_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "ggml_version": (c_char_p, ()),
    "llama_backend_init": (None, ()),
    "llama_context_default_params": (ContextParams, ()),
    "llama_decode": (c_int32, (c_void_p, Batch)),
    "llama_free": (None, (c_void_p,)),
    "llama_get_logits": (POINTER(c_float), (c_void_p,)),
    "llama_get_memory": (c_void_p, (c_void_p,)),
    "llama_init_from_model": (c_void_p, (c_void_p, ContextParams)),
    "llama_log_set": (None, (LogCallback, c_void_p)),
    "llama_memory_seq_cp": (None, (c_void_p, c_int32, c_int32, c_int32, c_int32)),
    "llama_memory_seq_rm": (c_bool, (c_void_p, c_int32, c_int32, c_int32)),
    "llama_model_chat_template": (c_char_p, (c_void_p, c_char_p)),
    "llama_model_default_params": (ModelParams, ()),
    "llama_model_free": (None, (c_void_p,)),
    "llama_model_get_vocab": (c_void_p, (c_void_p,)),
    "llama_model_has_encoder": (c_bool, (c_void_p,)),
    "llama_model_is_diffusion": (c_bool, (c_void_p,)),
    "llama_model_is_hybrid": (c_bool, (c_void_p,)),
    "llama_model_is_recurrent": (c_bool, (c_void_p,)),
    "llama_model_load_from_file": (c_void_p, (c_char_p, ModelParams)),
    "llama_model_meta_val_str": (c_int32, (c_void_p, c_char_p, c_char_p, c_size_t)),
    "llama_model_n_ctx_train": (c_int32, (c_void_p,)),
    "llama_model_n_embd": (c_int32, (c_void_p,)),
    "llama_model_n_head": (c_int32, (c_void_p,)),
    "llama_model_n_layer": (c_int32, (c_void_p,)),
    "llama_set_n_threads": (None, (c_void_p, c_int32, c_int32)),
    "llama_supports_gpu_offload": (c_bool, ()),
    "llama_token_to_piece": (c_int32, (c_void_p, c_int32, c_char_p, c_int32, c_int32, c_bool)),
    "llama_tokenize": (
        c_int32,
        (c_void_p, c_char_p, c_int32, POINTER(c_int32), c_int32, c_bool, c_bool),
    ),
    "llama_vocab_bos": (c_int32, (c_void_p,)),
    "llama_vocab_eos": (c_int32, (c_void_p,)),
    "llama_vocab_get_attr": (c_int, (c_void_p, c_int32)),
    "llama_vocab_get_text": (c_char_p, (c_void_p, c_int32)),
    "llama_vocab_is_eog": (c_bool, (c_void_p, c_int32)),
    "llama_vocab_n_tokens": (c_int32, (c_void_p,)),
    "llama_vocab_type": (c_int, (c_void_p,)),
}
"""Result and arguments of each function that is called, as in llama.h."""

_EXPECTED_MODEL = {
    "split_mode": 1,
    "main_gpu": 0,
    "vocab_only": False,
    "check_tensors": False,
    "use_extra_bufts": True,
    "no_host": False,
    "no_alloc": False,
}
_EXPECTED_CONTEXT = {
    "n_ctx": 512,
    "n_batch": 2048,
    "n_ubatch": 512,
    "n_seq_max": 1,
    "rope_scaling_type": -1,
    "pooling_type": -1,
    "attention_type": -1,
    "flash_attn_type": -1,
    "yarn_beta_fast": -1.0,
    "defrag_thold": -1.0,
    "type_k": 1,
    "type_v": 1,
    "embeddings": False,
    "offload_kqv": True,
    "no_perf": True,
    "op_offload": True,
    "swa_full": True,
    "kv_unified": False,
    "samplers": None,
    "n_samplers": 0,
    "ctx_other": None,
}


@cache
def library() -> Any:
    """Return llama.cpp's library, with the result and argument types of each function declared.

    Raises ImportError, in one line, where there is none, or not the version that is declared here.
    """
    path = find_library()
    try:
        loaded = ctypes.CDLL(str(path))
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(loaded, name)
            function.restype = result
            function.argtypes = arguments
    except (OSError, AttributeError) as error:
        raise ImportError(f"{path} is no llama.cpp that can be used: {error}") from error
    version = loaded.ggml_version().decode("utf-8", "replace")
    if version != GGML_VERSION:
        raise ImportError(f"{path} has ggml {version}, and {GGML_VERSION} is needed")
    _check_layout(path, loaded.llama_model_default_params(), _EXPECTED_MODEL)
    _check_layout(path, loaded.llama_context_default_params(), _EXPECTED_CONTEXT)
    return loaded


def find_library() -> Path:
    """Return the file that `library` loads. Raises ImportError where there is none."""
    named = os.environ.get(LIBRARY_VARIABLE)
    if named:
        return Path(named)
    # The package itself is not imported: its Python interface is not used.
    spec = find_spec(PACKAGE)
    for folder in (spec and spec.submodule_search_locations) or ():
        for path in sorted(Path(folder).glob(f"{PACKAGE}*")):
            if path.suffix in (".so", ".dylib", ".pyd"):
                return path
    raise ImportError(f"{PACKAGE} is not installed")


def is_installed() -> bool:
    """Return whether there is a library, of any version."""
    try:
        find_library()
    except ImportError:
        return False
    return True


def _check_layout(path: Path, defaults: Structure, expected: Mapping[str, object]) -> None:
    for name, value in expected.items():
        found = getattr(defaults, name)
        if found != value:
            kind = type(defaults).__name__
            why = f"its {kind}.{name} is {found!r} where {value!r} is expected"
            raise ImportError(f"{path} is another version of llama.cpp: {why}")
