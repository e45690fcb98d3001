"""A draft and a target whose tokenizers were trained differently, through the whole suite."""

from __future__ import annotations

import json
import random
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from tandem.backends.cross_vocabulary.engine import TranslatedEngine
from tandem.backends.model_description import load_tokenizer
from tandem.cli import main
from tandem.core.probs import SamplingParams
from tandem.core.processors import Processors
from tandem.generation.client import AggregatorClient, Generated
from tandem.generation.request import GenerationRequest
from tandem.netem.link_model import shape_from
from tandem.services.drafter.__main__ import build
from tandem.services.drafter.config import DrafterSettings
from tandem.specdec.choices import Acceptance
from tandem.specdec.messages import GenerationParams
from tandem.specdec.presets import PRESETS
from tandem.suite.embedded import EmbeddedSuite
from tandem.suite.models import ModelPair, choose_model, load_pair
from tandem.telemetry.metrics import Metrics, new_registry
from tests.long_runs import LONG, with_long_cases
from tests.unit.backends.tiny_folders import (
    write_model,
    write_sentencepiece_tokenizer,
    write_tokenizer,
)

PROMPTS = ["The quick fox", "Grüße aus 日本 😀 lazy dog"]
TOKENS = 12
"""Three rounds of drafts of three at the least."""
PAIRS = ["sentencepiece drafts", "byte-level drafts"]


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("byte-level")
    return write_tokenizer(write_model(folder, "llama", size=320), size=320)


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sentencepiece")
    return write_sentencepiece_tokenizer(write_model(folder, "qwen3", size=400))


@pytest.fixture(scope="module", params=PAIRS)
def pair(request: pytest.FixtureRequest, byte_level: Path, sentencepiece: Path) -> ModelPair:
    folders = [str(sentencepiece), str(byte_level)]
    if request.param == "byte-level drafts":
        folders.reverse()
    draft, target = (choose_model(folder) for folder in folders)
    return load_pair(draft, target)


def request(prompt: str, preset: str, temperature: float, length: int = 3) -> GenerationRequest:
    drafted = None if preset == "ar" else length
    return GenerationRequest(
        prompt,
        preset,
        GenerationParams(
            sampling=SamplingParams(temperature), max_tokens=TOKENS, seed=5, ignore_eos=True
        ),
        overrides=() if drafted is None else (f"draft_length={drafted}",),
    )


EXACT_TEXT = [
    *((name, 0.0) for name, preset in PRESETS.items() if preset.drafts),
    *(
        (name, 1.0)
        for name, preset in PRESETS.items()
        if preset.drafts and preset.acceptance is Acceptance.GUMBEL
    ),
]


EVERY_RUN = [
    *((name, 1.0) for name in ("stream", "auto")),
    *((name, 0.0) for name in ("dsd", "dssd", "dssd-full", "tslt", "picospec", "mc-dsd", "fsd")),
]
"""In `make test`: each way to draft and to judge."""

BY_BOTH = ("coupled", 1.0)
"""Of random models, no draft may be accepted at temperature 0, or by the time the cloud's own token
is there: drafts of this preset are, of either pair."""


@pytest.fixture
def place(request: pytest.FixtureRequest) -> int:
    """Of the pair among the pairs."""
    return PAIRS.index(request.node.callspec.params["pair"])


@pytest.mark.parametrize("cases", [EVERY_RUN, pytest.param(EXACT_TEXT, marks=LONG)], ids=len)
async def test_the_text_is_the_target_s_own(
    pair: ModelPair, place: int, cases: list[tuple[str, float]]
) -> None:
    """Presets and temperatures: each with one of the pairs, in turn."""
    assert isinstance(pair.draft, TranslatedEngine)
    accepted = 0
    async with EmbeddedSuite(pair) as suite, AggregatorClient(suite.target) as client:
        prompt = PROMPTS[1]
        alone = {t: await client.generate(request(prompt, "ar", t)) for t in (0.0, 1.0)}
        for preset, temperature in (BY_BOTH, *cases[place::2]):
            drafted = await client.generate(request(prompt, preset, temperature))
            assert drafted.token_ids == alone[temperature].token_ids, (preset, temperature)
            assert drafted.text == alone[temperature].text
            assert len(drafted.token_ids) == TOKENS
            assert drafted.summary is not None
            accepted += drafted.summary.accepted
    assert accepted > 0
    assert (pair.draft.sessions_open, pair.target.sessions_open) == (0, 0)


def write_renumbered(source: Path, folder: Path) -> Path:
    """The same model and tokenizer, but for the ids of the tokens that are no control tokens."""
    shutil.copytree(source, folder)
    written = json.loads((folder / "tokenizer.json").read_text())
    first = len(written["added_tokens"])
    size = max(written["model"]["vocab"].values()) + 1
    order = list(range(first, size))
    random.Random(6).shuffle(order)
    ids = [*range(first), *order]  # by old id
    vocabulary = {token: ids[old] for token, old in written["model"]["vocab"].items()}
    written["model"]["vocab"] = vocabulary
    (folder / "tokenizer.json").write_text(json.dumps(written))
    weights = load_file(folder / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        moved = weights[name].clone()
        moved[ids] = weights[name][:size]
        weights[name] = moved
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def alike(byte_level: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelPair, ...]:
    """Two pairs, the second with the first one's draft under other token ids."""
    place = tmp_path_factory.mktemp("alike")
    draft = write_tokenizer(write_model(place / "draft", "llama", size=320, seed=8), size=320)
    return tuple(
        load_pair(*(choose_model(str(f)) for f in (folder, byte_level)))
        for folder in (draft, write_renumbered(draft, place / "renumbered"))
    )


@pytest.mark.parametrize(
    "preset", with_long_cases(["dsd", "dssd", "dssd-full", "coupled"], ("dsd", "coupled"))
)
async def test_renumbered_tokens_change_nothing_at_all(
    alike: tuple[ModelPair, ...], preset: str
) -> None:
    """Neither text nor acceptance, also where both depend on every number of the draft's
    distributions."""
    assert [isinstance(pair.draft, TranslatedEngine) for pair in alike] == [False, True]
    answers = []
    for pair in alike:
        async with EmbeddedSuite(pair) as suite, AggregatorClient(suite.target) as client:
            answers.append(
                [await client.generate(request(prompt, preset, 1.0)) for prompt in PROMPTS]
            )
    for plain, renumbered in zip(*answers, strict=True):
        assert renumbered.token_ids == plain.token_ids
        assert plain.summary is not None
        assert renumbered.summary is not None
        assert renumbered.summary.accepted == plain.summary.accepted


@pytest.mark.parametrize("preset", with_long_cases(["coupled", "dsd", "dssd"], ("dssd",)))
async def test_a_cut_changes_nothing(pair: ModelPair, preset: str) -> None:
    asked = request(PROMPTS[1], preset, 1.0)
    link = shape_from(0.01)
    async with EmbeddedSuite(pair, link=link) as suite, AggregatorClient(suite.target) as client:
        whole = await client.generate(asked)
        cut = Generated()
        async for cut in client.stream(asked):
            if len(cut.token_ids) in range(4, TOKENS - 4) and suite.emulator is not None:
                suite.emulator.drop()
    assert cut.token_ids == whole.token_ids
    assert cut.summary is not None
    assert cut.summary.resumes > 0


def test_the_command_line_needs_no_more_than_the_two_folders(
    byte_level: Path, sentencepiece: Path
) -> None:
    models = ["--draft", str(sentencepiece), "--target", str(byte_level)]
    # auto would be free to draft nothing: so short an answer need not be worth a trial.
    decoding = ["--preset", "coupled", "--max-tokens", "6", "--json"]
    asked = ["generate", "--raw", "--prompt", "The fox", *decoding, *models]
    ended = CliRunner().invoke(main, asked)
    assert (ended.exit_code, ended.stderr) == (0, "")
    assert json.loads(ended.stdout)["drafted"] > 0


def test_doctor_says_how_much_is_shared_and_what_the_rest_costs(
    byte_level: Path, sentencepiece: Path
) -> None:
    ended = CliRunner().invoke(
        main, ["doctor", "--json", "--draft", str(sentencepiece), "--target", str(byte_level)]
    )
    (found,) = [c for c in json.loads(ended.stdout)["checks"] if c["name"] == "shared tokens"]
    assert found["ok"]
    assert "of 366 (draft) and" in found["found"]
    assert "% of the draft's mass lies outside" in found["found"]
    assert "acceptance is at most 0." in found["found"]


async def test_a_drafter_alone_is_told_the_target_s_tokenizer(
    byte_level: Path, sentencepiece: Path
) -> None:
    settings = DrafterSettings(
        model=str(sentencepiece), target_tokenizer=str(byte_level), insecure=True
    )
    drafter = build(settings, Metrics(new_registry(), "device"))
    target = load_pair(*[choose_model(str(byte_level))] * 2).target
    described = (drafter._engine.vocabulary_hash, drafter._engine.vocabulary_size)
    assert described == (target.vocabulary_hash, target.vocabulary_size)
    await drafter.close()


async def test_a_completion_goes_on_with_the_text_of_its_prompt(sentencepiece: Path) -> None:
    """As transformers decodes both together: the first word keeps its space, and ends the text
    where a stop string begins with it."""
    tokenizer = load_tokenizer(sentencepiece)
    model = choose_model(str(sentencepiece))
    prompt_ids = tokenizer.encode("The quick brown fox")
    pieces = tokenizer.vocabulary().pieces.items()
    word, spelt = next((i, p.decode()) for i, p in pieces if re.fullmatch(rb" [a-z]+", p))
    forced = Processors(allowed_token_ids=(word,))
    params = GenerationParams(
        sampling=SamplingParams(0.0), max_tokens=3, ignore_eos=True, processors=forced
    )
    asked = GenerationRequest("The quick brown fox", "ar", params)
    async with (
        EmbeddedSuite(load_pair(model, model)) as suite,
        AggregatorClient(suite.target) as client,
    ):
        whole = await client.generate(asked)
        stopped = await client.generate(replace(asked, stop=(spelt,)))
    together = tokenizer.decode([*prompt_ids, *whole.token_ids])
    assert "The quick brown fox" + whole.text == together == "The quick brown fox" + spelt * 3
    assert stopped.text == ""
