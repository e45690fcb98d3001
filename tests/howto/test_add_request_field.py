"""The how-to of `tandem/generation/request.py`: a field of a request is added by touching the files
that it names, and no others; never more than four."""

import re
from pathlib import Path

from tandem.generation import request
from tests.howto.edited_checkout import EditedCheckout

GENERATION_PROTO = "protos/tandem_api/common/v1/generation.proto"
SAMPLING_PROTO = "protos/tandem_api/common/v1/sampling.proto"
SAMPLING = "tandem/core/probs.py"
CODEC = "tandem/wire/common_codec.py"
REQUEST = "tandem/generation/request.py"
TABLE = "tandem/generation/request_fields.py"
PATIENCE = """\
    patience: Annotated[int, "Rounds to wait.", Field(ge=0, le=9)]
"""
IN_TANDEM = '''\
    """Over HTTP these stand in the object `tandem`."""

'''
TOP_A = """\
    top_a: Annotated[float, "Exclude by the square.", Field(ge=0, le=1)]
"""
IN_THE_BODY = '''\
    """Over HTTP these stand in the body beside OpenAI's, under the names that vLLM gives them."""

'''
ALL_CALLERS = """\
import json
import sys
from pathlib import Path

import tandem
from tandem.api.options import request_of
from tandem.commands.generate import build_request, generate
from tandem.gateway.request_reading import RequestLimits, completion_requests
from tandem.gateway.schema import CompletionRequest
from tandem.generation.request import request_from_proto, request_to_proto

assert Path(tandem.__file__).is_relative_to(Path.cwd()), tandem.__file__
field, *values, words, in_body = sys.argv[1:]
flag = "--" + field.replace("_", "-")
command = generate.make_context("generate", ["--raw", "--prompt", "a", flag, values[0]])
body = {"model": "m", "prompt": "a", **json.loads(in_body)}
(over_http,) = completion_requests(CompletionRequest.model_validate(body), RequestLimits())
from_python = request_of("a", {field: json.loads(values[1])})
assert words in generate.get_help(command)
assert words in json.dumps(CompletionRequest.model_json_schema())
assert field in tandem.GenerationOptions.__annotations__
for request in (build_request(command.params), over_http, from_python):
    sent = request_from_proto(request_to_proto(request))
    print(getattr(sent if hasattr(sent, field) else sent.params.sampling, field))
"""


def test_a_field_is_added_in_the_named_files(tmp_path: Path) -> None:
    """Every kind of caller can say it, and it travels."""
    checkout = EditedCheckout(tmp_path, "tandem", "protos", "tools")
    checkout.insert_after(
        GENERATION_PROTO, "  bool token_texts = 21;\n", "  uint32 patience = 22;\n"
    )
    checkout.insert_after(REQUEST, "    token_texts: bool = False\n", "    patience: int = 0\n")
    checkout.insert_after(TABLE, IN_TANDEM, PATIENCE)
    checkout.build_protos()
    named = re.findall(r"^\d\. (\S+):", request.__doc__ or "", re.MULTILINE)
    assert checkout.changed() == set(named) == {GENERATION_PROTO, REQUEST, TABLE}
    in_body = '{"tandem": {"patience": 4}}'
    said = checkout.run("-c", ALL_CALLERS, "patience", "3", "5", "Rounds to wait.", in_body)
    assert said == "3\n4\n5\n"


def test_a_sampling_setting_is_added_in_four_files(tmp_path: Path) -> None:
    """It reaches the cloud too, with what every session is opened with."""
    checkout = EditedCheckout(tmp_path, "tandem", "protos", "tools")
    checkout.insert_after(
        SAMPLING_PROTO, "  optional float typical_p = 5;\n", "  float top_a = 6;\n"
    )
    checkout.insert_after(SAMPLING, "    typical_p: float = 1.0\n", "    top_a: float = 0.0\n")
    checkout.insert_after(
        CODEC, "        min_p=sampling.min_p,\n", "        top_a=sampling.top_a,\n"
    )
    checkout.insert_after(CODEC, "        typical_p=typical_p,\n", "        top_a=message.top_a,\n")
    checkout.insert_after(TABLE, IN_THE_BODY, TOP_A)
    checkout.build_protos()
    assert checkout.changed() == {SAMPLING_PROTO, SAMPLING, CODEC, TABLE}
    in_body = '{"top_a": 0.5}'
    said = checkout.run(
        "-c", ALL_CALLERS, "top_a", "0.25", "0.75", "Exclude by the square.", in_body
    )
    assert said == "0.25\n0.5\n0.75\n"
