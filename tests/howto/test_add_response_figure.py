"""ARCHITECTURE.md, "… a figure of answers": two files, and `--json`, HTTP and Python have it."""

from pathlib import Path

from tests.howto.edited_checkout import EditedCheckout

GENERATION_PROTO = "protos/tandem_api/common/v1/generation.proto"
FIGURES = "tandem/generation/figures.py"
LAST_OF_THE_CLOUD = """\
        int, Field(description="Drafts of the cloud that became part of the answer.")
    ]
"""
PAUSES = """\
    pauses: Annotated[int, Field(description="Times that drafting paused.")]
"""
SHOWS_IT = """\
import json
from pathlib import Path
from types import SimpleNamespace

import tandem
from tandem.gateway.openai_answer import ChatCompletion, ChoiceExtension, extension_of
from tandem.generation.client import Generated
from tandem.generation.figures import answer_figures, summary_of

assert Path(tandem.__file__).is_relative_to(Path.cwd()), tandem.__file__
answer = Generated()
answer.end(summary_of(SimpleNamespace(pauses=2), finish_reason="stop"), 1.0)
print(answer_figures(answer)["pauses"])
print(json.loads(ChoiceExtension(**extension_of(answer, 1)).model_dump_json())["pauses"])
print("Times that drafting paused." in json.dumps(ChatCompletion.model_json_schema()))
print("pauses" in tandem.Figures.__dataclass_fields__)
"""


def test_a_figure_is_added_in_two_files(tmp_path: Path) -> None:
    """The totals of whoever counts it travel by its name."""
    checkout = EditedCheckout(tmp_path, "tandem", "protos", "tools")
    checkout.insert_after(
        GENERATION_PROTO, "  string stop_sequence = 70;\n", "  uint32 pauses = 71;\n"
    )
    checkout.insert_after(FIGURES, LAST_OF_THE_CLOUD, PAUSES)
    checkout.build_protos()
    assert checkout.changed() == {GENERATION_PROTO, FIGURES}
    assert checkout.run("-c", SHOWS_IT) == "2\n2\nTrue\nTrue\n"
