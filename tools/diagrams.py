"""Draw the diagrams of the documentation: `python -m tools.diagrams` writes docs/diagrams/.

GitHub and the site show the same files, and neither needs a script of another host for them. To
change a diagram, change it here and run `make docs`; a test compares the files with this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tools.svg import END, START, Arrow, Box, BoxDiagram, Group, LaneDiagram

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "diagrams"

OVERVIEW = BoxDiagram(
    alt=(
        "A program calls the aggregator at the edge, beside the drafter with the small model. "
        "The drafter sends draft tokens to the verifier with the large model in the cloud, which "
        "returns how many it accepted and the next token."
    ),
    boxes=(
        Box("caller", ("your program",), 78, 100, round=True),
        Box("aggregator", ("aggregator",), 285, 100),
        Box("drafter", ("drafter", "small draft model"), 450, 100),
        Box("verifier", ("verifier", "large target model"), 800, 100),
    ),
    groups=(
        Group("edge: laptop, kiosk, gateway", ("aggregator", "drafter")),
        Group("cloud", ("verifier",)),
    ),
    arrows=(
        Arrow("caller", "aggregator", "HTTP"),
        Arrow("aggregator", "drafter"),
        Arrow("drafter", "verifier", "draft tokens", thick=True, shift=-12),
        Arrow("verifier", "drafter", "accepted, next token", thick=True, shift=12, lift=-28),
    ),
)

SERVICES = BoxDiagram(
    alt=(
        "At the edge an aggregator uses a drafter and a retriever with private documents; in the "
        "cloud an aggregator uses the verifier and a retriever with public documents. The drafter "
        "has one Verify stream per request to the verifier, and the two aggregators one "
        "Collaborate stream for answers from documents."
    ),
    boxes=(
        Box("caller", ("caller", "HTTP, gRPC"), 70, 80, round=True),
        Box("edge aggregator", ("aggregator",), 375, 80),
        Box("private", ("retriever", "private documents"), 290, 220),
        Box("drafter", ("drafter", "draft model"), 470, 220),
        Box("cloud aggregator", ("aggregator",), 970, 80),
        Box("verifier", ("verifier", "target model"), 875, 220),
        Box("public", ("retriever", "public documents"), 1055, 220),
    ),
    groups=(
        Group("edge", ("edge aggregator", "drafter", "private")),
        Group("cloud", ("cloud aggregator", "verifier", "public")),
    ),
    arrows=(
        Arrow("caller", "edge aggregator"),
        Arrow("edge aggregator", "drafter"),
        Arrow("edge aggregator", "private"),
        Arrow(
            "edge aggregator",
            "cloud aggregator",
            "Collaborate: answers from documents",
            dashed=True,
        ),
        Arrow("cloud aggregator", "verifier"),
        Arrow("cloud aggregator", "public"),
        Arrow("drafter", "verifier", "Verify: one stream per request", thick=True),
    ),
)

ONE_ROUND = LaneDiagram(
    alt="The messages of one round between aggregator, drafter and verifier, from top to bottom.",
    lanes=("aggregator", "drafter (EdgeMachine)", "verifier (CloudMachine)"),
    arrows=(
        Arrow("aggregator", "drafter (EdgeMachine)", "Generate(prompt, preset, seed)"),
        Arrow(
            "drafter (EdgeMachine)",
            "verifier (CloudMachine)",
            "open(prompt ids, choices, committed ids)",
        ),
        Arrow(
            "drafter (EdgeMachine)",
            "verifier (CloudMachine)",
            "drafts(ids, and by preset probabilities)",
        ),
        Arrow(
            "verifier (CloudMachine)",
            "verifier (CloudMachine)",
            "prefill, then one packed forward pass",
        ),
        Arrow("verifier (CloudMachine)", "drafter (EdgeMachine)", "opened", dashed=True),
        Arrow(
            "verifier (CloudMachine)",
            "drafter (EdgeMachine)",
            "with early exits: early_verdict (a hint what to draft next)",
            dashed=True,
        ),
        Arrow(
            "verifier (CloudMachine)",
            "drafter (EdgeMachine)",
            "committed(accepted, next tokens or rejection payload)",
            dashed=True,
        ),
        Arrow(
            "drafter (EdgeMachine)",
            "verifier (CloudMachine)",
            "if the draw is left to the edge: recovered(token)",
        ),
        Arrow("drafter (EdgeMachine)", "aggregator", "committed tokens, text", dashed=True),
    ),
)

EDGE_STATES = LaneDiagram(
    alt="The states of the edge's machine, connecting, running, alone and done, and what leads "
    "from one to another.",
    lanes=("connecting", "running", "alone", "done"),
    arrows=(
        Arrow(START, "connecting"),
        Arrow("connecting", "running", "connect / send open, resend drafts in flight"),
        Arrow("running", "connecting", "stream lost, silent 2.4 s, or going_away"),
        Arrow("connecting", "alone", "given up, policy edge"),
        Arrow("connecting", "done", "given up, policy fail"),
        Arrow("running", "done", "stop, length, cancelled"),
        Arrow("alone", "done", "stop, length, cancelled"),
        Arrow("done", END),
    ),
)

CLOUD_STATES = LaneDiagram(
    alt="The states of the cloud's machine, idle, pass, needs_recovered and ended, and what leads "
    "from one to another.",
    lanes=("idle", "pass", "needs_recovered", "ended"),
    arrows=(
        Arrow(START, "idle", "open accepted"),
        Arrow("idle", "pass", "drafts ready, prefill, or idle decoding"),
        Arrow("pass", "idle", "committed"),
        Arrow("pass", "needs_recovered", "rejection, the edge draws the token"),
        Arrow(
            "needs_recovered",
            "needs_recovered",
            "need_full_distribution / full_distribution",
        ),
        Arrow("needs_recovered", "idle", "recovered"),
        Arrow("needs_recovered", "ended", "recovered at the length limit, or cancel"),
        Arrow("pass", "ended", "end of text, length limit, or cancel"),
        Arrow("idle", "ended", "cancel"),
        Arrow("ended", END),
    ),
)

SIDE_STATES = LaneDiagram(
    alt="The states of a side of an answer from documents, connecting, running, alone and done, "
    "and what leads from one to another.",
    lanes=("connecting", "running", "alone", "done"),
    arrows=(
        Arrow(START, "connecting", "device"),
        Arrow(START, "running", "cloud"),
        Arrow("connecting", "running", "connect"),
        Arrow("running", "connecting", "stream lost, silent, or going_away (device)"),
        Arrow("connecting", "alone", "given up, policy edge"),
        Arrow("connecting", "done", "given up, policy fail"),
        Arrow("running", "running", "draft, target, hand-over of the aggregator role"),
        Arrow("running", "done", "last token, stop, cancelled"),
        Arrow("alone", "done", "last token, stop, cancelled"),
        Arrow("done", END),
    ),
)

DECODER_STATES = LaneDiagram(
    alt="The states of a decoder, decoding, stopped, settled and ended, and what leads from one to "
    "another.",
    lanes=("decoding", "stopped", "settled", "ended"),
    arrows=(
        Arrow(START, "decoding", "open"),
        Arrow("decoding", "decoding", "draft, target"),
        Arrow("decoding", "stopped", "stop string complete"),
        Arrow("decoding", "settled", "last target or length limit"),
        Arrow("stopped", "settled", "last target"),
        Arrow("decoding", "ended", "cancel"),
        Arrow("stopped", "ended", "cancel"),
        Arrow("settled", "ended", "cancel"),
        Arrow("ended", END),
    ),
)

DIAGRAMS: Mapping[str, BoxDiagram | LaneDiagram] = {
    "overview.svg": OVERVIEW,
    "services.svg": SERVICES,
    "one-round.svg": ONE_ROUND,
    "edge-states.svg": EDGE_STATES,
    "cloud-states.svg": CLOUD_STATES,
    "side-states.svg": SIDE_STATES,
    "decoder-states.svg": DECODER_STATES,
}
"""By file name in docs/diagrams."""


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, diagram in DIAGRAMS.items():
        (FOLDER / name).write_text(diagram.svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
