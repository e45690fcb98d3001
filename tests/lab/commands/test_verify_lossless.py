"""`tandem verify-lossless`: exact presets pass, a lossy one and a broken rule fail."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from lab.commands.verify_lossless import _divergence_words
from tandem.cli import main
from tandem.core.gumbel import gumbel
from tandem.generation.client import Generated
from tandem.specdec.rules import Proposal, RejectionRule, TargetProbs
from tandem.testing.goodness_of_fit import Fit
from tandem.testing.lossless import ROUNDING, LosslessPlan, PresetCheck, _divergences
from tandem.testing.scripted import ScriptedEngine
from tests.long_runs import LONG
from tests.unit.cli.scripted_pair import VOCABULARY, scripted_pair


def verify(*arguments: str) -> Result:
    flags = ["verify-lossless", "--max-tokens", "8", "--samples", "100", *arguments]
    return CliRunner().invoke(main, flags, prog_name="tandem")


def row_of(*arguments: str) -> dict[str, Any]:
    told = json.loads(verify("--json", *arguments).stdout)
    row: dict[str, Any] = told["rows"][0]
    assert told["passed"] == row["passed"]
    return row


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "lab.commands.verify_lossless.load_pair"
    monkeypatch.setattr(name, lambda draft, target: scripted_pair())


def test_the_demo_pair_passes_over_a_slow_link() -> None:
    ended = verify(
        "--prompt", "A list is", "--prompt", "Once upon a time", "--rtt-ms", "10", "--mbps", "50"
    )
    assert (ended.exit_code, ended.stderr) == (0, "")
    head, names, row, signed = ended.stdout.splitlines()
    what = "2 texts of 8 tokens, seed 0, an emulated link"
    assert head == f"demo-draft drafts for demo-target: {what}"
    assert signed == "as demo-target alone, up to rounding: coupled."
    assert names.split()[:2] == ["preset", "result"]
    assert row.split()[:4] == ["coupled", "passed", "2/2", "2/2"]


@LONG  # of so many sequences; an exact preset passes, and what is found is printed, below
@pytest.mark.usefixtures("scripted")
def test_an_exact_preset_passes_and_a_lossy_one_shows_its_bias() -> None:
    assert_both_are_shown()


@pytest.mark.usefixtures("scripted")
def test_what_is_found_of_an_exact_and_a_lossy_preset_is_printed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exact = PresetCheck(
        preset="dsd",
        lossy=False,
        texts=1,
        different={"greedy": 0},
        sequences=Fit(100, 9, 8.0, 30.0, 0.07, 0.06, 0.4),
        uplink_bytes=9.0,
        downlink_bytes=9.0,
        target_passes=1.0,
    )
    lossy = replace(exact, preset="picospec-top-k", lossy=True)

    async def checked(*arguments: object, **options: object) -> list[PresetCheck]:
        return [exact, lossy]

    monkeypatch.setattr("lab.commands.verify_lossless.check_presets", checked)
    assert_both_are_shown()


def assert_both_are_shown() -> None:
    ended = verify("--preset", "dsd", "--preset", "picospec-top-k", "--prompt", "a")
    assert (ended.exit_code, ended.stderr) == (1, "")
    head, _, exact, lossy, power, signed = ended.stdout.splitlines()
    assert head.endswith("seed 0, no emulated link")
    assert exact.split()[:4] == ["dsd", "passed", "1/1", "-"]
    assert lossy.split()[:2] == ["picospec-top-k", "lossy"]
    assert "would be found in 99% of runs; a false alarm comes once in 10,000" in power
    assert signed == "as scripted alone, bit for bit: dsd; lossy, as declared: picospec-top-k."


@pytest.mark.usefixtures("scripted")
def test_a_preset_whose_drafts_are_made_in_the_cloud_passes() -> None:
    ended = verify("--preset", "cloud-draft", "--prompt", "a")
    assert (ended.exit_code, ended.stderr) == (0, "")
    assert ended.stdout.splitlines()[-1] == "as scripted alone, bit for bit: cloud-draft."


@pytest.mark.usefixtures("scripted")
def test_a_rule_that_accepts_everything_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what passes above, with the rule that there is."""

    def accepted(
        self: RejectionRule, target: TargetProbs, proposal: Proposal, position: int
    ) -> int:
        return 0

    monkeypatch.setattr(RejectionRule, "accepted", accepted)
    row = row_of("--preset", "dsd", "--prompt", "a", "--samples", "120")
    assert not row["passed"]
    assert row["sequences"]["statistic"] > row["sequences"]["limit"]
    assert row["different"]["greedy"] == 1
    (found,) = row["divergences"]
    assert (found["kind"], found["text"]) == ("greedy", 0)
    assert found["gap"] > ROUNDING


@pytest.mark.usefixtures("scripted")
@pytest.mark.parametrize(
    ("temperature", "apart", "words"),
    [
        (1.0, 0.0, "turns at token 4, where the target scores both tokens alike to 0: rounding"),
        (0.0, 0.0, "rounding"),
        (0.0, 0.5, "the target's scores are 0.5 apart: no rounding"),
    ],
)
def test_it_is_told_where_a_text_turns_and_whether_rounding_explains_it(
    temperature: float, apart: float, words: str
) -> None:
    """After three tokens the target has two likeliest ones, which may be as likely."""
    logits = np.full(VOCABULARY, -9.0, np.float32)
    logits[[5, 6]] = 4.0, 4.0 + apart
    if temperature:  # what the draw adds to each is taken from it beforehand
        logits[[5, 6]] -= gumbel(3, 5, np.array([5, 6])).astype(np.float32)
    probs = np.exp(logits - logits.max())
    target = ScriptedEngine(VOCABULARY, lambda context: (probs / probs.sum()).astype(np.float32))
    kind = "coupled" if temperature else "greedy"
    plan = LosslessPlan(prompts=((1, 2),), tokens=4, samples=100, sequence=1, seed=3)
    got, want = (Generated(token_ids=[1, 1, 1, last]) for last in (5, 6))
    (found,) = _divergences(target, plan, {kind: [got]}, {kind: [want]})
    assert (found.kind, found.text, found.token) == (kind, 0, 3)
    assert found.gap == pytest.approx(apart, abs=ROUNDING)
    assert _divergence_words(replace(found, gap=apart)).endswith(words)
    assert found.is_rounding == (apart == 0)
    short = Generated(token_ids=[1, 1, 1])
    (found,) = _divergences(target, plan, {kind: [short]}, {kind: [want]})
    assert (found.token, found.gap) == (3, None)
    assert not found.is_rounding


@pytest.mark.usefixtures("scripted")
@pytest.mark.parametrize("same_bits", [False, True])
def test_a_target_that_rounds_differently_in_every_batch_is_named(
    monkeypatch: pytest.MonkeyPatch, same_bits: bool
) -> None:
    different = PresetCheck(
        preset="dsd",
        lossy=False,
        texts=1,
        different={"greedy": 1},
        sequences=None,
        uplink_bytes=9.0,
        downlink_bytes=9.0,
        target_passes=1.0,
    )

    async def checked(*arguments: object, **options: object) -> list[PresetCheck]:
        return [different]

    pair = scripted_pair()
    own = replace(pair.target.capabilities, same_bits=same_bits)
    monkeypatch.setattr(pair.target, "capabilities", own)
    monkeypatch.setattr("lab.commands.verify_lossless.load_pair", lambda draft, target: pair)
    monkeypatch.setattr("lab.commands.verify_lossless.check_presets", checked)
    ended = verify("--preset", "dsd", "--prompt", "a")
    assert ended.exit_code == 1
    assert ended.stdout.splitlines()[-1] == "DIFFERENT: dsd."
    assert ("does not give the same bits in every batch" in ended.stdout) is not same_bits


@pytest.mark.usefixtures("scripted")
@pytest.mark.parametrize(
    ("batch_invariant", "exactness", "words"),
    [(True, "bit_for_bit", "bit for bit"), (False, "up_to_rounding", "up to rounding")],
)
def test_it_says_whether_equal_texts_are_equal_bit_for_bit(
    monkeypatch: pytest.MonkeyPatch, batch_invariant: bool, exactness: str, words: str
) -> None:
    pair = scripted_pair()
    own = replace(pair.target.capabilities, batch_invariant=batch_invariant)
    monkeypatch.setattr(pair.target, "capabilities", own)
    monkeypatch.setattr("lab.commands.verify_lossless.load_pair", lambda draft, target: pair)
    said = verify("--prompt", "a")
    assert said.exit_code == 0
    assert words in said.stdout
    assert json.loads(verify("--prompt", "a", "--json").stdout)["exactness"] == exactness


@pytest.mark.parametrize("preset", ["ar", "dragon", "nonesuch"])
def test_only_presets_with_a_draft_and_a_target_are_taken(preset: str) -> None:
    ended = verify("--preset", preset)
    assert ended.exit_code == 2
    assert "--preset" in ended.stderr
