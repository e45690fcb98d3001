"""A client that somebody generates from the OpenAPI document works, in an environment that knows
nothing of Tandem."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.gateway.http_suite import KEY, MODEL, http_suite

CALLER = """
import json, sys
from generated import AuthenticatedClient
from generated.api.default import chat, complete, detokenize, models, ready, respond, tokenize
from generated.models import (
    ChatCompletionRequest, CompletionRequest, DetokenizeRequest, ErrorBody, Message, MessageRole,
    ReadyAnswer, ResponsesRequest, TandemOptions, TokenizeRequest,
)

url, key, model = sys.argv[1:]
talk = [Message(role=MessageRole.USER, content="hello")]
with AuthenticatedClient(base_url=url, token=key) as client:
    assert ready.sync(client=client) == ReadyAnswer(status="ready"), ready.sync(client=client)
    (card,) = models.sync(client=client).data
    body = ChatCompletionRequest(model=model, messages=talk, max_tokens=6, seed=3, n=2)
    chatted = chat.sync(client=client, body=body)
    options = TandemOptions(preset="dssd", provenance=True)
    texts = CompletionRequest(model=model, prompt=[1, 2], max_tokens=4, seed=1, tandem=options)
    completed = complete.sync(client=client, body=texts)
    asked = ResponsesRequest(model=model, input_="hello", max_output_tokens=6, seed=3)
    responded = respond.sync(client=client, body=asked)
    told = tokenize.sync(client=client, body=TokenizeRequest(model=model, prompt="hello"))
    spelt = detokenize.sync(client=client, body=DetokenizeRequest(model=model, tokens=told.tokens))
    unknown = ChatCompletionRequest(model="other", messages=talk)
    refused = chat.sync_detailed(client=client, body=unknown)
assert refused.status_code == 404 and isinstance(refused.parsed, ErrorBody), refused
assert card.tandem.default_preset in card.tandem.presets
print(json.dumps({
    "model": card.id,
    "chat": [choice.message.content for choice in chatted.choices],
    "cached": chatted.usage.prompt_tokens_details.cached_tokens,
    "preset": completed.choices[0].tandem.preset,
    "sources": [token.source for token in completed.choices[0].tandem.provenance],
    "response": responded.output[0].content[0].text,
    "prompt": spelt.prompt,
    "refused": refused.parsed.error.code,
}))
"""


async def test_a_generated_client_is_answered(
    tmp_path: Path, keys: Path, pytestconfig: pytest.Config
) -> None:
    generator = pytestconfig.getoption("--client-generator")
    if generator is None:
        pytest.skip("make test-openapi has the generator in an environment of its own")
    async with http_suite(key=KEY, http_keys_file=keys) as suite:
        document = tmp_path / "openapi.json"
        document.write_text((await suite.http.get("/openapi.json")).text)
        program = Path(generator).absolute()
        arguments = ("--meta", "none", "--output-path", "generated")
        said = await run(tmp_path, program, "generate", "--path", document, *arguments)
        assert "will not be generated" not in said, said
        assert "Unable" not in said, said
        (tmp_path / "caller.py").write_text(CALLER)
        python = (program.with_name("python"), "-W", "error::SyntaxWarning")
        caller = (*python, "caller.py", suite.url, KEY, MODEL)
        told = json.loads((await run(tmp_path, *caller)).splitlines()[-1])
        talk = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "seed": 3}
        answer = await suite.post("/v1/chat/completions", {**talk, "max_tokens": 6, "n": 2})
    texts = [choice["message"]["content"] for choice in answer.json()["choices"]]
    assert told.pop("sources")
    assert told == {
        "model": MODEL,
        "chat": texts,
        "cached": 0,
        "preset": "dssd",
        "response": texts[0],
        "prompt": "<40><37><44><44><47>",
        "refused": "model_not_found",
    }


async def run(folder: Path, *command: object) -> str:
    """What a program says; it must end well."""
    running = await asyncio.create_subprocess_exec(
        *map(str, command),
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await running.communicate()
    assert running.returncode == 0, said.decode()[-4000:]
    return said.decode()
