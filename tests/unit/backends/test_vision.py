"""Models that see: packed passes with images equal transformers' own, through every history."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tandem.backends.interface import ForwardRequest, Session
from tandem.backends.torch.engine import HuggingFaceEngine
from tandem.backends.torch.loading import load_engine
from tandem.backends.torch.qwen_vision import QwenVision
from tandem.core.errors import InvalidArgument
from tandem.core.prompt import MAX_IMAGE_TOKENS
from tandem.testing.paced import PacedEngine
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

IMAGES = [picture(), picture(24, 48, seed=1)]
AFTER = [20, 21, 22, 23, 24]


class Seeing:
    """A model run by transformers alone, and the same weights in an engine."""

    def __init__(self, kind: str) -> None:
        self.reference = model_of(kind, seed=1)
        model = copy.deepcopy(self.reference)
        self.vision = QwenVision(model, image_processor())
        self.engine = HuggingFaceEngine(
            model, model_name=kind, vocabulary_hash="none", vision=self.vision
        )
        self.counts = self.vision.tokens_per_image(IMAGES)
        images = [[START, *[PAD] * count, END] for count in self.counts]
        self.prompt = [11, 12, *images[0], 13, *images[1], 14, 15]

    def logits(self, token_ids: list[int]) -> NDArray[np.float32]:
        """[tokens, vocabulary] of a sequence that begins with the prompt."""
        pixels = self.vision.prepare(IMAGES)
        ids = torch.tensor([token_ids])
        kinds = (ids == PAD).int()
        kinds[:, len(self.prompt) :] = 0
        with torch.inference_mode():
            found = self.reference(
                input_ids=ids,
                pixel_values=pixels.patches,
                image_grid_thw=pixels.grid,
                mm_token_type_ids=kinds,
            )
        rows: NDArray[np.float32] = found.logits[0].numpy()
        return rows

    def logits_after_the_prompt(self, answer: list[int]) -> NDArray[np.float32]:
        """[len(answer), vocabulary], as `generate` computes them: with a cache, without images."""
        pixels, ids = self.vision.prepare(IMAGES), torch.tensor([self.prompt])
        kinds = (ids == PAD).int()
        grid = pixels.grid
        _, delta = self.reference.model.get_rope_index(ids, kinds, image_grid_thw=grid)
        positions = torch.arange(len(answer)) + len(self.prompt) + delta
        with torch.inference_mode():
            cache = self.reference(
                input_ids=ids,
                pixel_values=pixels.patches,
                image_grid_thw=grid,
                mm_token_type_ids=kinds,
                use_cache=True,
            ).past_key_values
            found = self.reference(
                input_ids=torch.tensor([answer]),
                position_ids=positions.expand(3, 1, -1),
                past_key_values=cache,
            )
        rows: NDArray[np.float32] = found.logits[0].numpy()
        return rows

    def open(self) -> Session:
        session = self.engine.open(200)
        self.vision.attach(session, self.prompt, self.vision.prepare(IMAGES))
        return session


@pytest.fixture(scope="module", params=KINDS)
def seeing(request: pytest.FixtureRequest) -> Seeing:
    return Seeing(request.param)


def feed(seeing: Seeing, session: Session, token_ids: list[int]) -> Any:
    request = ForwardRequest(session, tuple(token_ids), len(token_ids))
    (rows,) = seeing.engine.forward([request])
    return rows


def test_a_prompt_with_images_equals_transformers(seeing: Seeing) -> None:
    session = seeing.open()
    text = seeing.prompt + AFTER
    assert np.abs(feed(seeing, session, text) - seeing.logits(text)).max() < 1e-4
    session.close()


def test_what_is_seen_matters(seeing: Seeing) -> None:
    blind = seeing.engine.open(200)
    text = seeing.prompt + AFTER
    assert np.abs(feed(seeing, blind, text) - seeing.logits(text)).max() > 0.1
    blind.close()


@pytest.mark.parametrize("step", [1, 5, 17])
def test_in_steps_it_is_the_same(seeing: Seeing, step: int) -> None:
    session = seeing.open()
    text = seeing.prompt + AFTER
    rows = [feed(seeing, session, text[at : at + step]) for at in range(0, len(text), step)]
    assert np.abs(np.concatenate(rows) - seeing.logits(text)).max() < 1e-4
    session.close()


def test_positions_after_the_images_survive_rollbacks(seeing: Seeing) -> None:
    """To the answer, into an image, to the very beginning."""
    session, prompt = seeing.open(), seeing.prompt
    feed(seeing, session, prompt + AFTER)
    for length in (len(prompt) + 2, len(prompt), 7, 0):
        session.rollback(length)
        text = (prompt + AFTER)[:length] + prompt[length:] + [30, 31, 32]
        rows = feed(seeing, session, text[length:])
        assert np.abs(rows - seeing.logits(text)[length:]).max() < 1e-4
    session.close()


def test_beside_other_sessions_and_in_forks(seeing: Seeing) -> None:
    session, other = seeing.open(), seeing.engine.open(40)
    feed(seeing, session, seeing.prompt)
    child = seeing.engine.fork(session, len(seeing.prompt) - 1, 200)
    tail = [seeing.prompt[-1], 40, 41]
    requests = [
        ForwardRequest(other, (PAD, 9, PAD), 3),
        ForwardRequest(child, tuple(tail), 3),
        ForwardRequest(session, (50, 51), 2),
    ]
    text, of_child, of_session = seeing.engine.forward(requests)
    assert np.abs(of_child - seeing.logits([*seeing.prompt, 40, 41])[-3:]).max() < 1e-4
    assert np.abs(of_session - seeing.logits([*seeing.prompt, 50, 51])[-2:]).max() < 1e-4
    with torch.inference_mode():
        alone = seeing.reference(input_ids=torch.tensor([[PAD, 9, PAD]])).logits[0].numpy()
    assert np.abs(text - alone).max() < 1e-4
    for opened in (session, other, child):
        opened.close()


def test_a_tree_after_the_images(seeing: Seeing) -> None:
    session = seeing.open()
    feed(seeing, session, seeing.prompt)
    (rows,) = seeing.engine.forward([ForwardRequest(session, (40, 41, 42, 43), 4, (-1, 0, 0, 2))])
    for path, row in zip([[40], [40, 41], [40, 42], [40, 42, 43]], rows, strict=True):
        assert np.abs(row - seeing.logits(seeing.prompt + path)[-1]).max() < 1e-4
    session.keep_path([0, 2, 3])
    text = [*seeing.prompt, 40, 42, 43, 44]
    assert np.abs(feed(seeing, session, [44])[0] - seeing.logits(text)[-1]).max() < 1e-4
    session.close()


def test_a_placeholder_in_the_answer_is_a_token_like_others(seeing: Seeing) -> None:
    session = seeing.open()
    answer = [40, PAD, PAD, 41]
    feed(seeing, session, seeing.prompt)
    rows = feed(seeing, session, answer)
    assert np.abs(rows - seeing.logits_after_the_prompt(answer)).max() < 1e-4
    session.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_brings_its_vision_along(kind: str, tmp_path: Path) -> None:
    engine = load_engine(write_vision_model(tmp_path, kind, longest=2048))
    found = engine.vision
    assert found is not None
    assert found.around == (START, END)
    assert found.tokens_per_image(IMAGES) == [24, 18]
    assert PacedEngine(engine, 0.0, 0.0).vision is found
    (tmp_path / "preprocessor_config.json").unlink()
    with pytest.raises(InvalidArgument, match="preprocessor_config"):
        load_engine(tmp_path)


def test_no_image_is_more_than_its_share_of_tokens() -> None:
    """Both ends scale down alike, however much their models could see."""
    vision = QwenVision(model_of("qwen2-vl", seed=1), image_processor(longest=10**7))
    small, large = picture(80, 80), picture(1500, 1000)
    assert vision.tokens_per_image([small]) == [100]
    (count,) = vision.tokens_per_image([large])
    assert 0.9 * MAX_IMAGE_TOKENS < count <= MAX_IMAGE_TOKENS
    grid = vision.prepare([large]).grid[0]
    assert int(grid.prod()) // 4 == count


def test_counts_are_those_of_the_decoded_images(seeing: Seeing) -> None:
    """By the header alone, for every shape that is allowed."""
    shapes = [(8, 8), (640, 8), (8, 640), (33, 97), (300, 200), (1, 1), (1, 100)]
    images = [picture(width, height) for width, height in shapes]
    grids = seeing.vision.prepare(images).grid
    counts = seeing.vision.tokens_per_image(images[:4]) + seeing.vision.tokens_per_image(images[4:])
    assert counts == [int(grid.prod()) // 4 for grid in grids]
