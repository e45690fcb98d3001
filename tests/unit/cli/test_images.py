"""Images with a prompt, through the whole suite: both models see them, and only good ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from transformers import AutoTokenizer

from tandem.cli import main
from tandem.commands.ask_suite import ask
from tandem.core.errors import InvalidArgument
from tandem.core.probs import SamplingParams
from tandem.core.prompt import MAX_IMAGES, MAX_IMAGES_BYTES, Prompt, Turn
from tandem.generation.client import AggregatorClient, Generated
from tandem.generation.request import GenerationRequest
from tandem.netem.link_model import shape_from
from tandem.specdec.choices import Acceptance
from tandem.specdec.messages import GenerationParams, Open
from tandem.specdec.presets import PRESETS
from tandem.suite.embedded import EmbeddedSuite
from tandem.suite.models import ModelPair, choose_model, load_pair
from tandem.wire.verifier_codec import EdgeCodec
from tests.long_runs import LONG
from tests.services.verifier_peer import edge_peer, prefix_of
from tests.unit.backends.test_image_files import BOMB
from tests.unit.backends.tiny_vision import (
    END,
    KINDS,
    PAD,
    START,
    image_processor,
    model_of,
    picture,
    write_vision_model,
)
from tests.unit.cli.scripted_pair import scripted_pair

IMAGES = (picture(), picture(24, 48, seed=1, kind="JPEG"))
TOKENS = 16
TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {
        kind: write_vision_model(tmp_path_factory.mktemp(kind), kind, seed)
        for seed, kind in enumerate(KINDS, start=1)
    }
    finer = tmp_path_factory.mktemp("finer")
    return made | {"finer": write_vision_model(finer, "qwen2-vl", 3, longest=2048)}


@pytest.fixture(scope="module")
def pair(folders: dict[str, Path]) -> ModelPair:
    """Qwen2.5-VL drafts for Qwen2-VL."""
    return pair_of(folders["qwen2.5-vl"], folders["qwen2-vl"])


def pair_of(draft: Path, target: Path) -> ModelPair:
    return load_pair(*(choose_model(str(folder)) for folder in (draft, target)))


def request(
    preset: str,
    temperature: float = 1.0,
    prompt: Prompt = "The quick fox",
    images: tuple[bytes, ...] = IMAGES,
    tokens: int = TOKENS,
) -> GenerationRequest:
    length = None if preset == "ar" else 3
    return GenerationRequest(
        prompt,
        preset,
        GenerationParams(
            sampling=SamplingParams(temperature),
            max_tokens=tokens,
            seed=3,
            ignore_eos=True,
            images=images,
        ),
        overrides=() if length is None else (f"draft_length={length}",),
    )


def generated_by_transformers(folder: Path, text: str, images: tuple[bytes, ...]) -> list[int]:
    """Greedy continuation by transformers' own `generate`, with its own prompt and positions."""
    from tandem.backends.image_files import decode_image

    model = model_of("qwen2-vl", seed=1)
    decoded = [decode_image(image, index) for index, image in enumerate(images)]
    pixels: Any = image_processor()(images=decoded, return_tensors="pt")
    prompt: list[int] = []
    for grid in pixels["image_grid_thw"]:
        prompt += [START, *[PAD] * (int(grid.prod()) // 4), END]
    ids = torch.tensor([prompt + AutoTokenizer.from_pretrained(folder).encode(text)])
    out = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        mm_token_type_ids=(ids == PAD).int(),
        **pixels,
        do_sample=False,
        min_new_tokens=TOKENS,
        max_new_tokens=TOKENS,
        eos_token_id=None,
    )
    found: list[int] = out[0, ids.shape[1] :].tolist()
    return found


async def test_greedy_text_is_transformers_own(pair: ModelPair, folders: dict[str, Path]) -> None:
    wanted = generated_by_transformers(folders["qwen2-vl"], "The quick fox", IMAGES)
    async with EmbeddedSuite(pair) as suite, AggregatorClient(suite.target) as client:
        alone = await client.generate(request("ar", 0.0))
        blind = await client.generate(request("ar", 0.0, images=()))
    assert alone.token_ids == wanted
    assert blind.token_ids != wanted


EVERY_RUN = ("dsd", "dssd", "picospec", "mc-dsd", "coupled", "auto", "fsd")
"""Presets that `make test` asks with images: each way to draft and to judge."""
DRAFTING = [name for name, preset in PRESETS.items() if preset.drafts]


@pytest.mark.parametrize("presets", [EVERY_RUN, pytest.param(DRAFTING, marks=LONG, id="all")])
async def test_the_text_is_the_target_s_own(pair: ModelPair, presets: Sequence[str]) -> None:
    exact = [
        (name, 1.0 if PRESETS[name].acceptance is Acceptance.GUMBEL else 0.0) for name in presets
    ]
    accepted = 0
    async with EmbeddedSuite(pair) as suite, AggregatorClient(suite.target) as client:
        alone = {t: await client.generate(request("ar", t, tokens=8)) for t in (0.0, 1.0)}
        for preset, temperature in exact:
            drafted = await client.generate(request(preset, temperature, tokens=8))
            assert drafted.token_ids == alone[temperature].token_ids, (preset, temperature)
            assert drafted.summary is not None
            accepted += drafted.summary.accepted
    assert accepted > 0
    assert (pair.draft.sessions_open, pair.target.sessions_open) == (0, 0)


@pytest.mark.parametrize("preset", ["coupled", pytest.param("dssd", marks=LONG)])
async def test_a_cut_brings_the_images_again(pair: ModelPair, preset: str) -> None:
    link = shape_from(0.01)
    async with EmbeddedSuite(pair, link=link) as suite, AggregatorClient(suite.target) as client:
        whole = await client.generate(request(preset))
        cut = Generated()
        async for cut in client.stream(request(preset)):
            if len(cut.token_ids) in range(3, 9) and suite.emulator is not None:
                suite.emulator.drop()
    assert cut.token_ids == whole.token_ids
    assert cut.summary is not None
    assert cut.summary.resumes > 0


async def test_a_chat_has_its_images_in_the_last_question(pair: ModelPair) -> None:
    turns = (Turn("user", "Hello"), Turn("assistant", "Yes"), Turn("user", "What is it?"))
    ids = pair.tokenizer.chat([{"role": t.role, "content": t.content} for t in turns], images=2)
    assert [ids.count(token) for token in (START, PAD, END)] == [2, 2, 2]
    async with EmbeddedSuite(pair) as suite, AggregatorClient(suite.target) as client:
        asked = await client.generate(request("coupled", prompt=turns))
        by_ids = await client.generate(request("coupled", prompt=tuple(ids)))
    assert asked.token_ids == by_ids.token_ids


@pytest.mark.parametrize(
    ("images", "prompt", "why"),
    [
        ((BOMB,), "fox", "pixels"),
        ((IMAGES[0], b"junk"), "fox", r"\[1\] is not one of PNG"),
        ((IMAGES[0][:-40],), "fox", r"\[0\] cannot be decoded"),
        ((b"",), "fox", "is empty"),
        (IMAGES[:1] * (MAX_IMAGES + 1), "fox", "the maximum is"),
        ((bytes(MAX_IMAGES_BYTES + 1),), "fox", "bytes in all"),
        (IMAGES, (9, PAD, 9), "1 image placeholders for 2 images"),
    ],
)
async def test_bad_images_are_refused_by_name(
    pair: ModelPair, images: tuple[bytes, ...], prompt: Prompt, why: str
) -> None:
    async with EmbeddedSuite(pair) as suite:
        with pytest.raises(InvalidArgument, match=why) as refused:
            await ask(suite.target, request("coupled", prompt=prompt, images=images), TIMEOUT_S)
        assert refused.value.field == "images"
        good = await ask(suite.target, request("coupled", tokens=4), TIMEOUT_S)
    assert len(good.token_ids) == 4
    assert (pair.draft.sessions_open, pair.target.sessions_open) == (0, 0)


async def test_models_of_text_alone_refuse_images(pair: ModelPair) -> None:
    async with EmbeddedSuite(scripted_pair()) as suite:
        with pytest.raises(InvalidArgument, match="images: the model scripted reads text only"):
            await ask(suite.target, request("coupled"), TIMEOUT_S)


async def test_the_cloud_refuses_what_its_model_would_see_otherwise(
    folders: dict[str, Path],
) -> None:
    """The draft's preprocessing makes another number of tokens of an image than the target's."""
    async with EmbeddedSuite(pair_of(folders["finer"], folders["qwen2-vl"])) as suite:
        words = r"images: the cloud at .* says: .this model needs \[12, 10\] placeholders"
        with pytest.raises(InvalidArgument, match=words):
            await ask(suite.target, request("coupled"), TIMEOUT_S)


@pytest.mark.parametrize(
    ("images", "places", "why"),
    [
        ((BOMB,), [12], "pixels"),
        ((b"junk",), [12], "not one of"),
        ((IMAGES[0][:-40],), [12], "cannot be decoded"),
        (IMAGES, [12], "placeholders, the prompt has"),
        (IMAGES[:1], [11], "placeholders, the prompt has"),
        (IMAGES[:1], [], "placeholders, the prompt has"),
    ],
)
async def test_the_cloud_checks_for_itself(
    pair: ModelPair, images: tuple[bytes, ...], places: list[int], why: str
) -> None:
    """Whatever an edge of another make sends."""
    ids = (9, *(token for count in places for token in (START, *[PAD] * count, END)), 9)
    target, settings = pair.target, PRESETS["coupled"].verify_settings
    message = Open(
        *(7, len(ids), prefix_of(ids)),
        vocabulary_hash=target.vocabulary_hash,
        vocabulary_size=target.vocabulary_size,
        prompt_ids=ids,
        committed_ids=(),
        params=GenerationParams(seed=3, max_tokens=4, ignore_eos=True, images=images),
        settings=settings,
    )
    async with EmbeddedSuite(pair) as suite, edge_peer(suite.verifier_target) as peer:
        await peer.send(EdgeCodec(target.vocabulary_size, settings).encode(message))
        ending = await peer.ending()
    assert ending.code == "INVALID_ARGUMENT"
    assert ending.details.startswith("images: ")
    assert why in ending.details
    assert target.sessions_open == 0


def test_the_command_line_takes_image_files(folders: dict[str, Path], tmp_path: Path) -> None:
    paths = [tmp_path / "one.png", tmp_path / "two.jpg"]
    for path, image in zip(paths, IMAGES, strict=True):
        path.write_bytes(image)
    models = ["--draft", str(folders["qwen2.5-vl"]), "--target", str(folders["qwen2-vl"])]
    asked = ["generate", "What is it?", "--max-tokens", "4", "--json", *models]
    flags = [word for path in paths for word in ("--image", str(path))]
    ended = CliRunner().invoke(main, asked + flags)
    assert (ended.exit_code, ended.stderr) == (0, "")
    seen = json.loads(ended.stdout)
    blind = json.loads(CliRunner().invoke(main, asked).stdout)
    assert seen["prompt_tokens"] == blind["prompt_tokens"] + (12 + 2) + (10 + 2)
    paths[0].write_bytes(b"junk")
    refused = CliRunner().invoke(main, asked + flags)
    assert refused.exit_code != 0
    assert "--image: [0] is not one of PNG" in refused.stderr
