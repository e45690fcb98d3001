"""The how-to of `tandem/specdec/presets.py`: a preset is one `Preset(...)`, and nothing else."""

from pathlib import Path

from tests.howto.edited_checkout import EditedCheckout

PRESETS = "tandem/specdec/presets.py"
ADDED = """\
    Preset(
        name="eager",
        schedule=Schedule(window=6, chunk=2, verify_on_arrival=True),
        acceptance=Acceptance.GUMBEL,
        uplink=Uplink.IDS,
        rejection_payload=RejectionPayload.TOKEN,
        predraft=Predraft.LIKELY_OUTCOMES,
    ),
"""
GENERATE = """\
from pathlib import Path

import tandem
from tandem.specdec.presets import PRESETS
from tandem.wire.open_codec import open_from_proto, open_to_proto
from tests.virtual_time.cases import model_pair, run
from tests.virtual_time.cloud_frames import opening

assert Path(tandem.__file__).is_relative_to(Path.cwd()), tandem.__file__
preset = PRESETS["eager"]
preset.validate()
opened = opening(preset)
decoded = open_from_proto(open_to_proto(opened), context_length=512)["settings"]
assert (decoded.preset_name, decoded.acceptance) == (preset.name, preset.acceptance)
models = model_pair(12, noise=0.4)
texts = {}
for seed in range(30):
    answers = [run(PRESETS[name], models, seed, max_tokens=16) for name in ("eager", "ar")]
    assert answers[0].token_ids == answers[1].token_ids
    assert answers[0].stats.accepted > 0
print(list(PRESETS)[0], preset.lossy)
"""


def test_a_preset_is_added_in_one_file(tmp_path: Path) -> None:
    """Its answers are the target's own, through both machines."""
    checkout = EditedCheckout(tmp_path, "lab", "tandem", "tests", "protos", "tools")
    checkout.insert_after(PRESETS, "_LISTED = (\n", ADDED)
    checkout.build_protos()
    assert checkout.changed() == {PRESETS}
    assert checkout.run("-c", GENERATE) == "eager False\n"
