"""The verifiers that a drafter knows, in order of preference: named by a setting, or by a file that
others keep up to date. Invariant: at least one is named, and none twice.

    a.example.com:50051
    dns:///verifiers.eu:50051    # a name with replicas
"""

from collections.abc import Iterable
from pathlib import Path

from tandem.core.errors import InvalidArgument
from tandem.net.addresses import addresses_of, check_addresses
from tandem.net.reloaded import BadFile, Reloaded, read_file

MOST_CLOUDS = 64
"""Each is asked for its health twice a second; more replicas than that belong behind one name."""


def clouds_of(text: str) -> tuple[str, ...]:
    """Parse a setting with commas between addresses; `ipv4:…` and `ipv6:…` are one with replicas.
    Raises InvalidArgument."""
    return _listed(addresses_of(text))


def clouds_in(path: Path) -> Reloaded[tuple[str, ...]]:
    """Parse a file with one address per line, and follow its changes. Raises BadFile."""

    def read() -> tuple[str, ...]:
        try:
            lines = read_file(path).decode().splitlines()
            return _listed(line.partition("#")[0] for line in lines)
        except UnicodeDecodeError:
            raise BadFile(path, "is not a text file") from None
        except InvalidArgument as error:
            raise BadFile(path, error.why) from None

    return Reloaded((path,), read)


def _listed(entries: Iterable[str]) -> tuple[str, ...]:
    try:
        addresses = dict.fromkeys(check_addresses(each.strip()) for each in entries if each.strip())
    except ValueError as error:
        raise InvalidArgument("verifier", str(error)) from None
    if not 1 <= len(addresses) <= MOST_CLOUDS:
        many = f"names more than {MOST_CLOUDS} verifiers"
        raise InvalidArgument("verifier", many if addresses else "must name a verifier")
    return tuple(addresses)
