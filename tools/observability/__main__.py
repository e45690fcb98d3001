"""Write every dashboard to a folder: `python -m tools.observability [FOLDER]`."""

from __future__ import annotations

import sys
from pathlib import Path

from tools.observability.dashboards import DASHBOARDS
from tools.observability.grafana import to_json

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "dashboards"


def main(arguments: list[str]) -> None:
    folder = Path(arguments[0]) if arguments else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for dashboard in DASHBOARDS:
        path = folder / f"{dashboard.uid}.json"
        path.write_text(to_json(dashboard), encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main(sys.argv[1:])
