"""Bodies as Claude Code, Codex, Open WebUI and other programs send them: fields that are another
server's business change nothing, and what the model is asked is all that was said."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest

from tandem.core.prompt import Turn
from tandem.generation.request import GenerationRequest
from tests.gateway.http_suite import MODEL, http_to
from tests.gateway.said_answer import Saying

SAID = "It is four."
EPHEMERAL = {"cache_control": {"type": "ephemeral"}}
DRAFT_2020 = "https://json-schema.org/draft/2020-12/schema"
COMMAND = {
    "type": "object",
    "properties": {"command": {"type": "string", "description": "What the shell runs."}},
    "required": ["command"],
    "additionalProperties": False,
}
CALLED = {"command": "cat sum.txt"}

CLAUDE_CODE: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": 32000,
    "stream": True,
    "temperature": 1,
    "metadata": {"user_id": json.dumps({"device_id": "d" * 64, "session_id": "s-1"})},
    "thinking": {"type": "adaptive"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "high"},
    "speed": "fast",
    "system": [
        {"type": "text", "text": "x-billing: cc_version=2.1;"},
        {"type": "text", "text": "You write programs.", **EPHEMERAL},
    ],
    "tools": [
        {
            "name": "Bash",
            "description": "Run a command.",
            "input_schema": {"$schema": DRAFT_2020, **COMMAND},
            "eager_input_streaming": True,
        },
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 8, **EPHEMERAL},
    ],
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "<system-reminder>Be brief.</system-reminder>"},
                {"type": "text", "text": "What is the sum?", **EPHEMERAL},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "I must look.", "signature": "c2ln"},
                {"type": "redacted_thinking", "data": "cmVk"},
                {"type": "text", "text": "I look.", "citations": None},
                {
                    "type": "tool_use",
                    "id": "toolu_1",
                    "name": "Bash",
                    "input": CALLED,
                    "caller": {"type": "direct"},
                },
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_1",
                    "content": [{"type": "text", "text": "2 + 2"}],
                    "is_error": False,
                    **EPHEMERAL,
                }
            ],
        },
        {"role": "system", "content": "The file was read."},
        {"role": "user", "content": "So?"},
    ],
}
CODEX: dict[str, Any] = {
    "model": MODEL,
    "instructions": "You write programs.",
    "input": [
        {
            "type": "message",
            "role": "developer",
            "content": [{"type": "input_text", "text": "The sandbox is read-only."}],
        },
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "What is the sum?"}],
        },
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "Looking."}],
            "content": None,
            "encrypted_content": None,
        },
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "I look."}],
            "phase": "commentary",
        },
        {
            "type": "function_call",
            "id": "fc_1",
            "name": "shell",
            "arguments": json.dumps(CALLED),
            "call_id": "call_1",
        },
        {"type": "function_call_output", "call_id": "call_1", "output": "2 + 2"},
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "So?"}],
        },
    ],
    "tools": [
        {
            "type": "function",
            "name": "shell",
            "description": "Run a command.",
            "strict": False,
            "parameters": COMMAND,
        },
        {
            "type": "custom",
            "name": "apply_patch",
            "description": "Change files.",
            "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "x"'},
        },
        {"type": "web_search", "external_web_access": False},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "service_tier": "auto",
    "prompt_cache_key": "0198-thread",
    "text": {"verbosity": "medium"},
    "client_metadata": {"x-codex-installation-id": "i-1"},
}
PAST_CALL = {
    "index": 0,
    "id": "call_1",
    "type": "function",
    "function": {"name": "shell", "arguments": json.dumps(CALLED)},
}
SHELL = {
    "type": "function",
    "function": {"name": "shell", "description": "Run a command.", "parameters": COMMAND},
}
OPEN_WEBUI: dict[str, Any] = {
    "model": MODEL,
    "stream": True,
    "stream_options": {"include_usage": True},
    "messages": [
        {"role": "system", "content": "You write programs."},
        {"role": "user", "content": [{"type": "text", "text": "What is the sum?"}]},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "I must look.",
            "tool_calls": [PAST_CALL],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "2 + 2"},
        {"role": "user", "content": "So?"},
    ],
    "tools": [SHELL],
    "temperature": 0.8,
    "top_p": 0.9,
    "max_tokens": 128,
    "frequency_penalty": 0,
    "logit_bias": {},
    "user": "somebody@example.org",
    "chat_id": "c-1",
    "session_id": "s-1",
    "id": "m-1",
    "features": {"web_search": False, "image_generation": False},
    "variables": {"{{USER_NAME}}": "Somebody"},
    "model_item": {"id": MODEL, "object": "model"},
    "background_tasks": {"title_generation": True},
    "metadata": {"task": "chat", "files": None},
}
OPEN_WEBUI_TITLE: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Name this chat."}],
    "stream": False,
    "max_completion_tokens": 1000,
    "metadata": {"task": "title_generation", "chat_id": "c-1"},
}
OPEN_WEBUI_OLLAMA: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "So?", "images": []}],
    "stream": True,
    "keep_alive": "5m",
    "options": {"temperature": 0.8, "num_ctx": 2048, "num_predict": 64, "stop": ["END"]},
    "metadata": {"chat_id": "c-1"},
}
LIBRECHAT: dict[str, Any] = {
    "model": MODEL,
    "temperature": 1,
    "top_p": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "n": 1,
    "logprobs": None,
    "stream": True,
    "stream_options": {"include_usage": True},
    "user": "64f0c1",
    "messages": [
        {"role": "system", "content": "You write programs."},
        {"role": "user", "content": [{"type": "text", "text": "What is the sum?"}], "name": "ann"},
        {"role": "assistant", "content": "", "name": "agent", "tool_calls": [PAST_CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "2 + 2", "name": "shell"},
        {"role": "user", "content": "So?"},
    ],
    "tools": [SHELL],
    "tool_choice": "auto",
}
CONTINUE: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": 4096,
    "temperature": 0.5,
    "top_p": None,
    "stop": None,
    "stream": True,
    "stream_options": {"include_usage": True},
    "messages": [
        {"role": "system", "content": "You write programs."},
        {"role": "user", "content": [{"type": "text", "text": "What is the sum?", **EPHEMERAL}]},
        {"role": "assistant", "content": " ", "tool_calls": [PAST_CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "2 + 2"},
        {"role": "user", "content": "So?"},
    ],
    "tools": [SHELL],
    "parallel_tool_calls": False,
}
AIDER: dict[str, Any] = {
    "model": MODEL,
    "temperature": 0,
    "stream": True,
    "messages": [
        {
            "role": "system",
            "content": [{"type": "text", "text": "You write programs.", **EPHEMERAL}],
        },
        {"role": "user", "content": "What is the sum?"},
        {"role": "assistant", "content": "Ok."},
        {"role": "user", "content": "So?"},
    ],
}
PAST = (
    Turn("system", "You write programs."),
    Turn("user", "What is the sum?"),
    Turn("tool", "2 + 2", tool_call_id="call_1"),
    Turn("user", "So?"),
)
"""In each of the three, beside what the assistant said."""


def turns_of(asked: GenerationRequest) -> list[Turn]:
    assert not isinstance(asked.prompt, str)
    return [turn for turn in asked.prompt if isinstance(turn, Turn)]


async def asked_of(path: str, body: dict[str, Any]) -> tuple[GenerationRequest, httpx2.Response]:
    suite = Saying(SAID)
    async with http_to(suite) as http:
        answer = await http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    (asked,) = suite.asked
    return asked, answer


def data_of(answer: httpx2.Response) -> list[dict[str, Any]]:
    lines = (line.removeprefix("data: ") for line in answer.text.splitlines() if "data: " in line)
    return [json.loads(line) for line in lines if line != "[DONE]"]


def check_call(asked: GenerationRequest, name: str, number: str) -> None:
    (turn,) = (turn for turn in turns_of(asked) if turn.tool_calls)
    (call,) = json.loads(turn.tool_calls)
    assert (call["id"], call["function"]["name"]) == (number, name)
    assert json.loads(call["function"]["arguments"]) == CALLED
    (offered,) = json.loads(asked.tools)
    assert offered["function"]["name"] == name, "other kinds of tools are not offered"
    assert offered["function"]["parameters"].items() >= COMMAND.items()


async def test_claude_code() -> None:
    asked, answer = await asked_of("/v1/messages?beta=true", CLAUDE_CODE)
    check_call(asked, "Bash", "toolu_1")
    system, first, assistant, result, note, last = turns_of(asked)
    assert system == Turn("system", "x-billing: cc_version=2.1;You write programs.")
    words = "<system-reminder>Be brief.</system-reminder>What is the sum?"
    assert first == Turn("user", words)
    assert (assistant.content, assistant.reasoning_content) == ("I look.", "I must look.")
    assert result == Turn("tool", "2 + 2", tool_call_id="toolu_1")
    assert (note, last) == (Turn("system", "The file was read."), Turn("user", "So?"))
    assert asked.params.max_tokens == 32000
    assert json.loads(asked.chat_template_kwargs) == {"reasoning_effort": "high"}
    events = data_of(answer)
    pieces = (each["delta"] for each in events if each["type"] == "content_block_delta")
    assert "".join(each["text"] for each in pieces) == SAID
    assert events[-2]["delta"]["stop_reason"] == "end_turn"


async def test_codex() -> None:
    asked, answer = await asked_of("/v1/responses", CODEX)
    check_call(asked, "shell", "call_1")
    told = [turn for turn in turns_of(asked) if turn.role != "assistant"]
    assert told == [PAST[0], Turn("system", "The sandbox is read-only."), *PAST[1:]]
    said = [turn.content for turn in turns_of(asked) if turn not in told]
    assert [each for each in said if each] == ["I look."]
    assert asked.no_memory, "store: false"
    variables = {"reasoning_effort": "medium", "verbosity": "medium"}
    assert json.loads(asked.chat_template_kwargs) == variables
    events = data_of(answer)
    pieces = (each["delta"] for each in events if each["type"] == "response.output_text.delta")
    assert "".join(pieces) == SAID
    completed = events[-1]["response"]
    assert (events[-1]["type"], completed["status"]) == ("response.completed", "completed")
    assert completed["prompt_cache_key"] == "0198-thread"


async def test_open_webui() -> None:
    asked, answer = await asked_of("/v1/chat/completions", OPEN_WEBUI)
    check_call(asked, "shell", "call_1")
    *before, assistant, result, last = turns_of(asked)
    assert (*before, result, last) == PAST
    assert (assistant.content, assistant.reasoning_content) == ("I look.", "I must look.")
    sampling = asked.params.sampling
    assert (sampling.temperature, sampling.top_p, asked.params.max_tokens) == (0.8, 0.9, 128)
    *chunks, usage = data_of(answer)
    assert "".join(each["choices"][0]["delta"].get("content", "") for each in chunks) == SAID
    assert usage["usage"]["completion_tokens"] == len(SAID)


IN_NAMESPACE = {
    "type": "namespace",
    "name": "mcp__files",
    "description": "Tools of the server files.",
    "tools": [
        {"type": "function", "name": "shell", "strict": False, "parameters": COMMAND},
        {"type": "custom", "name": "patch", "description": "Change files."},
    ],
}


@pytest.mark.parametrize("stream", [False, True])
async def test_codex_calls_a_function_in_a_namespace(stream: bool) -> None:
    """As those of its MCP servers, which it finds by namespace and name only."""
    past = {**CODEX["input"][4], "namespace": "mcp__files"}
    body = {
        **CODEX,
        "stream": stream,
        "input": [*CODEX["input"][:4], past, *CODEX["input"][5:]],
        "tools": [IN_NAMESPACE, *CODEX["tools"]],
    }
    call = json.dumps({"name": "mcp__files__shell", "arguments": CALLED})
    suite = Saying(f"<tool_call>\n{call}\n</tool_call>")
    async with http_to(suite) as http:
        answer = await http.post("/v1/responses", json=body)
    (asked,) = suite.asked
    offered = [tool["function"]["name"] for tool in json.loads(asked.tools)]
    assert offered == ["mcp__files__shell", "shell"]
    (calling,) = (turn for turn in turns_of(asked) if turn.tool_calls)
    assert json.loads(calling.tool_calls)[0]["function"]["name"] == "mcp__files__shell"
    events = data_of(answer) if stream else []
    told = events[-1]["response"] if stream else answer.json()
    (item,) = told["output"]
    assert (item["namespace"], item["name"]) == ("mcp__files", "shell")
    assert json.loads(item["arguments"]) == CALLED
    named = [each["name"] for each in events if each["type"].endswith("arguments.done")]
    assert named == ["shell"] * stream
    functions = [each["name"] for each in told["tools"] if each["type"] == "function"]
    assert functions == ["shell"]
    (namespace,) = (each for each in told["tools"] if each["type"] == "namespace")
    assert namespace["name"] == "mcp__files"
    assert [each["name"] for each in namespace["tools"]] == ["shell"]


@pytest.mark.parametrize(
    ("tools", "words"),
    [
        ([IN_NAMESPACE, IN_NAMESPACE], "two tools have the same name"),
        ([{**IN_NAMESPACE, "name": "n" * 60}], "longer than 64"),
        ([{**IN_NAMESPACE, "name": "a.b"}], "tools.0"),
    ],
)
async def test_functions_in_namespaces_have_names_of_their_own(
    tools: list[dict[str, Any]], words: str
) -> None:
    async with http_to(Saying(SAID)) as http:
        refused = await http.post("/v1/responses", json={**CODEX, "tools": tools})
    assert (refused.status_code, refused.json()["error"]["param"][:5]) == (400, "tools")
    assert words in refused.json()["error"]["message"]


@pytest.mark.parametrize("body", [LIBRECHAT, CONTINUE])
async def test_librechat_and_continue(body: dict[str, Any]) -> None:
    asked, _ = await asked_of("/v1/chat/completions", body)
    check_call(asked, "shell", "call_1")
    assert tuple(turn for turn in turns_of(asked) if turn.role != "assistant") == PAST
    assert asked.params.sampling.temperature == body["temperature"]


async def test_aider() -> None:
    asked, _ = await asked_of("/v1/chat/completions", AIDER)
    assert turns_of(asked) == [*PAST[:2], Turn("assistant", "Ok."), PAST[-1]]
    assert asked.params.sampling.temperature == 0


async def test_open_webui_names_a_chat() -> None:
    asked, answer = await asked_of("/v1/chat/completions", OPEN_WEBUI_TITLE)
    assert asked.params.max_tokens == 1000
    assert answer.json()["choices"][0]["message"]["content"] == SAID


async def test_open_webui_over_ollama() -> None:
    asked, answer = await asked_of("/api/chat", OPEN_WEBUI_OLLAMA)
    assert asked.prompt == (Turn("user", "So?"),)
    assert (asked.params.max_tokens, asked.stop) == (64, ("END",))
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert "".join(each["message"]["content"] for each in lines) == SAID
    assert lines[-1]["done"]


@pytest.mark.parametrize(
    ("path", "body", "changed", "named"),
    [
        ("/v1/messages", CLAUDE_CODE, {"mcp_servers": [{"url": "http://x"}]}, "mcp_servers"),
        ("/v1/messages", CLAUDE_CODE, {"stop_sequence": ["END"]}, "stop_sequences"),
        ("/v1/responses", CODEX, {"previous_response_id": "resp_1"}, "previous_response_id"),
        ("/v1/responses", CODEX, {"tool_choice": {"type": "custom", "name": "x"}}, "tool_choice"),
        ("/v1/chat/completions", OPEN_WEBUI, {"temperatur": 0}, "temperature"),
    ],
)
async def test_what_would_change_the_answer_is_refused_by_name(
    path: str, body: dict[str, Any], changed: dict[str, Any], named: str
) -> None:
    suite = Saying(SAID)
    async with http_to(suite) as http:
        answer = await http.post(path, json={**body, **changed})
    assert answer.status_code == 400
    assert named in answer.json()["error"]["message"]
    assert not suite.asked
