"""FSD's tables of one machine: its system's times, the training of exits, steps of a batch."""

from __future__ import annotations

from pathlib import Path

from lab.bench.harness.weights import parameters_in
from lab.bench.papers.fsd_printed import EXIT_TRAINING, ROBOT, SYSTEM, TABLE_5, TABLE_9
from lab.bench.papers.fsd_runs import DRAFT_LENGTH, batch_latency
from lab.bench.papers.paper_table import Basis, Figures, Labels, PaperRow, PaperTable, Plot
from lab.bench.papers.testbed import Testbed
from tandem.backends.torch.exit_adapters import read_description
from tandem.backends.torch.loading import find_exits

EXIT_NAMES = ("deepest", "second deepest", "third deepest", "fourth deepest")
OWN_TARGET = "demo target, or the one given"
OWN_PAIR = "demo pair, or the one given"


def exit_training_table() -> PaperTable:
    rows = (
        *(
            PaperRow((name,), figures, "this model is not here; see `tandem train-exits --help`")
            for name, figures in EXIT_TRAINING.items()
        ),
        PaperRow((OWN_TARGET,), (None,) * 5, "hours of what its file names, if it names any"),
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
        compute=_exits_of_target,
    )


def _exits_of_target(testbed: Testbed, labels: Labels) -> Figures:
    """Return the figures of the exits of the target that is here, from its files: their number,
    their parameters in millions and in percent of the target's, and the context and hours of their
    training. All are None where it has no exits."""
    target = testbed.models.target
    folder = find_exits(target, "auto") if labels == (OWN_TARGET,) else None
    if folder is None:
        return (None,) * 5
    exits, whole = parameters_in(folder), parameters_in(Path(target))
    about = read_description(folder)
    return (
        *(float(len(about.layers)), exits / 1e6, 100 * exits / whole),
        *(float(about.context) or None, about.training_s / 3600 or None),
    )


def calibration_table() -> PaperTable:
    return PaperTable(
        key="fsd-calibration",
        paper="FSD",
        place="equation 4, section 2",
        title="How far the exits' confidence may be believed",
        labels=("exit",),
        figures=("layer", "agreement, %", "temperature", "error before, %", "error after, %"),
        rows=tuple(
            PaperRow((name,), (None,) * 5, "the paper has no such figure") for name in EXIT_NAMES
        ),
        basis=Basis.FILES,
        declared="Of the target that is here, as its exits' file says: measured when they were "
        "trained, on text that they did not learn from. Error: the expected calibration error of "
        "the confidence, in ten bins; temperatures were fitted on other held-out text.",
        printed="The paper orders early verdicts by this confidence and does not calibrate it.",
        compute=_calibration_of,
    )


def _calibration_of(testbed: Testbed, labels: Labels) -> Figures:
    folder = find_exits(testbed.models.target, "auto")
    about = None if folder is None else read_description(folder)
    number = EXIT_NAMES.index(str(labels[0])) + 1
    if about is None or not about.calibration_errors or number > len(about.layers):
        return (None,) * 5
    before, after = about.calibration_errors[-number]
    return (
        *(float(about.layers[-number]), 100 * about.agreement[-number]),
        *(about.temperatures[-number], 100 * before, 100 * after),
    )


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
        compute=batch_latency,
        plots=(Plot("batch", "server, ms", True), Plot("batch", "client, ms", True)),
    )
