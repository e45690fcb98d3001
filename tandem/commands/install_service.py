"""`tandem install-service`: a service as a unit of systemd, confined to what it needs.

Invariant: what is written starts: flags and variables are checked as the service itself would check
them, before anything is written.
"""

import os
import pwd
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from tandem.commands.keys import PUBLIC, replace_file
from tandem.commands.options import FILE, FOLDER
from tandem.core.errors import InvalidArgument, TandemError
from tandem.net.access import server_access
from tandem.net.process import flags_of
from tandem.services.aggregator.config import AggregatorSettings
from tandem.services.drafter.config import DrafterSettings
from tandem.services.retriever.config import RetrieverSettings
from tandem.services.verifier.config import VerifierSettings
from tandem.settings import ENVIRONMENT_PREFIX, ServiceSettings, load_settings

MODELS: Mapping[str, type[ServiceSettings]] = {
    "verifier": VerifierSettings,
    "drafter": DrafterSettings,
    "aggregator": AggregatorSettings,
    "retriever": RetrieverSettings,
}
UNITS = Path("/etc/systemd/system")
BAD_SETTINGS = 2
"""Exit code of a service whose settings would be as bad the next time."""


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--dry-run", is_flag=True, help="Print the unit and write nothing.")
@click.option(
    "--user",
    default="tandem",
    help="User that runs the service and owns its certificates and keys.",
)
@click.option(
    "--environment-file",
    type=FILE,
    help="File with environment variables of the service, as written by 'tandem enroll'.",
)
@click.option("--unit-folder", type=FOLDER, default=UNITS, help="Folder of the systemd units.")
@click.option("--start/--no-start", default=True, help="Start the service now and at each boot.")
@click.argument("service", type=click.Choice(list(MODELS)))
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
def install_service(
    dry_run: bool,
    user: str,
    environment_file: Path | None,
    unit_folder: Path,
    start: bool,
    service: str,
    flags: tuple[str, ...],
) -> None:
    """Let systemd run SERVICE of this installation: from boot on, again when it fails, and with no
    rights but those it needs. Options stand before SERVICE; FLAGS are the service's own, see
    'tandem serve SERVICE --help'. Called again, it replaces the unit and restarts the service.
    """
    given = {} if environment_file is None else variables_in(environment_file)
    settings = _checked(service, flags, given, with_files=not dry_run)
    unit = Unit(
        service=service,
        user=user,
        flags=flags,
        environment_file=environment_file,
        settings=settings,
    )
    if dry_run:
        click.echo(unit.text(), nl=False)
        return
    _check_user(user)
    path = unit_folder / f"tandem-{service}.service"
    replace_file(path, unit.text().encode(), PUBLIC)
    click.echo(f"wrote {path}")
    if start:
        for words in (("daemon-reload",), ("enable", path.name), ("restart", path.name)):
            _systemctl(*words)
        click.echo(f"started; 'journalctl -u {path.name}' shows what it writes")


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of systemd for one service."""

    service: str
    user: str
    flags: Sequence[str]
    environment_file: Path | None
    settings: ServiceSettings

    def text(self) -> str:
        """Return the content of the unit's file."""
        sections = {"Unit": self._unit(), "Service": self._service(), "Install": _INSTALL}
        parts = (f"[{name}]\n" + "\n".join(lines) for name, lines in sections.items())
        return "\n\n".join(parts) + "\n"

    def _unit(self) -> list[str]:
        return [
            f"Description=Tandem {self.service}",
            "Wants=network-online.target",
            "After=network-online.target",
            # It is tried again for ever: a cloud may be away for hours.
            "StartLimitIntervalSec=0",
        ]

    def _service(self) -> list[str]:
        state = f"tandem/{self.service}"
        command = [sys.executable, "-P", "-m", f"tandem.services.{self.service}", *self.flags]
        lines = [
            "Type=exec",
            f"ExecStart={' '.join(map(_quoted, command))}",
            f"User={self.user}",
            f"StateDirectory={state}",
            "StateDirectoryMode=0700",
            f"WorkingDirectory=%S/{state}",
            f"Environment=OMP_NUM_THREADS=1 HF_HOME=%S/{state}/hub",
            "Restart=always",
            "RestartSec=2",
            f"RestartPreventExitStatus={BAD_SETTINGS}",
            f"TimeoutStopSec={self.settings.drain_s + 10:g}",
            "KillMode=mixed",
            "LimitNOFILE=65536",
            "TasksMax=512",
        ]
        if self.environment_file is not None:
            lines.append(f"EnvironmentFile={self.environment_file.absolute()}")
        return [*lines, *_CONFINED, *self._devices(), *self._folders()]

    def _devices(self) -> list[str]:
        if getattr(self.settings, "device", "cpu") == "cpu":
            return ["PrivateDevices=yes"]
        return ["DevicePolicy=closed", *(f"DeviceAllow={one} rw" for one in _ACCELERATORS)]

    def _folders(self) -> list[str]:
        """Return the line that hides home folders; if the program or a setting lies in one, they
        are read-only instead."""
        values = (getattr(self.settings, name) for name in type(self.settings).model_fields)
        paths = [Path(sys.prefix), *(Path(v) for v in values if isinstance(v, str | Path) and v)]
        homes = any(path.is_relative_to(home) for path in paths for home in ("/home", "/root"))
        return [f"ProtectHome={'read-only' if homes else 'yes'}"]


_INSTALL = ["WantedBy=multi-user.target"]
_ACCELERATORS = ("char-nvidia*", "char-nvidia-uvm", "char-drm", "/dev/kfd")
_CONFINED = [
    "UMask=0077",
    "NoNewPrivileges=yes",
    "CapabilityBoundingSet=",
    "AmbientCapabilities=",
    "ProtectSystem=strict",
    "PrivateTmp=yes",
    "ProtectProc=invisible",
    "ProtectClock=yes",
    "ProtectControlGroups=yes",
    "ProtectHostname=yes",
    "ProtectKernelLogs=yes",
    "ProtectKernelModules=yes",
    "ProtectKernelTunables=yes",
    "LockPersonality=yes",
    "RemoveIPC=yes",
    "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX",
    "RestrictNamespaces=yes",
    "RestrictRealtime=yes",
    "RestrictSUIDSGID=yes",
    "SystemCallArchitectures=native",
    "SystemCallFilter=@system-service",
    "SystemCallFilter=~@privileged",
    "SystemCallErrorNumber=EPERM",
]
"""No new rights, no writing but to its own state, no kernel. Memory may be made executable, since
torch compiles kernels; it reads /proc/cpuinfo, and services raise their limit of descriptors."""


def variables_in(path: Path) -> dict[str, str]:
    """Read NAME=VALUE lines as systemd reads them. Raises InvalidArgument naming a line that is
    none."""
    variables = {}
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if not line.strip() or line.lstrip()[0] in "#;":
            continue
        name, equals, value = line.partition("=")
        if not equals:
            raise InvalidArgument("environment_file", f"{path}: line {number} is not NAME=VALUE")
        variables[name.strip()] = "".join(shlex.split(value))
    return variables


def _checked(
    service: str, flags: Sequence[str], given: Mapping[str, str], with_files: bool
) -> ServiceSettings:
    """Read the settings as the service would; raises its SettingsError."""
    with _environment(given):
        settings = load_settings(MODELS[service], flags_of(MODELS[service], flags))
        if with_files:
            server_access(settings)
    return settings


@contextmanager
def _environment(given: Mapping[str, str]) -> Iterator[None]:
    """Have only `given` of Tandem's variables in the environment while the context is open: those
    of this shell are not the service's."""
    before = dict(os.environ)
    kept = {n: v for n, v in before.items() if not n.upper().startswith(ENVIRONMENT_PREFIX)}
    try:
        os.environ.clear()
        os.environ.update({**kept, **given})
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _quoted(word: str) -> str:
    """Quote a word for a command line of systemd, which gives a meaning to % and $ besides
    quotes."""
    plain = word.replace("\\", "\\\\").replace("%", "%%").replace("$", "$$").replace('"', '\\"')
    return f'"{plain}"' if plain == "" or any(each in plain for each in " \t'\";\\") else plain


def _check_user(user: str) -> None:
    try:
        pwd.getpwnam(user)
    except KeyError:
        made = f"useradd --system --home-dir /var/lib/tandem {user}"
        raise InvalidArgument(
            "user", f"the user {user!r} does not exist; create it: {made}"
        ) from None


def _systemctl(*words: str) -> None:
    done = subprocess.run(["systemctl", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise TandemError(f"systemctl {' '.join(words)}: {done.stderr.strip() or done.returncode}")
