"""Build hook: generate `gen/tandem_api` before a wheel or an editable install is made."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ProtoBuildHook(BuildHookInterface[Any]):
    """Runs `tools/build_protos.py` with the build's own interpreter."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        script = Path(self.root) / "tools" / "build_protos.py"
        subprocess.run([sys.executable, str(script)], check=True)
