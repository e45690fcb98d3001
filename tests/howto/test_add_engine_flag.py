"""The how-to of `tandem/backends/interface.py`: a capability is added in two files, and no engine
has it by accident."""

from pathlib import Path

from tandem.backends import interface
from tandem.demo import demo_folder
from tests.howto.edited_checkout import EditedCheckout

INTERFACE = "tandem/backends/interface.py"
ENGINE = "tandem/backends/remote/engine.py"
FIELD = '''\
    prompt_scores: bool = False
    """A pass may score the tokens it feeds."""
'''
WHO_HAS_IT = """\
import sys
from pathlib import Path

import tandem
from tandem.backends.factory import load_model
from tandem.backends.model_source import ModelChoice
from tandem.backends.remote.engine import RemoteEngine
from tandem.testing.scripted import load

assert Path(tandem.__file__).is_relative_to(Path.cwd()), tandem.__file__
torch = load_model(ModelChoice(sys.argv[1])).engine
scripted = load(ModelChoice("1")).engine
engines = {
    "torch": torch,
    "scripted": scripted,
    "remote": RemoteEngine,
}
print([name for name, engine in engines.items() if "prompt_scores" in engine.capabilities.names])
"""


def test_a_capability_is_added_in_two_files(tmp_path: Path) -> None:
    checkout = EditedCheckout(tmp_path, "tandem", "protos", "tools")
    checkout.insert_after(INTERFACE, "class Capabilities:\n" + docstring(), FIELD)
    checkout.insert_after(ENGINE, "capabilities = Capabilities(", "prompt_scores=True, ")
    checkout.build_protos()
    assert checkout.changed() == {INTERFACE, ENGINE}
    assert checkout.run("-c", WHO_HAS_IT, str(demo_folder("demo-draft"))) == "['remote']\n"


def docstring() -> str:
    """What stands between the head of `Capabilities` and its first field."""
    text = Path(interface.__file__).read_text(encoding="utf-8")
    after = text.partition("class Capabilities:\n")[2]
    return after[: after.index("    trees: bool")]
