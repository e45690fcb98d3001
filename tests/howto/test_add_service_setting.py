"""ARCHITECTURE.md, "… a setting of a service": two files, and flag, variable, file, help and
reference have it."""

from pathlib import Path

from tests.howto.edited_checkout import EditedCheckout

CONFIG = "tandem/services/retriever/config.py"
MAIN = "tandem/services/retriever/__main__.py"
FIELD = """
    politeness: int = Field(
        default=0,
        ge=0,
        le=19,
        description="How much this process yields to others.",
        json_schema_extra={"group": "Limits", "usual": True},
    )
"""
READ = """

def politeness(settings: RetrieverSettings) -> int:
    return settings.politeness
"""
USES_IT = """\
import os
import sys
from pathlib import Path

import tandem
from tandem.cli import main
from tandem.services.retriever import __main__ as retriever
from tandem.services.retriever.config import RetrieverSettings
from tandem.settings import load_settings, parse_flags
from tools.reference import configuration

assert Path(tandem.__file__).is_relative_to(Path.cwd()), tandem.__file__
os.environ["TANDEM_POLITENESS"] = "3"
print(retriever.politeness(load_settings(RetrieverSettings, {})))
flags = parse_flags(RetrieverSettings, ["--politeness", "4"])
print(retriever.politeness(load_settings(RetrieverSettings, flags)))
assert "| `--politeness` | integer (≥ 0, ≤ 19)" in configuration()
main(["serve", "retriever", "--help"])
"""


def test_a_setting_is_added_in_two_files(tmp_path: Path) -> None:
    checkout = EditedCheckout(tmp_path, "tandem", "protos", "tools")
    doc = '    """Settings of the retriever; `tandem.settings` says where they come from."""\n'
    checkout.insert_after(CONFIG, doc, FIELD)
    checkout.insert_after(MAIN, "from tandem.telemetry.tracing import open_tracing\n", READ)
    checkout.build_protos()
    assert checkout.changed() == {CONFIG, MAIN}
    variable, flag, *help_lines = checkout.run("-c", USES_IT).splitlines()
    assert (variable, flag) == ("3", "4")
    limits = help_lines[help_lines.index("Limits:") :]
    assert any("--politeness VALUE" in line and "yields to others" in line for line in limits)
