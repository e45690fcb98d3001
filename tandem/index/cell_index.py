"""Many vectors in files of a folder, found by cells and codes (`cell_quantizer`) and then compared
exactly. Vectors and codes are mapped, not read: what a search needs stays in the system's cache.

The folder is no second truth beside the store of documents. None of its vectors is found until
`revive` has compared it with the store's; a damaged or missing file makes it as if it were empty.
So nothing needs to be synced, and a folder that is deleted is built again.

    state.json        what belongs together, with checksums; replaced as a whole
    vectors-N.f32     a row of float32 for each vector; a deleted one is zeros
    numbers-N.i64     the number of each row; -1: deleted
    codes-N.faiss     FAISS's IVF-PQ index of the rows that were not deleted when it was written
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from tandem.index import cell_quantizer
from tandem.index.cell_quantizer import Numbers, Rows, Vectors
from tandem.index.folder import make_private, new_private_file
from tandem.telemetry.logging import get_logger

log = get_logger(__name__)

STATE = "state.json"
_FORMAT = 1
_DELETED = -1
_RETRAINED_AT = 2.0
"""So many times the vectors that the cells were trained for."""

Places = NDArray[np.int64]
"""Of rows in the file of vectors."""
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _State:
    """What is in the folder. `coded`: rows that have codes; `probed`: cells that a search looks
    into."""

    dimension: int
    count: int
    coded: int
    trained_for: int
    probed: int
    vectors: str
    numbers: str
    codes: str
    numbers_checksum: int
    codes_checksum: int
    format: int = _FORMAT


class CellIndex:
    """Rows of a folder, of which those are found that are alive. For one thread at a time, except
    that `renewed` may run beside all else."""

    def __init__(self, folder: Path, state: _State, numbers: Numbers, alive: Mask) -> None:
        self._folder = folder
        self._state = state
        self._numbers = numbers
        self._order: Places = np.argsort(numbers, kind="stable")
        self._sorted: Numbers = numbers[self._order]
        mapped = np.memmap(
            folder / state.vectors, np.float32, "r", shape=(state.count, state.dimension)
        )
        self._rows: Vectors = np.asarray(mapped)
        self._codes: Any = faiss.read_index(str(folder / state.codes), faiss.IO_FLAG_MMAP)
        self._alive = alive
        self._bitmap = np.packbits(alive, bitorder="little")
        self._selector = cell_quantizer.selecting(self._bitmap)
        self._count = int(alive.sum())

    @classmethod
    def open(cls, folder: Path, dimension: int) -> CellIndex | None:
        """Return the index of a folder, with no row alive yet; None where there is none that can be
        used."""
        try:
            fields = json.loads((folder / STATE).read_text(encoding="utf-8"))
            state = _State(**fields)
            if (state.format, state.dimension) != (_FORMAT, dimension):
                return None
            raw = (folder / state.numbers).read_bytes()
            numbers = np.frombuffer(raw, "<i8").astype(np.int64)
            whole = (
                zlib.crc32(raw) == state.numbers_checksum
                and _checksum(folder / state.codes) == state.codes_checksum
                and len(numbers) == state.count
            )
            if not whole:
                raise ValueError("a checksum does not match")
            return cls(folder, state, numbers, np.zeros(state.count, np.bool_))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, RuntimeError) as error:  # RuntimeError: of FAISS
            log.warning("vectors are indexed anew", folder=str(folder), reason=str(error))
            return None

    @classmethod
    def built(
        cls, folder: Path, numbers: Numbers, rows: Vectors, target_recall: float
    ) -> CellIndex:
        """Return a new index of these rows, all alive, in the place of what the folder has. Raises
        OSError where there is no room."""
        number = _next_number(folder) if folder.exists() else 1
        index = _trained(folder, [(numbers, rows)], number=number, target_recall=target_recall)
        remove_files(folder, keep=index._state)
        return index

    def __len__(self) -> int:
        """Return the number of rows that are alive."""
        return self._count

    @property
    def erasable(self) -> int:
        """Rows that are not alive and have codes still."""
        return self._state.coded - self._count

    @property
    def cells(self) -> int:
        return int(self._codes.nlist)

    @property
    def probed(self) -> int:
        """Cells that a search looks into."""
        return self._state.probed

    def revive(self, numbers: Numbers, vectors: Vectors) -> Mask:
        """Let those of these vectors be found again that the folder has, equal bit by bit. Return
        which they are."""
        places, known = self._places(numbers)
        same = (self._rows[places[known]] == vectors[known]).all(axis=1)
        known[known] = same
        self._set_alive(places[known], alive=True)
        return known

    def forget(self, numbers: Numbers) -> Mask:
        """Overwrite these vectors, so that they are not found any more. Return which of them were
        alive here."""
        places, known = self._places(numbers)
        known[known] = self._alive[places[known]]
        self._set_alive(places[known], alive=False)
        self._erase(places[known])
        return known

    def erase_dead(self) -> None:
        """Overwrite all rows that are not alive."""
        dead = np.flatnonzero(~self._alive)
        self._erase(dead[self._numbers[dead] != _DELETED])

    def search(self, query: Vectors, count: int) -> list[tuple[int, float]]:
        """Return at most `count` nearest to `query` (dimension,), as (number, inner product)."""
        compared = min(self._count, cell_quantizer.compared_exactly(count))
        if not compared:
            return []
        (codes,) = cell_quantizer.nearest_codes(
            self._codes, query[None, :], compared, self._state.probed, self._selector
        )
        places = np.sort(codes[codes >= 0])
        scores = self._rows[places] @ query
        best = np.argsort(-scores, kind="stable")[:count]
        numbers = self._numbers[places[best]]
        return list(zip(numbers.tolist(), scores[best].tolist(), strict=True))

    def living(self) -> tuple[Numbers, Vectors]:
        """Return all that is alive, as copies."""
        places = np.flatnonzero(self._alive)
        return self._numbers[places], self._rows[places]

    def vectors(self, numbers: Iterable[int]) -> dict[int, Vectors]:
        """Return those of these vectors that are alive here."""
        wanted = np.fromiter(numbers, np.int64)
        places, known = self._places(wanted)
        known[known] = self._alive[places[known]]
        rows = self._rows[places[known]]
        return dict(zip(wanted[known].tolist(), rows, strict=True))

    def renewed(self, numbers: Numbers, rows: Vectors, target_recall: float) -> Renewal:
        """Return an index that has these rows too, and no codes of rows that are not alive. Its
        cells are trained again where there are many more rows than they were trained for, or few
        of them are left. Raises OSError where there is no room."""
        alive = self._alive.copy()
        kept = np.flatnonzero(alive)
        count = len(kept) + len(numbers)
        grown = count >= _RETRAINED_AT * self._state.trained_for
        if grown or _RETRAINED_AT * count <= self._state.count + len(numbers):
            parts: list[tuple[Numbers, Rows]] = [
                (self._numbers[kept], _Taken(self._rows, kept)),
                (numbers, rows),
            ]
            number = _next_number(self._folder)
            index = _trained(self._folder, parts, number=number, target_recall=target_recall)
            return Renewal(index, kept)
        return Renewal(self._extended(numbers, rows, alive), np.arange(self._state.count))

    def take_over(self, renewal: Renewal, still_wanted: Mask) -> CellIndex:
        """Return the renewed index. Nothing is alive there that was forgotten here meanwhile, nor
        those of the added rows for which `still_wanted` is False. Deletes the files of this one."""
        index = renewal.index
        dead = ~np.concatenate([self._alive[renewal.kept], still_wanted])
        index._set_alive(np.flatnonzero(dead), alive=False)
        index.erase_dead()
        remove_files(index._folder, keep=index._state)
        return index

    def _extended(self, numbers: Numbers, rows: Vectors, alive: Mask) -> CellIndex:
        state = self._state
        codes: Any = faiss.read_index(str(self._folder / state.codes))  # into memory
        living = cell_quantizer.selecting(np.packbits(alive, bitorder="little"))
        codes.remove_ids(faiss.IDSelectorNot(living))
        cell_quantizer.add(codes, rows, state.count)
        with (self._folder / state.vectors).open("r+b") as file:
            file.truncate(4 * state.dimension * state.count)
            file.seek(0, 2)
            file.write(np.ascontiguousarray(rows, np.float32).tobytes())
        every = np.concatenate([np.where(alive, self._numbers, _DELETED), numbers])
        state = _written(
            folder=self._folder,
            number=_next_number(self._folder),
            vectors=state.vectors,
            numbers=every,
            codes=codes,
            trained_for=state.trained_for,
            probed=state.probed,
        )
        still = np.concatenate([alive, np.ones(len(numbers), np.bool_)])
        return CellIndex(self._folder, state, every, still)

    def _places(self, numbers: Numbers) -> tuple[Places, Mask]:
        """Return the place of each number, and whether it has one; else the place means nothing."""
        indices = np.minimum(np.searchsorted(self._sorted, numbers), len(self._sorted) - 1)
        return self._order[indices], self._sorted[indices] == numbers

    def _set_alive(self, places: Places, *, alive: bool) -> None:
        """Mark the rows at `places`, which must be distinct, as alive or not."""
        before = int(self._alive[places].sum())
        self._alive[places] = alive
        self._count += (len(places) if alive else 0) - before
        bits = np.left_shift(1, places & 7).astype(np.uint8)
        if alive:
            np.bitwise_or.at(self._bitmap, places >> 3, bits)
        else:
            np.bitwise_and.at(self._bitmap, places >> 3, ~bits)

    def _erase(self, places: Places) -> None:
        """Overwrite rows with zeros, through the file: a full disk is then an error, not a fault of
        the memory."""
        if not len(places):
            return
        size = 4 * self._state.dimension
        with (self._folder / self._state.vectors).open("r+b") as file:
            for place in places.tolist():
                file.seek(place * size)
                file.write(bytes(size))


@dataclass(frozen=True, slots=True)
class Renewal:
    """An index that is to take over. Its first rows are those of the places `kept` of the old one;
    behind them are those that were added."""

    index: CellIndex
    kept: Places


class _Taken:
    """Some rows of many, as an array that is read block by block."""

    def __init__(self, rows: Vectors, places: Places) -> None:
        self._rows = rows
        self._places = places

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, part: slice) -> Vectors:
        return self._rows[self._places[part]]


def remove_files(folder: Path, keep: _State | None = None) -> None:
    """Delete all files of an index in `folder` but those of `keep`."""
    kept = () if keep is None else (STATE, keep.vectors, keep.numbers, keep.codes)
    for path in [*folder.glob("*-*.*"), folder / STATE]:
        if path.name not in kept:
            with suppress(OSError):
                path.unlink()


def _trained(
    folder: Path,
    parts: Sequence[tuple[Numbers, Rows]],
    *,
    number: int,
    target_recall: float,
) -> CellIndex:
    """Write the rows of all parts to a file, and index them."""
    numbers = np.concatenate([each for each, _ in parts])
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    make_private(folder, 0o700)
    path = folder / f"vectors-{number}.f32"
    new_private_file(path)
    dimension = 0
    with path.open("r+b") as file:
        for _, rows in parts:
            for _, block in cell_quantizer.blocks(rows):
                dimension = block.shape[1]
                file.write(block.astype(np.float32, copy=False).tobytes())
    mapped = np.asarray(np.memmap(path, np.float32, "r", shape=(len(numbers), dimension)))
    codes = cell_quantizer.trained(mapped)
    cell_quantizer.add(codes, mapped, 0)
    state = _written(
        folder=folder,
        number=number,
        vectors=path.name,
        numbers=numbers,
        codes=codes,
        trained_for=len(numbers),
        probed=cell_quantizer.calibrated(codes, mapped, target_recall),
    )
    return CellIndex(folder, state, numbers, np.ones(len(numbers), np.bool_))


def _written(
    *,
    folder: Path,
    number: int,
    vectors: str,
    numbers: Numbers,
    codes: Any,
    trained_for: int,
    probed: int,
) -> _State:
    """Write numbers and codes, and then the state that names them."""
    numbers_path = folder / f"numbers-{number}.i64"
    codes_path = folder / f"codes-{number}.faiss"
    for path in (numbers_path, codes_path):
        new_private_file(path)
    raw = numbers.astype("<i8").tobytes()
    numbers_path.write_bytes(raw)
    try:
        faiss.write_index(codes, str(codes_path))
    except RuntimeError as error:  # FAISS's class for all that goes wrong
        raise OSError(str(error)) from error
    state = _State(
        dimension=codes.d,
        count=len(numbers),
        coded=codes.ntotal,
        trained_for=trained_for,
        probed=probed,
        vectors=vectors,
        numbers=numbers_path.name,
        codes=codes_path.name,
        numbers_checksum=zlib.crc32(raw),
        codes_checksum=_checksum(codes_path),
    )
    new_path = folder / f"{STATE}-{number}.new"
    new_private_file(new_path)
    new_path.write_text(json.dumps(asdict(state)), encoding="utf-8")
    new_path.replace(folder / STATE)
    return state


def _next_number(folder: Path) -> int:
    """Return a number that no file in the folder has."""
    numbers = (path.stem.rpartition("-")[2] for path in folder.glob("*-*.*"))
    return 1 + max((int(number) for number in numbers if number.isdecimal()), default=0)


def _checksum(path: Path) -> int:
    checksum = 0
    with path.open("rb") as file:
        while block := file.read(2**20):
            checksum = zlib.crc32(block, checksum)
    return checksum
