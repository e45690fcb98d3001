"""`python -m tools.mutants`: how many of a sample of mutants the tests find."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click

from tools.mutants.equivalent import Equivalents
from tools.mutants.mutations import Mutant, mutants_of
from tools.mutants.processes import outcomes
from tools.mutants.room import Room
from tools.mutants.selection import SUBJECTS, chosen_modules, dotted_name, files_to_ask
from tools.mutants.since import of_changed_functions
from tools.mutants.trials import Trial

ROOT = Path(__file__).resolve().parents[2]
LEAST = 0.9


@click.command()
@click.argument("modules", nargs=-1)
@click.option("--sample", default=0, help="How many mutants; 0 is all of them.")
@click.option("--seed", default=1, help="Of the sample.", show_default=True)
@click.option("--jobs", default=2, help="Mutants at once.", show_default=True)
@click.option("--least", default=LEAST, help="Share to find, or fail.", show_default=True)
@click.option("--since", default="", help="Only of functions changed since this commit.")
def main(
    modules: Sequence[str], sample: int, seed: int, jobs: int, least: float, since: str
) -> None:
    """Change MODULES (all of the pure rooms without any) one small thing at a time, and see which
    changes the tests do not notice."""
    chosen = chosen_modules(ROOT, modules)
    if not chosen:
        raise click.UsageError(f"no module is named {' '.join(modules)}")
    equivalents = Equivalents.read(Path(__file__).with_name("equivalent.toml"))
    mutants = [mutant for module in chosen for mutant in mutants_of(ROOT, module)]
    counted = [mutant for mutant in mutants if mutant not in equivalents]
    stale = equivalents.unused(chosen)
    if since:
        counted = of_changed_functions(ROOT, since, counted)
    if sample and sample < len(counted):
        counted = sorted(random.Random(seed).sample(counted, sample), key=mutants.index)
    survivors = _survivors(counted, jobs)
    found = 1 - len(survivors) / max(len(counted), 1)
    click.echo(_table(counted, survivors))
    click.echo(
        f"{len(counted) - len(survivors)} of {len(counted)} mutants found: {found:.1%}, least"
        f" {least:.0%} ({len(mutants)} mutants of {len(chosen)} modules, seed {seed})"
    )
    for entry in stale:
        click.echo(f"equivalent.toml: no mutant is {entry}", err=True)
    sys.exit(bool(stale) or found < least)


def _survivors(mutants: Sequence[Mutant], jobs: int) -> list[Mutant]:
    """The mutants that no test notices, each printed as soon as that is known."""
    survivors = []
    to_import = []
    for subject in SUBJECTS:
        of_room = [mutant for mutant in mutants if Path(mutant.path).parent == Path(subject.room)]
        if not of_room:
            continue
        try:
            verdicts = Room(ROOT, of_room, jobs).judge(subject.files(ROOT))
        except RuntimeError as error:
            raise click.ClickException(f"without any mutant:\n{error}") from error
        survivors += [of_room[one.mutant] for one in verdicts if one.found_by == ""]
        to_import += [of_room[one.mutant] for one in verdicts if one.found_by is None]
    trials = (
        (one, Trial(files_to_ask(ROOT, one.path), dotted_name(one.path), one.source).run)
        for one in to_import
    )
    for mutant, failure in outcomes(trials, jobs):
        if not failure:
            survivors.append(mutant)
            click.echo("\n".join((f"survived: {mutant}", *mutant.diff(), "")))
    return survivors


def _table(mutants: Sequence[Mutant], survivors: Sequence[Mutant]) -> str:
    all_of, missed = (Counter(mutant.path for mutant in some) for some in (mutants, survivors))
    return "\n".join(
        f"{all_of[path] - missed[path]:5} of {all_of[path]:4}  {path}" for path in all_of
    )


if __name__ == "__main__":
    main()
