"""Parameters of vLLM, llama.cpp and OpenAI's newer models: done, or ignored where they change
nothing, or refused with what to send instead."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tandem.gateway.anthropic_messages import MessagesRequest, chat_of_messages
from tandem.gateway.catalog import Catalog
from tandem.gateway.errors import ApiError
from tandem.gateway.request_reading import RequestLimits, chat_requests, completion_requests
from tandem.gateway.responses import ResponsesRequest, as_chat
from tandem.gateway.schema import ChatCompletionRequest, CompletionRequest, neutral_fields
from tandem.generation.request import GenerationRequest
from tandem.services.verifier.servicer import VerifierLimits
from tandem.testing.scripted import ScriptedEngine, scripted_probs
from tandem_api.common.v1.generation_pb2 import DescribeResponse
from tandem_api.common.v1.sampling_pb2 import ModelDescription
from tests.gateway.http_suite import MODEL, HttpSuite, NoTexts, chat_body, http_suite, one_loop
from tests.gateway.parsed_body import parse_body
from tests.services.scripted_suite import CONTEXT, EOS, VOCABULARY

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
ROOT = Path(__file__).parents[2]


def chat_request(**more: Any) -> GenerationRequest:
    raw = json.dumps(chat_body(seed=3) | more).encode()
    (request,) = chat_requests(parse_body(raw, ChatCompletionRequest, CONTEXT), RequestLimits())
    return request


def choices_of(**more: Any) -> list[GenerationRequest]:
    raw = json.dumps({"model": MODEL, "prompt": "a", "seed": 3} | more).encode()
    return completion_requests(parse_body(raw, CompletionRequest, CONTEXT), RequestLimits())


def text_request(**more: Any) -> GenerationRequest:
    (request,) = choices_of(**more)
    return request


def refusal(**more: Any) -> tuple[str, str]:
    """The parameter and the message, of a chat and of a text completion alike."""
    told = []
    for read in (chat_request, text_request):
        with pytest.raises(ApiError) as error:
            read(**more)
        assert error.value.status == 400
        told.append((str(error.value.param), str(error.value.message)))
    assert told[0] == told[1]
    return told[0]


@pytest.mark.parametrize(
    "more",
    [
        {"cache_prompt": True, "id_slot": -1, "timings_per_token": True, "keep_alive": "5m"},
        {"skip_special_tokens": True, "spaces_between_special_tokens": True, "best_of": 1},
        {"include_stop_str_in_output": False, "min_tokens": 0, "use_beam_search": False},
        {"length_penalty": 1, "early_stopping": False, "mirostat": 0, "tfs_z": 1},
        {"dry_multiplier": 0, "xtc_probability": 0.0, "mirostat_tau": 5.0, "repeat_last_n": -1},
        {"stop_regex": None, "samplers": "", "top_n_sigma": -1, "lora": [], "num_beams": 1},
        {"repeat_penalty": None, "n_predict": None, "max_tokens": None, "truncate": None},
        {"penalize_newline": True, "num_keep": 4, "n_probs": 0, "moderation": None},
        {"response_format": {"type": "text", "shema": {}}, "prompt_embeds": None},
        {"reasoning_format": "auto", "parse_tool_calls": True, "n_keep": 0, "return_tokens": False},
    ],
)
def test_what_changes_nothing_is_taken(more: dict[str, Any]) -> None:
    assert chat_request(**more) == chat_request()
    assert text_request(**more) == text_request()


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"repeat_penalty": 1.5}, {"repetition_penalty": 1.5}),
        ({"n_predict": 7}, {"max_tokens": 7}),
        ({"n_predict": -1}, {"max_tokens": None}),
        ({"max_tokens": -1}, {}),
    ],
)
def test_other_names_mean_the_same(theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    assert chat_request(**theirs) == chat_request(**ours)
    assert text_request(**theirs) == text_request(**ours)


def test_the_best_of_as_many_as_are_returned_are_all_of_them() -> None:
    assert choices_of(n=2, best_of=2) == choices_of(n=2)


def test_a_json_object_may_have_a_schema() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    theirs = chat_request(response_format={"type": "json_object", "schema": schema})
    named = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    assert theirs == chat_request(response_format=named)


def test_the_effort_of_a_response_is_that_of_a_chat() -> None:
    asked = {"model": MODEL, "input": "a", "reasoning": {"effort": "low", "summary": "auto"}}
    chat = as_chat(ResponsesRequest.model_validate(asked))
    assert chat.template_variables == {"reasoning_effort": "low"}


ONLY_OF_CHATS: dict[str, Any] = {
    "stop": ["a"],
    "min_p": 0.5,
    "n": 2,
    "presence_penalty": 1.0,
    "logit_bias": {"1": 100},
    "response_format": {"type": "json_object"},
    "structured_outputs": {"choice": ["a"]},
    "guided_choice": ["a"],
    "ignore_eos": True,
    "chat_template_kwargs": {"enable_thinking": False},
    "max_completion_tokens": 3,
    "skip_special_tokens": False,
    "include_reasoning": False,
    "thinking_token_budget": 0,
    "enable_thinking": False,
}
OF_OTHER_SERVERS: dict[str, Any] = {
    "mirostat": 2,
    "bad_words": ["x"],
    "penalize_newline": False,
    "documents": [{"title": "a", "text": "b"}],
    "logits_processors": ["x"],
}


@pytest.mark.parametrize("name", [*ONLY_OF_CHATS, *OF_OTHER_SERVERS])
def test_what_other_apis_do_not_have_is_refused_there(name: str) -> None:
    message = {"role": "user", "content": "a"}
    more = {name: (ONLY_OF_CHATS | OF_OTHER_SERVERS)[name]}
    response = ResponsesRequest.model_validate({"model": MODEL, "input": "a", **more})
    asked = {"model": MODEL, "max_tokens": 9, "messages": [message], **more}
    turned: tuple[Callable[[], object], ...] = (
        lambda: as_chat(response),
        lambda: chat_of_messages(MessagesRequest.model_validate(asked)),
    )
    for turn in turned:
        words = "ask /v1/chat/completions" if name in ONLY_OF_CHATS else "is not supported here"
        with pytest.raises(ApiError, match=words) as error:
            turn()
        assert error.value.param == name


def test_what_says_nothing_there_is_ignored() -> None:
    nothing: dict[str, Any] = {
        "n": 1,
        "presence_penalty": 0,
        "stop": None,
        "logit_bias": {},
        "top_k": -1,
        "skip_special_tokens": True,
        "mirostat": 0,
        "thinking_token_budget": -1,
    }
    more = {"include": ["reasoning.encrypted_content"], "service_tier": "auto", "user": "ann"}
    as_chat(ResponsesRequest.model_validate({"model": MODEL, "input": "a", **nothing, **more}))


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"moderation": {"model": "m"}}, "moderation"),
        ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
        ({"text": {"format": {"type": "json_schema", "name": "a", "shema": {}}}}, "text.format"),
    ],
)
def test_what_would_change_a_response_is_refused(more: dict[str, Any], param: str) -> None:
    body = {"model": MODEL, "input": "a", **more}
    with pytest.raises(ApiError) as error:
        parse_body(json.dumps(body).encode(), ResponsesRequest, 512)
    assert str(error.value.param).startswith(param)


def test_the_thoughts_of_a_response_are_texts() -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,"}
    items = [{"type": "reasoning", "content": [image]}, {"role": "user", "content": "a"}]
    with pytest.raises(ValidationError, match="content"):
        as_chat(ResponsesRequest.model_validate({"model": MODEL, "input": items}))


def test_a_seed_of_minus_one_is_a_random_one() -> None:
    seeds = {chat_request(seed=-1).params.seed for _ in range(8)}
    assert len(seeds) == 8


@pytest.mark.parametrize(
    ("more", "param", "instead"),
    [
        ({"temprature": 1}, "temprature", "did you mean 'temperature'?"),
        ({"max_token": 5}, "max_token", "did you mean 'max_tokens'?"),
        ({"tandem": {"presets": "ar"}}, "tandem.presets", "did you mean 'tandem.preset'?"),
        (
            {"skip_special_tokens": False, "tandem": {"rag": True}},
            *("skip_special_tokens", "send true"),
        ),
        ({"best_of": 3}, "best_of", "send n"),
        ({"best_of": True}, "best_of", "send n"),
        ({"n": 2, "best_of": 3}, "best_of", "send n"),
        ({"use_beam_search": True}, "use_beam_search", "temperature 0"),
        ({"functions": [{"name": "now"}]}, "functions", "send tools"),
        ({"bad_words": ["x"]}, "bad_words", "logit_bias"),
        ({"truncate_prompt_tokens": 9}, "truncate_prompt_tokens", "send truncate"),
        ({"chat_template": "{{ x }}"}, "chat_template", "chat_template_kwargs"),
        ({"system": "Be brief."}, "system", "the role system"),
        ({"thinking": {"type": "enabled"}}, "thinking", "send reasoning_effort"),
        ({"max_new_tokens": 9}, "max_new_tokens", "send max_tokens"),
        ({"grammar": "root ::= x"}, "grammar", "guided_grammar"),
        ({"json_schema": {}}, "json_schema", "response_format"),
        ({"mirostat": 2}, "mirostat", "top_p"),
        ({"mirostat": False}, "mirostat", "top_p"),
        ({"penalize_newline": False}, "penalize_newline", "send true"),
        ({"num_keep": 24}, "num_keep", "truncate"),
        ({"n_keep": 24}, "n_keep", "truncate"),
        ({"reasoning_format": "none"}, "reasoning_format", "send separate_reasoning"),
        ({"parse_tool_calls": False}, "parse_tool_calls", "leave out tools"),
        ({"return_tokens": True}, "return_tokens", "tandem.provenance"),
        ({"n_probs": 2}, "n_probs", "logprobs"),
        (
            {"structured_outputs": {"choices": ["a"]}},
            *("structured_outputs.choices", "did you mean 'structured_outputs.choice'?"),
        ),
        (
            {"structured_outputs": {"structural_tag": "{}"}},
            *("structured_outputs.structural_tag", "send a grammar"),
        ),
        ({"t_max_predict_ms": 50}, "t_max_predict_ms", "max_tokens"),
        ({"prompt_embeds": "UQ=="}, "prompt_embeds", "prompt"),
        ({"moderation": {"model": "m"}}, "moderation", "does not judge"),
        ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern", "guided_grammar"),
        (
            {"structured_outputs": {"json": {}, "whitespace_pattern": " "}},
            *("structured_outputs.whitespace_pattern", "send a grammar"),
        ),
        (
            {"structured_outputs": {"regex": "a", "disable_any_whitespace": True}},
            *("structured_outputs.disable_any_whitespace", "send a grammar"),
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "shema": {}}}},
            *("response_format.json_schema.shema", "did you mean 'response_format.json_schema.s"),
        ),
        (
            {"response_format": {"type": "json_object", "json_schema": {}}},
            *("response_format.json_object.json_schema", "schema'?"),
        ),
        ({"repeat_penalty": 2, "repetition_penalty": 1.5}, "repeat_penalty", "not both"),
        ({"n_predict": 3, "max_tokens": 4}, "n_predict", "not both"),
        ({"min_tokens": -1}, "min_tokens", "must be at least 0"),
        ({"stop_regex": "a+"}, "stop_regex", "send stop"),
        ({"top_n_sigma": 1.0}, "top_n_sigma", "min_p"),
        ({"samplers": ["top_k"]}, "samplers", "min_p"),
        ({"reasoning_budget": 0}, "reasoning_budget", "thinking_token_budget"),
        ({"structural_tag": "{}"}, "structural_tag", "structured_outputs"),
        ({"lora_path": "x"}, "lora_path", "own weights"),
        ({"custom_logit_processor": "x"}, "custom_logit_processor", "logit_bias"),
        ({"no_repeat_ngram_size": 2}, "no_repeat_ngram_size", "repetition_penalty"),
    ],
)
def test_what_would_change_the_answer_is_refused_with_what_to_send_instead(
    more: dict[str, Any], param: str, instead: str
) -> None:
    named, words = refusal(**more)
    assert named == param
    assert instead in words


TOOL = {"type": "function", "function": {"name": "now"}}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"top_p": 0}, "top_p: must be greater than 0"),
        ({"temperature": 3}, "temperature: must be at most 2"),
        ({"n": 0}, "n: must be at least 1"),
        ({"seed": "1"}, "seed: must be a valid integer"),
        ({"stop": ["a", 1]}, "stop.1: must be a valid string"),
        ({"logit_bias": [[1, 2]]}, "logit_bias: must be an object"),
        ({"logprobs": 5}, "logprobs: must be true or false"),
        ({"prompt": "x"}, "'prompt' is not supported here: send messages, or ask /v1/completions"),
        ({"messages": [{"role": "user", "content": 5}]}, "must be a valid string; or must be a"),
        ({"messages": [{"content": "x"}]}, "messages.0.role: is required"),
        ({"tool_choice": "required"}, "tool_choice: requires tools"),
        (
            {"tools": [TOOL], "tool_choice": "any"},
            "tool_choice: must be 'none', 'auto' or 'required'; or must be an object",
        ),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "name": "now"}},
            "tool_choice.function: is required",
        ),
        (
            {"response_format": {"type": "yaml"}},
            "the type 'yaml' is not supported; send 'text', 'json_object', 'json_schema'",
        ),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema: is required"),
    ],
)
def test_a_mistake_is_told_in_words_of_the_api(more: dict[str, Any], words: str) -> None:
    with pytest.raises(ApiError) as error:
        chat_request(**more)
    assert words in str(error.value.message)


@pytest.mark.parametrize("name", ["echo", "suffix"])
def test_what_only_completions_have_is_refused_in_chats(name: str) -> None:
    with pytest.raises(ApiError, match="ask /v1/completions") as error:
        chat_request(**{name: True if name == "echo" else "b"})
    assert error.value.param == name


def test_the_verbosity_of_an_answer_is_a_variable_of_the_template() -> None:
    asked = {"model": MODEL, "input": "a", "text": {"verbosity": "low"}}
    response = as_chat(ResponsesRequest.model_validate(asked))
    assert response.template_variables == {"verbosity": "low"}
    assert chat_request(verbosity="low").chat_template_kwargs == '{"verbosity": "low"}'
    with pytest.raises(ApiError, match="only chats have it"):
        text_request(verbosity="low")


def test_what_no_server_is_known_to_read_is_ignored() -> None:
    for more in ({"zzz": 1}, {"metadata": {"a": "b"}}, {"chat_id": "x", "session_id": "y"}):
        assert chat_request(**more) == chat_request()
        assert text_request(**more) == text_request()


def test_in_the_own_object_nothing_is_ignored() -> None:
    assert refusal(tandem={"zzz": 1}) == ("tandem.zzz", "Unknown parameter: tandem.zzz")


@pytest.mark.parametrize("more", [{"stream_options": {"include_obfuscation": False}}])
def test_options_of_streams_of_newer_clients_are_taken(more: dict[str, Any]) -> None:
    assert chat_request(stream=True, **more) == chat_request()


def test_the_variables_of_the_template_travel_together() -> None:
    asked = chat_request(
        chat_template_kwargs={"enable_thinking": False}, reasoning_effort="low", max_tokens=4
    )
    assert json.loads(asked.chat_template_kwargs) == {
        "enable_thinking": False,
        "reasoning_effort": "low",
    }
    own = chat_request(chat_template_kwargs={"reasoning_effort": "high"}, reasoning_effort="low")
    assert json.loads(own.chat_template_kwargs) == {"reasoning_effort": "high"}
    assert chat_request(add_generation_prompt=True).chat_template_kwargs == ""
    bare = chat_request(add_generation_prompt=False)
    assert json.loads(bare.chat_template_kwargs) == {"add_generation_prompt": False}
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    continued = chat_request(messages=talk, continue_final_message=True)
    assert json.loads(continued.chat_template_kwargs) == {
        "continue_final_message": True,
        "add_generation_prompt": False,
    }


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"continue_final_message": True}, "continue_final_message"),
        (
            {
                "continue_final_message": True,
                "add_generation_prompt": True,
                "messages": [{"role": "assistant", "content": "a"}],
            },
            "add_generation_prompt",
        ),
        ({"reasoning_effort": "utmost"}, "reasoning_effort"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs"),
    ],
)
def test_what_a_chat_cannot_be_rendered_by_is_named(more: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as error:
        chat_request(**more)
    assert error.value.param == param


@one_loop
async def test_variables_that_are_the_servers_own_are_refused(served: HttpSuite) -> None:
    for name in ("messages", "tools", "chat_template", "tokenize", "bos_token", "__class__"):
        body = chat_body(max_tokens=1, chat_template_kwargs={name: "x"})
        answer = await served.post(CHAT, body)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, "chat_template_kwargs"), name
        assert name in error["message"]
    long = chat_body(max_tokens=1, chat_template_kwargs={"note": "x" * 2**14})
    assert (await served.post(CHAT, long)).json()["error"]["param"] == "chat_template_kwargs"


@one_loop
async def test_only_chats_have_a_template(served: HttpSuite) -> None:
    for name, value in (("reasoning_effort", "low"), ("chat_template_kwargs", {"a": 1})):
        body = {"model": MODEL, "prompt": "a", name: value}
        error = (await served.post(COMPLETIONS, body)).json()["error"]
        assert error["param"] == name
        assert "/v1/chat/completions" in error["message"]


@one_loop
async def test_an_answer_without_limit_is_as_long_as_the_context_leaves(served: HttpSuite) -> None:
    """Of 512 tokens, which is less than a limit of 4,096, and more than one of 128."""
    for none in (None, -1):
        assert chat_request(max_tokens=none) == chat_request()
    for limit in ({}, {"max_tokens": 10**6}):
        body = chat_body("hello", seed=1, ignore_eos=True, tandem={"preset": "ar"}, **limit)
        answer = (await served.post(CHAT, body)).json()
        assert answer["usage"]["completion_tokens"] == CONTEXT - len("hello"), limit
        assert answer["choices"][0]["finish_reason"] == "length"


@one_loop
async def test_the_limit_of_the_server_is_the_least(served: HttpSuite) -> None:
    async with http_suite(http_max_tokens=9) as short:
        body = chat_body(seed=1, ignore_eos=True)
        answer = (await short.post(CHAT, body)).json()
        assert answer["usage"]["completion_tokens"] == 9
        error = (await short.post(CHAT, {**body, "n_predict": 10})).json()["error"]
        assert (error["param"], error["message"]) == (
            "n_predict",
            "n_predict: must be at most 9, got 10",
        )


@pytest.mark.parametrize(
    ("contexts", "kv_tokens", "unstated"),
    [
        ((2**17, 2**15), (0, 0), 4096),
        ((2**17, 2**15), (2**17, 2**16), 2**14),
        ((2**17, 2**15), (2**20, 2**20), 2**15),
        ((2**17, 2**17), (1000, 2**20), 4096),
        ((512, 2**17), (2**20, 2**20), 2**17),  # a short draft reads the end of long texts
    ],
)
async def test_an_answer_without_limit_takes_no_more_than_its_share_of_the_memory(
    contexts: tuple[int, int], kv_tokens: tuple[int, int], unstated: int
) -> None:
    class Described(NoTexts):
        leaving = False

        async def describe(self) -> DescribeResponse:
            draft, target = (
                ModelDescription(model_name="m", context_length=context, kv_tokens=held)
                for context, held in zip(contexts, kv_tokens, strict=True)
            )
            return DescribeResponse(draft=draft, target=target)

    suite: Any = Described()
    catalog = Catalog(suite)
    await catalog.reach()
    assert catalog.unstated_tokens == unstated


@one_loop
async def test_both_ends_tell_how_many_tokens_they_have_room_for(served: HttpSuite) -> None:
    described = await served.suite.client.describe()
    bytes_per_token = served.suite.target.kv_bytes_per_token
    assert described.target.kv_tokens == VerifierLimits().kv_budget_bytes // bytes_per_token
    assert described.draft.kv_tokens > 0


async def test_the_shorter_of_both_contexts_is_the_limit() -> None:
    probs = scripted_probs(1, VOCABULARY, sharpness=9.0)
    target = ScriptedEngine(VOCABULARY, probs, context_length=100, eos_token_ids=EOS)
    async with http_suite(target=target) as short:
        for limit in ({}, {"max_tokens": 400}):
            answer = (await short.post(CHAT, chat_body("hello", ignore_eos=True, **limit))).json()
            assert answer["usage"]["completion_tokens"] == 95
        error = (await short.post(CHAT, chat_body("a" * 120))).json()["error"]
        assert error["code"] == "context_length_exceeded"
        assert "the context holds 100" in error["message"]


@pytest.mark.parametrize("preset", ["ar", "coupled", "dssd", "mc-dsd"])
@one_loop
async def test_no_answer_ends_before_its_minimum(served: HttpSuite, preset: str) -> None:
    """Token 0 ends the scripted model's text."""
    body: dict[str, Any] = {"max_tokens": 60, "tandem": {"preset": preset}, "logit_bias": {"0": 30}}
    for seed in range(3):
        short = (await served.post(CHAT, chat_body(seed=seed, **body))).json()
        assert short["usage"]["completion_tokens"] < 40
        long = (await served.post(CHAT, chat_body(seed=seed, min_tokens=40, **body))).json()
        assert long["usage"]["completion_tokens"] == 41
        assert long["choices"][0]["finish_reason"] == "stop"
        assert "<0>" not in long["choices"][0]["message"]["content"].removesuffix("<0>")


@one_loop
async def test_a_stop_token_and_a_stop_string_wait_for_the_minimum(served: HttpSuite) -> None:
    common: dict[str, Any] = {"max_tokens": 40, "seed": 2, "tandem": {"preset": "coupled"}}
    whole = (await served.post(CHAT, chat_body(ignore_eos=True, **common))).json()
    text = whole["choices"][0]["message"]["content"]
    tokens = [int(each) for each in text.replace(">", "").split("<")[1:]]
    stop: dict[str, Any] = {"stop_token_ids": [tokens[3]], "ignore_eos": True}
    cut = (await served.post(CHAT, chat_body(**stop, **common))).json()
    assert cut["usage"]["completion_tokens"] == tokens.index(tokens[3]) + 1
    later = (await served.post(CHAT, chat_body(min_tokens=20, **stop, **common))).json()
    assert later["usage"]["completion_tokens"] > 20
    word = f"<{tokens[3]}>"
    kept = chat_body(min_tokens=20, stop=word, ignore_eos=True, **common)
    said = (await served.post(CHAT, kept)).json()["choices"][0]["message"]["content"]
    assert said == text[: len(said)]
    assert said.count("<") >= 20
    assert word in said


@one_loop
async def test_a_minimum_that_cannot_be_met_is_refused(served: HttpSuite) -> None:
    for more in (
        {"min_tokens": 9, "max_tokens": 8},
        {"min_tokens": 1, "guided_regex": "a"},
        {"min_tokens": 1, "ignore_eos": True, "tandem": {"rag": True}},
    ):
        error = (await served.post(CHAT, chat_body(**more))).json()["error"]
        assert error["param"] == "min_tokens", more


@one_loop
async def test_a_stop_string_is_part_of_the_text_if_that_is_asked_for(served: HttpSuite) -> None:
    common: dict[str, Any] = {"max_tokens": 30, "seed": 2}
    whole = (await served.post(CHAT, chat_body(**common))).json()
    text = whole["choices"][0]["message"]["content"]
    stop = "<" + text.split("<")[4]
    for included in (False, True):
        body = chat_body(stop=stop, include_stop_str_in_output=included, **common)
        answer = (await served.post(CHAT, body)).json()["choices"][0]
        before = text.split(stop)[0]
        assert answer["message"]["content"] == before + (stop if included else "")
        assert answer["finish_reason"] == "stop"


def test_every_parameter_of_other_servers_is_in_the_documentation() -> None:
    page = (ROOT / "docs" / "reference" / "http.md").read_text()
    named = neutral_fields()
    assert len(named) > 25
    for name in (*named, "n_predict", "repeat_penalty", "min_tokens", "chat_template_kwargs"):
        assert f"`{name}`" in page, name


@pytest.mark.parametrize("kind", [ChatCompletionRequest, CompletionRequest])
def test_the_value_that_the_schema_gives_is_taken(kind: type[CompletionRequest]) -> None:
    """Also where it is 0 or 1, which Python takes for false and true."""
    said = {"messages": [{"role": "user", "content": "a"}], "prompt": "a"}
    body = {"model": MODEL} | {name: said[name] for name in said if name in kind.model_fields}
    forms = kind.model_json_schema()["properties"]
    constants = [
        (name, each["const"])
        for name in neutral_fields()
        for each in forms.get(name, {}).get("anyOf", [])
        if "const" in each
    ]
    assert len(constants) > 25
    for name, value in constants:
        parse_body(json.dumps(body | {name: value}).encode(), kind, CONTEXT)
