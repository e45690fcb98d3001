"""The how-to of `tandem/generation/request.py`: a field of a request is added by touching the files
that it names, and no others."""

import re
from pathlib import Path

from tandem.generation import request
from tests.howto.edited_checkout import EditedCheckout

PROTO = "protos/tandem_api/common/v1/generation.proto"
REQUEST = "tandem/generation/request.py"
COMMAND = "tandem/commands/generate.py"
SCHEMA = "tandem/gateway/schema.py"
OPTIONS = "tandem/api/options.py"
OPTION = '@click.option("--patience", type=int, default=0, help="Rounds to wait.")\n'
IN_THE_BODY = """\
    patience: Annotated[int, Field(ge=0)] = Field(default=0, description="Rounds to wait.")
"""
KEYWORD = """\
    patience: int
"""
ALL_CALLERS = """\
from pathlib import Path

import tandem
from tandem.api.options import request_of
from tandem.commands.generate import build_request, generate
from tandem.gateway.request_reading import RequestLimits, completion_requests
from tandem.gateway.schema import CompletionRequest
from tandem.generation.request import request_from_proto, request_to_proto

assert Path(tandem.__file__).is_relative_to(Path.cwd()), tandem.__file__
command = generate.make_context("generate", ["--prompt", "a", "--patience", "3"])
body = {"model": "m", "prompt": "a", "tandem": {"patience": 4}}
(over_http,) = completion_requests(CompletionRequest.model_validate(body), RequestLimits())
requests = (build_request(command.params), over_http, request_of("a", {"patience": 5}))
print([request_from_proto(request_to_proto(each)).patience for each in requests])
"""


def test_a_field_is_added_in_the_named_files(tmp_path: Path) -> None:
    """Every kind of caller can say it, and it travels."""
    checkout = EditedCheckout(tmp_path, "tandem", "protos", "tools")
    checkout.insert_after(PROTO, "  bool token_texts = 21;\n", "  uint32 patience = 22;\n")
    checkout.insert_after(REQUEST, "    token_texts: bool = False\n", "    patience: int = 0\n")
    checkout.insert_after(COMMAND, "@processor_options\n", OPTION)
    checkout.insert_after(
        SCHEMA, 'changes the distribution\n    of the answer."""\n\n', IN_THE_BODY
    )
    checkout.insert_after(OPTIONS, "class GenerationOptions(TypedDict, total=False):\n", KEYWORD)
    checkout.build_protos()
    named = re.findall(r"^\d\. (\S+):", request.__doc__ or "", re.MULTILINE)
    assert checkout.changed() == set(named)
    assert checkout.run("-c", ALL_CALLERS) == "[3, 4, 5]\n"
