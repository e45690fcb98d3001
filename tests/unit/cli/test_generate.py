"""`tandem generate` with scripted models: its output, its figures, what it refuses."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from functools import cache
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tandem.cli import main
from tandem.control.schedule import CLOUD_ALONE
from tandem.generation.figures import ChoiceFigures, choice_estimates, choice_line
from tandem.specdec.presets import PRESETS
from tandem.two_sided.protocol.presets import AGGREGATION_PRESETS
from tests.unit.cli.scripted_pair import scripted_pair

OTHERS = len(PRESETS) + len(AGGREGATION_PRESETS) - 3
"""Presets but the three that the error names."""
FIELDS = {
    *("text", "token_ids", "finish_reason", "preset", "seed", "ttft_s", "tpot_s", "duration_s"),
    *("tokens", "rounds", "drafted", "accepted", "acceptance_rate", "target_passes"),
    *("uplink_bytes", "downlink_bytes", "prompt_tokens", "resumes", "unverified", "links_lost"),
    *("predrafted", "predraft_hits", "predraft_misses", "predraft_miss_rate", "draft_context"),
    *("early_verdicts", "lossy", "same_bits", "exactness", "sampling"),
    *("accepted_memory_tokens", "rejected_memory_tokens"),
    *("cloud_drafted", "cloud_accepted"),
}


@pytest.fixture(autouse=True)
def scripted_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the place of the demo pair."""
    monkeypatch.setattr(
        "tandem.commands.suite_choice.load_pair", lambda draft, target: scripted_pair()
    )


def generate(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["generate", *arguments], prog_name="tandem")


def answer(*arguments: str) -> dict[str, Any]:
    ended = generate("--raw", "--prompt", "hello", "--max-tokens", "24", "--json", *arguments)
    assert (ended.exit_code, ended.stderr) == (0, "")
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def test_json_is_one_object_with_the_promised_fields() -> None:
    found = answer("--seed", "7")
    assert set(found) - {"choice"} == FIELDS
    assert found["tokens"] == len(found["token_ids"]) == 24
    assert found["text"] == "".join(f"<{token}>" for token in found["token_ids"])
    assert (found["preset"], found["seed"], found["finish_reason"]) == ("auto", 7, "length")
    drafted = found["drafted"]
    assert found["acceptance_rate"] == (found["accepted"] / drafted if drafted else None)
    assert 0 < found["ttft_s"] <= found["duration_s"]
    assert 0 < found["tpot_s"] <= (found["duration_s"] - found["ttft_s"]) / 23
    assert found["prompt_tokens"] == len("hello")
    assert (found["unverified"], found["resumes"], found["links_lost"]) == ([], 0, 0)


@pytest.mark.parametrize("same_bits", [True, False])
def test_an_answer_tells_whether_batching_may_change_its_text(
    monkeypatch: pytest.MonkeyPatch, same_bits: bool
) -> None:
    pair = scripted_pair()
    own = replace(pair.target.capabilities, same_bits=same_bits)
    monkeypatch.setattr(pair.target, "capabilities", own)
    monkeypatch.setattr("tandem.commands.suite_choice.load_pair", lambda draft, target: pair)
    assert answer()["same_bits"] is same_bits


@pytest.mark.parametrize(
    ("batch_invariant", "exactness", "words"),
    [
        (True, "bit_for_bit", "the target's text bit for bit"),
        (False, "up_to_rounding", "the target's text up to rounding"),
    ],
)
def test_an_answer_tells_whether_its_text_is_the_target_s_bit_for_bit(
    monkeypatch: pytest.MonkeyPatch, batch_invariant: bool, exactness: str, words: str
) -> None:
    pair = scripted_pair()
    own = replace(pair.target.capabilities, batch_invariant=batch_invariant)
    monkeypatch.setattr(pair.target, "capabilities", own)
    monkeypatch.setattr("tandem.commands.suite_choice.load_pair", lambda draft, target: pair)
    assert answer()["exactness"] == exactness
    assert answer("--preset", "picospec-top-k")["exactness"] == "not_exact"
    shown = generate("--raw", "--prompt", "hello", "--max-tokens", "8", "--verbose")
    assert words in shown.stderr


@pytest.mark.parametrize("preset", ["ar", "dssd"])
def test_a_preset_is_asked_for_by_its_name(preset: str) -> None:
    found = answer("--preset", preset, "--temperature", "0")
    assert found["preset"] == preset
    assert (found["acceptance_rate"] is None) != PRESETS[preset].drafts


def test_people_get_text_and_one_line_of_figures() -> None:
    ended = generate("--raw", "--prompt", "hello", "--max-tokens", "24", "--seed", "7")
    assert ended.exit_code == 0
    assert ended.stdout == answer("--seed", "7")["text"] + "\n"
    (figures,) = ended.stderr.splitlines()
    assert " tokens/s, " in figures
    assert figures.endswith(", cut off at 24 tokens")
    assert "TTFT" not in figures


def test_those_who_know_the_method_get_all_figures() -> None:
    ended = generate("--raw", "--prompt", "hello", "--max-tokens", "24", "--seed", "7", "--verbose")
    assert (ended.exit_code, ended.stdout) == (0, answer("--seed", "7")["text"] + "\n")
    plain, figures, *choice, sampling = ended.stderr.splitlines()
    assert " tokens/s, " in plain
    for word in ("24 tokens (length) by auto", "TTFT", "TPOT", "bytes per token"):
        assert word in figures
    assert all(line.startswith("auto: ") for line in choice)
    assert len(choice) <= 1
    assert sampling == "sampling: temperature 1, top_p 1, top_k 0, repetition_penalty 1"


def test_a_prompt_of_ids_and_a_chat_mean_what_they_say() -> None:
    ids = ",".join(str(ord(letter) % 64) for letter in "hello")
    as_ids = generate("--prompt-ids", ids, "--max-tokens", "24", "--json")
    as_chat = generate("--prompt", "hello", "--max-tokens", "24", "--json", "--temperature", "1")
    assert json.loads(as_ids.stdout)["text"] == answer()["text"]
    assert json.loads(as_chat.stdout)["text"] == answer()["text"]


@cache
def text_of(prompt: str) -> object:
    return json.loads(generate("--raw", "--prompt", prompt, "--max-tokens", "8", "--json").stdout)[
        "text"
    ]


@pytest.mark.parametrize(
    ("arguments", "piped", "prompt"),
    [
        (["hello"], None, "hello"),
        (["hello"], "", "hello"),
        ([], "hello\n", "hello"),
        (["-"], "hello\n", "hello"),
        (["--prompt", "-"], "hello\n", "hello"),
        (["hello"], "a\nb\n", "a\nb\n\nhello"),
        (["-", "--prompt", "hello"], "a\nb\n", "a\nb\n\nhello"),
        # A loop of the shell reads its own lines from there.
        (["--prompt", "hello"], "more\n", "hello"),
    ],
)
def test_a_prompt_comes_from_the_argument_and_from_standard_input(
    arguments: list[str], piped: str | None, prompt: str
) -> None:
    arguments = ["generate", "--raw", *arguments, "--max-tokens", "8", "--json"]
    ended = CliRunner().invoke(main, arguments, input=piped, prog_name="tandem")
    assert (ended.exit_code, ended.stderr) == (0, "")
    found = json.loads(ended.stdout)
    assert (found["text"], found["prompt_tokens"]) == (text_of(prompt), len(prompt))


def test_a_chat_may_be_piped_in_and_asked_about() -> None:
    arguments = ["generate", "-", "--prompt", "hello", "--max-tokens", "8", "--json"]
    ended = CliRunner().invoke(main, arguments, input="text\n", prog_name="tandem")
    expected = generate("--prompt", "text\n\nhello", "--max-tokens", "8", "--json")
    assert json.loads(ended.stdout)["text"] == json.loads(expected.stdout)["text"]


def test_what_is_piped_in_and_is_no_text_is_one_line() -> None:
    ended = CliRunner().invoke(main, ["generate"], input=b"\xff\xfe", prog_name="tandem")
    assert ended.exit_code == 2
    assert ended.stderr.startswith("error: --prompt: standard input is not text: ")


def test_an_argument_that_is_not_utf_8_is_said_to_be_that() -> None:
    """Python reads such bytes of a command line as lone surrogates."""
    for arguments in (["--raw", "\udcff"], ["--prompt", "\udcff"]):
        ended = CliRunner().invoke(main, ["generate", *arguments], prog_name="tandem")
        assert ended.exit_code == 2
        assert ended.stderr.startswith("error: --prompt: is not UTF-8")


def test_sampling_stops_and_overrides_reach_the_models() -> None:
    free = answer()
    assert answer("--seed", "1")["text"] != free["text"]
    assert answer("--top-k", "1")["text"] == answer("--temperature", "0")["text"]
    third = f"<{free['token_ids'][2]}>"
    stopped = answer("--stop", "never", "--stop", third)
    assert stopped["text"] == free["text"][: free["text"].index(third)]
    assert stopped["finish_reason"] == "stop"
    rounds = ("--preset", "coupled", "--no-memory", "--draft-length")
    longer, shorter = (answer(*rounds, length) for length in ("8", "1"))
    assert longer["text"] == shorter["text"] == free["text"]
    assert longer["rounds"] < shorter["rounds"]
    sparse = answer("--preset", "dssd", "--payload-top", "0", "--payload-tail-draws", "0")
    assert sparse["downlink_bytes"] != answer("--preset", "dssd")["downlink_bytes"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--preset", "fast"],
            "--preset: unknown: 'fast'; known: auto (the default), ar (the large model alone),"
            f" dragon-coupled (from documents) and {OTHERS} others, which 'tandem presets' lists",
        ),
        (["--preset", "dsssd"], "--preset: unknown: 'dsssd'; did you mean 'dssd'? Known: auto ("),
        (["--preset", "dragn"], "--preset: unknown: 'dragn'; did you mean 'dragon'? Known:"),
        (["--set", "windw=3"], "--set: unknown: 'windw'; did you mean 'window'? Known:"),
        (["--max-tokens", "0"], "--max-tokens: must be 1…2^32-1, is 0"),
        (["--max-tokens", "-1"], "--max-tokens: must be 1…2^32-1, is -1"),
        (["--seed", str(2**64)], "--seed: must be 0…2^64-1"),
        (["--temperature", "nan"], "--temperature: nan is not in [0, inf)"),
        (["--temperature", "-1"], "--temperature: -1.0 is not in [0, inf)"),
        (["--top-k", "-1"], "--top-k: -1 is not in"),
        (["--top-k", "65"], "--top-k: 65 is not in [0, 64]"),
        (["--top-p", "0"], "--top-p: 0.0 is not in (0, 1]"),
        (["--draft-length", "0"], "--draft-length: must be 1…64, is 0"),
        (["--draft-length", "-2"], "--draft-length: must be 1…64, is -2"),
        (["--draft-length", "99"], "--draft-length: must be 1…64, is 99"),
        (["--payload-top", "99999"], "--payload-top: must be 0…4096"),
        (["--stop", ""], "--stop: each must have 1…256 characters"),
        (["--timeout", "0"], "--timeout: must be above 0, is 0"),
        (["--lost-cloud", "hope"], "'fail', 'wait', 'edge'"),
        (["--prompt-ids", "1"], "--prompt: give exactly one of TEXT, --prompt, --prompt-ids"),
        (["--endpoint", "nowhere"], "'nowhere' is neither HOST:PORT nor a URL"),
        (["--endpoint", "h:1", "--draft", "x"], "--draft: the suite at --endpoint has its own"),
    ],
)
def test_a_bad_value_is_one_line_and_code_2(arguments: list[str], words: str) -> None:
    ended = generate("--raw", "--prompt", "hello", *arguments)
    assert ended.exit_code == 2
    assert words in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
    assert ended.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--prompt: give TEXT, --prompt, --prompt-ids, or pipe a text"),
        (["x", "--prompt", "y"], "--prompt: give exactly one of"),
        (["-", "--prompt-ids", "1"], "--prompt: give exactly one of"),
        (["-"], "--prompt: standard input is empty"),
        (["--prompt", "-"], "--prompt: standard input is empty"),
        (["--prompt", ""], "--prompt: is empty"),
        (["--prompt", "x" * 600], "--prompt: 600 tokens; the context holds 512"),
        (["--prompt-ids", "1,x"], "--prompt-ids: must be whole numbers, for example 1,2,3"),
        (["--prompt-ids", " , "], "--prompt-ids: is empty"),
        (["--prompt-ids", "1,-1"], "--prompt-ids: [1] = -1 is not in"),
        (["--prompt-ids", f"{2**32}"], "--prompt-ids: [0] = 4294967296 is not in"),
        (["--prompt-ids", "64"], "--prompt: [0] = 64 is not in [0, 64)"),
    ],
)
def test_a_bad_prompt_is_one_line_and_code_2(arguments: list[str], words: str) -> None:
    ended = generate(*arguments)
    assert ended.exit_code == 2
    assert words in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_nobody_at_the_endpoint_is_one_line_and_code_1() -> None:
    ended = generate("--raw", "--prompt", "x", "--endpoint", "127.0.0.1:1")
    assert ended.exit_code == 1
    assert "error: 127.0.0.1:1 cannot be reached: Connection refused; check" in ended.stderr
    assert "tandem doctor" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_auto_says_in_a_line_what_it_chose_and_on_demand_by_what() -> None:
    choice = {
        **dict.fromkeys((field.name for field in fields(ChoiceFigures)), 0.003),
        **{"schedule": "stream, window 6", "reason": "load", "decisions": 2},
        **{"expected_tpot_s": 0.031, "cloud_alone_tpot_s": 0.074},
        **{"acceptance_rate": 0.83, "cloud_alone_measured": True},
    }
    figures = {"preset": "auto", "tpot_s": 0.0312, "choice": choice}
    by = "(acceptance 83%, round trip 3 ms, draft step 3 ms)"
    line = (
        "auto: stream, window 6; estimated at 31 ms a token, against 74 ms by the large model alone"
    )
    assert choice_line(figures) == f"{line} (measured) {by}"
    guessed = {**figures, "choice": {**choice, "cloud_alone_measured": False}}
    assert choice_line(guessed) == f"{line} (estimated) {by}"
    assert "acceptance 83%" in choice_estimates(figures)
    assert "decided 2 times, last by load" in choice_estimates(figures)
    alone = {**figures, "choice": {**choice, "schedule": CLOUD_ALONE}}
    line = "auto: the large model alone; drafts are estimated to take longer than its 74 ms a token"
    assert choice_line(alone) == f"{line} (measured) {by}"
    short = {"preset": "auto", "tpot_s": 0.03}
    assert choice_line(short).startswith("auto: the schedule that it begins with; ")
    fixed = {"preset": "coupled", "tpot_s": 0.03}
    assert (choice_line(fixed), choice_estimates(fixed)) == ("", "")
    asked = ("--raw", "--prompt", "hello", "--max-tokens", "4", "--explain", "--preset", "coupled")
    assert "coupled chose no schedule" in generate(*asked).stderr


def test_nothing_is_drafted_from_memory_where_that_is_off() -> None:
    asked = ("--preset", "coupled", "--seed", "7", "--max-tokens", "60")
    remembering, without = answer(*asked), answer(*asked, "--no-memory")
    assert without["token_ids"] == remembering["token_ids"]
    assert (without["accepted_memory_tokens"], without["rejected_memory_tokens"]) == (0, 0)
