"""Early-exit adapters of a model, and the folder they are kept in.

An adapter turns the hidden state after one layer into one that the model's own final norm and head
can read (FSD, Figure 3). A folder holds `exits.safetensors` and `exits.json`, which names the model
the adapters were trained for by the content of its weights. Invariant: adapters of another model
are refused, never tried.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field, TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from tandem.backends.model_files import read_json
from tandem.backends.torch.packed_batch import PackedBatch
from tandem.core.errors import InvalidArgument

FORMAT = 1
DESCRIPTION = "exits.json"
TENSORS = "exits.safetensors"
AUTO = "auto"
NONE = "none"


_Size = Annotated[int, Field(strict=True, ge=1, le=1 << 16)]
_Temperature = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]

Bin = tuple[float, float, int]
"""Mean confidence, share that was right, and how many positions."""


@dataclass(frozen=True, slots=True)
class ExitsDescription:
    """Content of `exits.json`. Exit i reads what layer `layers[i]` (from 0) puts out. `base_hash`:
    `weights_hash` of the model. `agreement`: measured on held-out text, how often each exit's
    likeliest token is the model's own. `temperatures`: what the logits of each exit are divided by
    before its confidence is read; empty: 1 for all.

    The rest is for readers. `calibration_errors` and `reliability`, of each exit without its
    temperature and with it: the expected calibration error, and the bins it is the mean of.
    `held_out_tokens` were measured on. `trained_positions` were learnt from, in texts of `context`
    tokens, in `training_s` seconds on `device`."""

    base_hash: str
    layer_count: Annotated[int, Field(strict=True)]
    hidden_size: _Size
    layers: Annotated[tuple[Annotated[int, Field(strict=True)], ...], Field(min_length=1)]
    rank: _Size
    agreement: tuple[float, ...] = ()
    format: int = FORMAT
    temperatures: tuple[_Temperature, ...] = ()
    calibration_errors: tuple[tuple[float, float], ...] = ()
    reliability: tuple[tuple[tuple[Bin, ...], tuple[Bin, ...]], ...] = ()
    held_out_tokens: int = 0
    trained_positions: int = 0
    context: int = 0
    training_s: float = 0.0
    device: str = ""


_DESCRIBED = TypeAdapter(ExitsDescription)


class ExitAdapter(torch.nn.Module):
    """hidden + size · up · silu(down · hidden / size), size = rms(hidden); at first, hidden itself.
    Dividing by the size makes one learning rate serve every layer of every model."""

    def __init__(self, hidden_size: int, rank: int, seed: int) -> None:
        super().__init__()
        self.down = torch.nn.Parameter(torch.empty(rank, hidden_size))
        self.up = torch.nn.Parameter(torch.zeros(hidden_size, rank))
        generator = torch.Generator().manual_seed(seed)
        torch.nn.init.normal_(self.down, std=hidden_size**-0.5, generator=generator)

    def forward(self, hidden: Tensor) -> Tensor:
        """Apply the adapter to hidden states [rows, hidden_size] -> the same shape and dtype."""
        size = torch.linalg.vector_norm(hidden, dim=-1, keepdim=True, dtype=torch.float32)
        size = (size * hidden.shape[-1] ** -0.5).clamp_min(1e-6).to(hidden.dtype)
        inner = functional.silu(functional.linear(hidden / size, self.down))
        return torch.addcmul(hidden, functional.linear(inner, self.up), size)


@dataclass(frozen=True, slots=True)
class ExitAdapters:
    """All adapters of one model, in the order of their layers."""

    description: ExitsDescription
    adapters: tuple[ExitAdapter, ...]

    @property
    def depths(self) -> tuple[float, ...]:
        """The share of the layers that each exit waits for."""
        about = self.description
        return tuple((layer + 1) / about.layer_count for layer in about.layers)

    @property
    def temperatures(self) -> tuple[float, ...]:
        """What each exit's logits are divided by before its confidence is read."""
        about = self.description
        return about.temperatures or (1.0,) * len(about.layers)

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """Return the parameters by the names that they have in a file."""
        return dict(torch.nn.ModuleList(self.adapters).named_parameters())

    def placed(self, like: Tensor) -> "tuple[PlacedAdapter, ...]":
        return tuple(PlacedAdapter(adapter, like) for adapter in self.adapters)


class PlacedAdapter:
    """An `ExitAdapter` in fewer operations; the mean in its size is moved into the weights."""

    def __init__(self, adapter: ExitAdapter, like: Tensor) -> None:
        with torch.no_grad():
            root = adapter.down.shape[1] ** 0.5
            self._smallest = 1e-6 * root
            self._down = (adapter.down.detach() * root).to(like).t().contiguous()
            self._up = (adapter.up.detach() / root).to(like).t().contiguous()

    def __call__(self, hidden: Tensor) -> Tensor:
        """Apply the adapter to hidden states [rows, hidden_size] -> the same shape and dtype."""
        size = torch.linalg.vector_norm(hidden, dim=-1, keepdim=True, dtype=torch.float32)
        size = size.clamp_min_(self._smallest).to(hidden.dtype)
        inner = functional.silu(torch.mm(hidden / size, self._down), inplace=True)
        return torch.addcmul(hidden, torch.mm(inner, self._up), size)


class EarlyExits:
    """The exits of one model, called by its forward pass after each layer. They read hidden states
    and never write them, so they change nothing in the pass.

    On a device nothing waits for an exit: its logits are copied beside the pass, and what has
    arrived is handed over after the layers that follow."""

    def __init__(self, exits: ExitAdapters, like: Tensor, vocabulary_size: int) -> None:
        """Place the adapters on the device of `like` and in its dtype, which are those of
        activations."""
        self.depths = exits.depths
        self.temperatures = exits.temperatures
        self._adapters = exits.placed(like)
        self._index = {layer: i for i, layer in enumerate(exits.description.layers)}
        self._vocabulary_size = vocabulary_size

    def after(
        self, layer: int, hidden: Tensor, packed: PackedBatch, head: Callable[[Tensor], Tensor]
    ) -> None:
        """Call the requests that read the exit of layer `layer`, which put out `hidden` [tokens,
        size]. `head` takes hidden states [rows, size] to logits [rows, vocabulary], as the model's
        own end does. Only the rows that these requests keep are computed."""
        packed.exit_copies.hand_over()
        index = self._index.get(layer)
        sequences = [one for one in packed.sequences if index in one.exits and one.logits_to_keep]
        if index is None or not sequences:
            return
        count = sum(sequence.logits_to_keep for sequence in sequences)
        rows = hidden if count == len(hidden) else hidden[packed.rows_of(sequences)]
        logits = head(self._adapters[index](rows))[:, : self._vocabulary_size].float()
        first = 0
        for sequence in sequences:
            said = logits[first : first + sequence.logits_to_keep]
            packed.exit_copies.add(said, partial(sequence.on_exit, index))
            first += sequence.logits_to_keep


def new_adapters(description: ExitsDescription, seed: int) -> ExitAdapters:
    """Return untrained adapters. Raises InvalidArgument naming the first invalid field."""
    _described(asdict(description), Path("exits"))
    size = description.hidden_size
    rank = description.rank
    adapters = [ExitAdapter(size, rank, seed * 1000 + i) for i in range(len(description.layers))]
    return ExitAdapters(description, tuple(adapters))


def save_adapters(exits: ExitAdapters, folder: Path) -> None:
    """Write the folder; weights as bfloat16. The description comes last and makes it complete."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: parameter.detach().to("cpu", torch.bfloat16).contiguous()
        for name, parameter in exits.parameters().items()
    }
    partial = folder / (TENSORS + ".partial")
    save_file(tensors, partial)
    partial.chmod(0o644)  # safetensors writes 0600, which another user's container cannot read
    os.replace(partial, folder / TENSORS)
    write_description(exits.description, folder)


def write_description(description: ExitsDescription, folder: Path) -> None:
    """Write what a folder says of itself, a line for each field."""
    lines = (f" {json.dumps(key)}: {json.dumps(value)}" for key, value in _known(description))
    (folder / DESCRIPTION).write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


def _known(description: ExitsDescription) -> Iterable[tuple[str, Any]]:
    """Yield the fields that say something."""
    return ((key, value) for key, value in asdict(description).items() if value not in ((), "", 0))


def load_adapters(folder: Path, base_hash: str, layer_count: int, hidden_size: int) -> ExitAdapters:
    """Return the adapters of a folder. Raises InvalidArgument("exits") for bad ones or another
    model's."""
    description = read_description(folder)
    if description.base_hash != base_hash:
        why = f"base_hash is {description.base_hash[:16]}, this model's is {base_hash[:16]}"
        train = "train them with 'tandem train-exits'"
        raise InvalidArgument("exits", f"{folder} was trained for another model: {why}; {train}")
    for field, wanted in (("layer_count", layer_count), ("hidden_size", hidden_size)):
        if (stated := getattr(description, field)) != wanted:
            why = f"{folder / DESCRIPTION}: {field} is {stated}, the model's is {wanted}"
            raise InvalidArgument("exits", why)
    exits = new_adapters(description, seed=0)
    _fill(exits, folder / TENSORS)
    return exits


def read_description(folder: Path) -> ExitsDescription:
    """Read what a folder says of itself. Raises InvalidArgument("exits")."""
    path = folder / DESCRIPTION
    try:
        content = read_json(path)
    except (OSError, ValueError) as error:
        raise InvalidArgument("exits", f"{path} cannot be read: {error}") from error
    return _described(content, path)


def _described(content: Any, path: Path) -> ExitsDescription:
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InvalidArgument("exits", f"{path}: format is not {FORMAT}")
    try:
        description = _DESCRIBED.validate_python(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise InvalidArgument("exits", f"{path}: {where}: {first['msg']}") from error
    _check(description, str(path))
    return description


def _check(description: ExitsDescription, where: str) -> None:
    layers = description.layers
    last = description.layer_count - 2
    if list(layers) != sorted(set(layers)) or not 0 <= layers[0] <= layers[-1] <= last:
        raise InvalidArgument("exits", f"{where}: layers must ascend within 0..{last}")
    if len(description.temperatures) not in (0, len(layers)):
        raise InvalidArgument("exits", f"{where}: temperatures must be one for each layer")


def _fill(exits: ExitAdapters, path: Path) -> None:
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise InvalidArgument("exits", f"{path} cannot be read: {error}") from error
    parameters = exits.parameters()
    if tensors.keys() != parameters.keys():
        odd = sorted(tensors.keys() ^ parameters.keys())[0]
        raise InvalidArgument("exits", f"{path}: tensor {odd} is missing or unknown")
    for name, parameter in parameters.items():
        tensor = tensors[name]
        if tensor.shape != parameter.shape:
            shapes = f"{list(tensor.shape)}, not {list(parameter.shape)}"
            raise InvalidArgument("exits", f"{path}: {name} has shape {shapes}")
        if not tensor.is_floating_point() or not bool(torch.isfinite(tensor).all()):
            raise InvalidArgument("exits", f"{path}: {name} has values that are not finite")
        with torch.no_grad():
            parameter.copy_(tensor)


def place_beside(model_folder: Path) -> Path:
    """Return where a model's exits lie by default: `x-exits` beside `x-target`, or beside `x`."""
    folder = model_folder.resolve()
    return folder.with_name(folder.name.removesuffix("-target") + "-exits")


def weights_hash(files: Sequence[Path]) -> str:
    """Return a content hash of the tensors in some safetensors files, however the tensors are
    spread over the files. These are read as bytes, so the hash is the same for any precision that a
    model is loaded with. Raises InvalidArgument("model") for a file that is not a safetensors
    file."""
    tensors = sorted(tensor for path in files for tensor in _tensor_hashes(path))
    return hashlib.sha256(json.dumps(tensors).encode()).hexdigest()


def _tensor_hashes(path: Path) -> Iterable[tuple[str, str]]:
    """Yield (name, hash of type, shape and bytes) of each tensor."""
    try:
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118  # it is no mapping
                stored = file.get_slice(name)
                content = hashlib.sha256(f"{stored.get_dtype()}{stored.get_shape()}".encode())
                content.update(file.get_tensor(name).reshape(-1).view(torch.uint8).numpy())
                yield name, content.hexdigest()
    except (OSError, SafetensorError) as error:
        raise InvalidArgument("model", f"{path} cannot be read: {error}") from error
