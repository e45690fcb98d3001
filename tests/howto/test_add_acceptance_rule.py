"""The how-to of `tandem/specdec/rules.py`: an acceptance rule is added by touching the files that
it names, and no others."""

from pathlib import Path

from tests.howto.edited_checkout import EditedCheckout

CHOICES = "tandem/specdec/choices.py"
RULES = "tandem/specdec/rules.py"
PROTO = "protos/tandem_api/verifier/v1/verifier.proto"
PRESETS = "tandem/specdec/presets.py"
TEST = "tests/virtual_time/test_never_accepts.py"

ABOVE = "    return target.probs if isinstance(target, DecidedTarget) else target\n"
RULE = '''

@dataclass(frozen=True, slots=True)
class NeverAccepts(AcceptanceRule):
    """Rejects every draft, and draws from the target instead: slow, and exact."""

    drafter_invariant: ClassVar[bool] = True
    rng: RandomSource

    @classmethod
    def of(cls, choices: RuleChoices, seed: int, rng: RandomSource, keep_probs: bool) -> Self:
        return cls(rng)

    def propose(self, draft_probs: Array, position: int) -> int:
        return sample_draft(draft_probs, self.rng, position)

    def candidates(
        self, draft_probs: Array, count: int, position: int, first_draw: int
    ) -> list[int]:
        return draw_candidates(draft_probs, count, self.rng, position, first_draw, False)

    def target_token(self, target: TargetProbs, position: int) -> int:
        return sample_target(probs_of(target), self.rng, position)

    def accepted(self, target: TargetProbs, proposal: Proposal, position: int) -> int | None:
        return None

    def recovered(self, target: TargetProbs, proposal: Proposal, position: int) -> int:
        return self.target_token(target, position)
'''
ADDED_PRESET = """\
    Preset(
        name="never",
        schedule=_stop_and_wait(2),
        acceptance=Acceptance.NEVER,
        uplink=Uplink.IDS,
        rejection_payload=RejectionPayload.TOKEN,
    ),
"""
EXACT = '''\
"""Whatever is drafted: the answers have the target's distribution, to the last fraction."""

from collections import Counter
from pathlib import Path

import tandem
from tandem.specdec.messages import CloudMessage, Committed
from tandem.specdec.presets import PRESETS
from tandem.specdec.rules import NeverAccepts, acceptance_type
from tandem.wire.open_codec import open_from_proto, open_to_proto
from tests.virtual_time.cases import assert_sample, model_pair, payload_probs, run
from tests.virtual_time.cloud_frames import opening
from tests.virtual_time.exact_models import exact_payload_probs
from tests.virtual_time.lockstep import Lockstep, Pace
from tests.virtual_time.test_exact_distribution import probs_through_the_machines

PRESET = PRESETS["never"]


def test_the_copy_is_tested() -> None:
    assert Path(tandem.__file__).is_relative_to(Path.cwd())


def test_the_distribution_in_fractions() -> None:
    probs = probs_through_the_machines(PRESET, 2, Pace())
    assert probs == exact_payload_probs(2, frozenset())


def test_a_sample_over_the_simulated_link() -> None:
    models = model_pair(4)
    runs = [run(PRESET, models, seed) for seed in range(510)]
    assert_sample(Counter(each.token_ids for each in runs), payload_probs(models))


def test_the_cloud_accepts_no_draft() -> None:
    """A draft may still be right: by chance the token in its place is the same."""
    heard: list[int] = []

    def hear(edge: object, message: CloudMessage) -> bool:
        if isinstance(message, Committed):
            heard.append(message.accepted)
        return True

    Lockstep(PRESET, model_pair(4), to_edge=hear).run()
    assert set(heard) == {0}


def test_it_travels() -> None:
    opened = opening(PRESET)
    decoded = open_from_proto(open_to_proto(opened), context_length=512)["settings"]
    assert acceptance_type(decoded) is NeverAccepts
    assert not PRESET.lossy
'''


def test_a_rule_is_added_in_the_named_files(tmp_path: Path) -> None:
    """Its answers have the target's distribution, through both machines."""
    copied = ("lab", "tandem", "tests", "protos", "tools", "pyproject.toml")
    checkout = EditedCheckout(tmp_path, *copied)
    checkout.insert_after(CHOICES, '    GUMBEL = "gumbel"\n', '    NEVER = "never"\n')
    checkout.insert_after(
        RULES, "            return GumbelCouplingRule\n",
        "        case Acceptance.NEVER:\n            return NeverAccepts\n",
    )  # fmt: skip
    checkout.insert_after(RULES, ABOVE, RULE)
    checkout.insert_after(
        PROTO, "  ACCEPTANCE_RULE_GUMBEL = 2;\n", "  ACCEPTANCE_RULE_NEVER = 3;\n"
    )
    checkout.insert_after(PRESETS, "_LISTED = (\n", ADDED_PRESET)
    checkout.create(TEST, EXACT)
    checkout.build_protos()
    assert checkout.changed() == {CHOICES, RULES, PROTO, PRESETS, TEST}
    assert "5 passed" in checkout.run("-m", "pytest", "-q", "-p", "no:cacheprovider", TEST)
