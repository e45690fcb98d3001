"""At temperature 0 every exact preset says what one machine with all documents would: real models.

The demo pair, the small model at the device, over the demo documents: the distributions of both
sides are mixed by brute force and their argmax is compared with what both sides' machines agree on
in virtual time. `--prompts 300` makes the 300 prompts that the published code gets a third of
right.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.backends.interface import Engine
from tandem.core.probs import SamplingParams
from tandem.core.randomness import SeededRandom
from tandem.netem.link_model import link_from
from tandem.suite.models import ModelPair
from tandem.testing.simulation.side_distributions import SideDistributions
from tandem.testing.simulation.two_sided_answer import SimulatedSide, simulate_two_sided
from tandem.two_sided.protocol.messages import AggregationRequest
from tandem.two_sided.protocol.mixture import mixture, side_weights
from tandem.two_sided.protocol.placement import placement_policy_for
from tests.composed_presets import composed
from tests.pair.test_text_equality import prompts

PRESETS = (
    "drdg-tw",
    "dragon-device",
    "dragon placement=cloud",
    "dragon placement=random",
    "dragon-coupled",
)
TOKENS = 6
DOCUMENT_TOKENS = 48
BEGIN = 0
DOCUMENTS = Path(__file__).parents[2] / "models" / "demo-documents"
RTTS_S = (0.0, 0.1)


def side_distributions(pair: ModelPair, engine: Engine, folder: str) -> SideDistributions:
    """The beginnings of two of a side's documents, before every text, each after the tokenizer's
    begin-of-text token."""
    files = sorted((DOCUMENTS / folder).iterdir())[:2]
    ids = [tuple(pair.tokenizer.encode(file.read_text()))[:DOCUMENT_TOKENS] for file in files]
    return SideDistributions(engine, [(BEGIN, *each) for each in ids], SamplingParams())


def argmax_text(
    device: SideDistributions, cloud: SideDistributions, prompt_ids: tuple[int, ...]
) -> tuple[int, ...]:
    weights = side_weights(device.log_mass, cloud.log_mass)
    context = prompt_ids
    for _ in range(TOKENS):
        context = (*context, int(mixture(device(context), cloud(context), weights).argmax()))
    return context[len(prompt_ids) :]


@pytest.mark.timeout(400)
def test_the_text_is_the_argmax_of_all_documents(
    pair: ModelPair, pytestconfig: pytest.Config
) -> None:
    device = side_distributions(pair, pair.draft, "private")
    cloud = side_distributions(pair, pair.target, "public")
    different = []
    for seed, text in enumerate(prompts(pytestconfig.getoption("--prompts"))):
        prompt_ids = tuple(pair.tokenizer.encode(text))
        expected = argmax_text(device, cloud, prompt_ids)
        for name in PRESETS:
            for rtt_s in RTTS_S:
                preset = composed(name)
                found = simulate_two_sided(
                    AggregationRequest(
                        session=seed,
                        prompt_ids=prompt_ids,
                        vocabulary_hash="demo",
                        vocabulary_size=len(device(prompt_ids)),
                        sampling=SamplingParams(0.0),
                        seed=seed,
                        max_tokens=TOKENS,
                        preset=preset,
                    ),
                    SimulatedSide(device, device.log_mass, 0.06),
                    SimulatedSide(cloud, cloud.log_mass, 0.06),
                    link_from(rtt_s),
                    placement_policy_for=lambda side: (
                        placement_policy_for(preset.placement, SeededRandom(seed)),  # noqa: B023
                        None,
                    ),
                )
                if found.token_ids != expected:
                    different.append((name, rtt_s, text))
    device.close()
    cloud.close()
    assert not different, f"{len(different)} differ, the first is {different[0]}"
