"""The verifiers that a drafter is told of: by a setting, or by a file that others keep up to date.
Invariant: at least one is named, and none twice.

    a.example.com:50051 price=0.8
    dns:///verifiers.eu:50051 price=1.1    # a name with replicas
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tandem.core.errors import InvalidArgument
from tandem.net.addresses import addresses_of, check_addresses
from tandem.net.reloaded import BadFile, Reloaded, read_file

MOST_CLOUDS = 1024


@dataclass(frozen=True, slots=True)
class ListedCloud:
    """`price`: of a second of its model, in any currency; 0: what it says itself."""

    address: str
    price: float = 0.0


def clouds_of(text: str) -> tuple[ListedCloud, ...]:
    """Parse a setting with commas between clouds; `ipv4:…` and `ipv6:…` are one with replicas.
    Raises InvalidArgument."""
    return listed_in(addresses_of(text))


def clouds_in(path: Path) -> Reloaded[tuple[ListedCloud, ...]]:
    """Parse a file with one cloud per line, and follow its changes. Raises BadFile."""

    def read() -> tuple[ListedCloud, ...]:
        try:
            lines = read_file(path).decode().splitlines()
            return listed_in(line.partition("#")[0] for line in lines)
        except UnicodeDecodeError:
            raise BadFile(path, "is not a text file") from None
        except InvalidArgument as error:
            raise BadFile(path, error.why) from None

    return Reloaded((path,), read)


def listed_in(entries: Iterable[str]) -> tuple[ListedCloud, ...]:
    """Parse entries of the form ADDRESS [price=PRICE]; empty ones are skipped."""
    clouds: dict[str, ListedCloud] = {}
    for entry in entries:
        if words := entry.split():
            cloud = _cloud(*words)
            clouds.setdefault(cloud.address, cloud)
    if not 1 <= len(clouds) <= MOST_CLOUDS:
        few = "must name a verifier" if not clouds else f"names more than {MOST_CLOUDS} verifiers"
        raise InvalidArgument("verifier", few)
    return tuple(clouds.values())


def _cloud(address: str, *words: str) -> ListedCloud:
    price = 0.0
    for word in words:
        name, _, value = word.partition("=")
        try:
            price = float(value)
        except ValueError:
            price = math.nan
        if name != "price" or not 0 <= price < math.inf:
            why = f"{address}: {word[:40]!r} must be price=NUMBER, at least 0"
            raise InvalidArgument("verifier", why)
    try:
        return ListedCloud(check_addresses(address), price)
    except ValueError as error:
        raise InvalidArgument("verifier", str(error)) from None
