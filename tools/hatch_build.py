"""Build hook: generates `gen/tandem_api`, and puts the demo pair into a wheel."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

DEMO = ("NOTICE", "demo-documents", "demo-draft", "demo-exits", "demo-target")


class TandemBuildHook(BuildHookInterface[Any]):
    """Runs `tools/build_protos.py` with the build's own interpreter."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        script = Path(self.root) / "tools" / "build_protos.py"
        subprocess.run([sys.executable, str(script)], check=True)
        if version != "editable":  # an editable install finds the demo in the checkout
            demo = {f"models/{name}": f"tandem/demo/{name}" for name in DEMO}
            build_data["force_include"].update(demo)
