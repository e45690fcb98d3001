"""The bar of a command that moves files."""

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)


def progress_bar(*, silent: bool, speed: bool = False) -> Progress:
    """Return a bar on standard error, which goes when it is full; nothing is shown if it is
    `silent` or there is no terminal. `speed`: with bytes per second."""
    console = Console(stderr=True)
    speeds = (TransferSpeedColumn(),) if speed else ()
    return Progress(
        TextColumn("[progress.description]{task.description}"),
        BarColumn(),
        DownloadColumn(),
        *speeds,
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=silent or not console.is_terminal,
    )
