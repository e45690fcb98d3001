"""FSD's tables of one machine: its system's times, the training of exits, steps of a batch."""

from __future__ import annotations

import json
from pathlib import Path

from lab.bench.harness.weights import parameters_in
from lab.bench.papers import fsd_findings
from lab.bench.papers.fsd_printed import EXIT_TRAINING, ROBOT, SYSTEM, TABLE_5, TABLE_9
from lab.bench.papers.fsd_runs import DRAFT_LENGTH, batch_latency
from lab.bench.papers.paper_table import Basis, Figures, Labels, PaperRow, PaperTable, Plot
from lab.bench.papers.testbed import Testbed
from tandem.backends.torch.exit_adapters import DESCRIPTION
from tandem.backends.torch.loading import find_exits

OWN_TARGET, OWN_PAIR = "demo target, or the one given", "demo pair, or the one given"


def exit_training_table() -> PaperTable:
    rows = (
        *(
            PaperRow((name,), figures, "this model is not here; see `tandem train-exits --help`")
            for name, figures in EXIT_TRAINING.items()
        ),
        PaperRow((OWN_TARGET,), (None,) * 5, "its file names no context and no hours"),
    )
    return PaperTable(
        key="fsd-table-2",
        paper="FSD",
        place="Table 2, section 4",
        title="Training of early exits",
        labels=("model",),
        figures=("exits", "parameters, 10⁶", "%", "context", "GPU hours"),
        rows=rows,
        basis=Basis.FILES,
        declared="The target and its exits, in the last row.",
        printed="Training the paper's models needs them and an A100. Its recipe, on the demo "
        "target's own texts, made the exits of the last row; they are read from their file.",
        finding=fsd_findings.exits_of_own_target,
        compute=_exits_of_target,
    )


def _exits_of_target(testbed: Testbed, labels: Labels) -> Figures:
    """Exits and their parameters, of the files of the target that is here."""
    target = testbed.models.target
    folder = find_exits(target, "auto") if labels == (OWN_TARGET,) else None
    if folder is None:
        return (None,) * 5
    exits, whole = parameters_in(folder), parameters_in(Path(target))
    layers = json.loads((folder / DESCRIPTION).read_text("utf-8"))["layers"]
    return float(len(layers)), exits / 1e6, 100 * exits / whole, None, None


def system_table() -> PaperTable:
    times = {**TABLE_5, list(SYSTEM)[-1]: ROBOT}
    rows = [
        PaperRow(where, (one.drafting_ms, one.verify_ms, one.link_ms, *SYSTEM[where]))
        for where, one in times.items()
    ]
    return PaperTable(
        key="fsd-table-5",
        paper="FSD",
        place="Tables 5 and 8a, sections 4.1 and 4.4",
        title="The system's own times",
        labels=("pair", "client"),
        figures=("γ·T_p, ms", "T_q, ms", "T_c, ms", "c", "GPU memory, GB", "exit threads"),
        rows=(
            *(PaperRow(row.labels, row.theirs, "this hardware is not here") for row in rows),
            PaperRow((OWN_PAIR, "one core"), (None,) * 6, "not in the paper; has no GPU"),
        ),
        basis=Basis.MEASURED,
        declared="Of the printed rows c = T_p ÷ T_q is computed from the printed times. The last "
        "row is measured: four draft steps and one pass of the target over one token, one core.",
        finding=fsd_findings.ratios,
        compute=_system,
    )


def _system(testbed: Testbed, labels: Labels) -> Figures:
    times = {**TABLE_5, list(SYSTEM)[-1]: ROBOT}.get((str(labels[0]), str(labels[1])))
    if times is not None:
        ratio = times.drafting_ms / DRAFT_LENGTH / times.verify_ms
        return None, None, None, ratio, None, None
    target_ms, draft_ms = (one or 0.0 for one in batch_latency(testbed, (1.0,)))
    return DRAFT_LENGTH * draft_ms, target_ms, None, draft_ms / target_ms, None, None


def batches_table() -> PaperTable:
    return PaperTable(
        key="fsd-table-9",
        paper="FSD",
        place="Table 9, appendix C",
        title="Latency of a step by batch size, ms",
        labels=("batch",),
        figures=("server, ms", "client, ms"),
        rows=tuple(
            PaperRow((float(size),), figures, "" if all(figures) else "paper: client out of memory")
            for size, figures in TABLE_9.items()
        ),
        by_line=True,
        basis=Basis.MEASURED,
        declared="Demo target and demo draft on one core of this machine, one token of each "
        "session after 64; lower quartile of the passes.",
        finding=fsd_findings.batch_growth,
        compute=batch_latency,
        plots=(Plot("batch", "server, ms", True), Plot("batch", "client, ms", True)),
    )
