"""One process that has imported a room and its tests, knows which test runs which line, and forks
itself for each mutant.

First all tests run as they are, each seen by coverage. Then a child puts the mutant in place of the
function it changes and runs only the tests of the changed lines: those first that found its
neighbours, then the quickest. So a mutant costs what its own tests cost, and nothing is imported
again.
"""

from __future__ import annotations

import ast
import os
import pickle
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import coverage
import pytest

from tools.mutants.in_place import LiveFunctions, changed_function, forget_results
from tools.mutants.mutations import Mutant
from tools.mutants.processes import outcomes

SPARE_CPU_S = 4
TIMES_AS_LONG = 10
"""A test that takes so much more CPU time than without the mutant never ends. Of wall time a busy
machine takes any amount."""

FLAGS = ("-q", "-s", "--no-header", "--tb=short", "-p", "no:cacheprovider", "-p", "no:xdist")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The test that found a mutant (by its number), "" where none did, and None where the mutant
    must be imported: it changes more than a function, or what runs on import."""

    mutant: int
    found_by: str | None


@dataclass(slots=True)
class _Test:
    item: pytest.Item
    cpu_s: float = 0.0

    def run(self, following: _Test | None) -> None:
        after = following.item if following else None
        self.item.config.hook.pytest_runtest_protocol(item=self.item, nextitem=after)


class Room:
    """A plugin of pytest, whose loop over tests becomes a loop over mutants."""

    def __init__(self, root: Path, mutants: Sequence[Mutant], jobs: int) -> None:
        self._root = root
        self._mutants = mutants
        self._jobs = jobs
        self._results = os.memfd_create("verdicts")
        self._screen = os.dup(1)
        self._coverage = coverage.Coverage(
            data_file=None, config_file=False, include=sorted({f"{root}/{m.path}" for m in mutants})
        )
        self._coverage.set_option("run:core", "ctrace")
        self._tests: dict[str, _Test] = {}
        self._finders = Counter[tuple[str, str]]()
        self._failed = ""

    def judge(self, files: Sequence[str]) -> list[Verdict]:
        """On all mutants, in a process of its own; RuntimeError with what pytest said where a test
        fails without any."""
        ((_, words),) = outcomes([(None, lambda: self._run(files))], jobs=1)
        if words:
            raise RuntimeError(words)
        with os.fdopen(self._results, "rb") as results:
            results.seek(0)
            verdicts: list[Verdict] = pickle.load(results)
        return verdicts

    def _run(self, files: Sequence[str]) -> int:
        self._coverage.start()
        code = pytest.main([*FLAGS, "-o", "timeout=3600", *files], plugins=[self])
        sys.stdout.flush()
        return int(code)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self._failed:
            self._failed = report.nodeid

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        tests = [_Test(item) for item in session.items]
        self._tests = {test.item.nodeid: test for test in tests}
        for test, following in zip(tests, [*tests[1:], None], strict=True):
            self._coverage.switch_context(test.item.nodeid)
            began = time.process_time()
            test.run(following)
            test.cpu_s = time.process_time() - began
            if self._failed:
                raise session.Failed(f"{self._failed} fails without any mutant")
        self._coverage.stop()
        forget_results()
        with os.fdopen(self._results, "wb", closefd=False) as results:
            pickle.dump(list(self._verdicts()), results)
        return True

    def _verdicts(self) -> Iterator[Verdict]:
        """One for each mutant, as they come."""
        at_once: list[Verdict] = []
        for number, words in outcomes(self._trials(at_once), self._jobs):
            mutant, test = self._mutants[number], words.rpartition("\n")[2]
            self._finders[mutant.path, test] += 1
            yield self._shown(Verdict(number, test))
        yield from at_once

    def _trials(self, at_once: list[Verdict]) -> Iterator[tuple[int, Callable[[], int]]]:
        """(number, trial) of those that a child can run; the verdicts on others go to `at_once`."""
        seen, functions = self._coverage.get_data(), LiveFunctions(self._root)
        for number, mutant in enumerate(self._mutants):
            tests_of = seen.contexts_by_lineno(f"{self._root}/{mutant.path}")
            tests = {test for line in _statement(mutant) for test in tests_of.get(line, ())}
            change = changed_function(mutant.original(), mutant.source())
            if "" in tests or change is None or change[0] not in functions:
                at_once.append(Verdict(number, None))
            elif tests:
                replace = partial(functions.replace, *change)
                yield number, partial(self._trial, replace, self._promising(mutant, tests))
            else:
                at_once.append(self._shown(Verdict(number, "")))

    def _promising(self, mutant: Mutant, tests: Iterable[str]) -> list[str]:
        """Those that found other mutants of its module first, and the quick ones."""

        def cost(test: str) -> float:
            return self._tests[test].cpu_s / (1 + 5 * self._finders[mutant.path, test])

        return sorted(tests, key=cost)

    def _trial(self, replace: Callable[[], None], tests: Sequence[str]) -> int:
        """In a child: 1 once a test fails. The last line written names it, also where it never
        ends."""
        replace()
        screen, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        items = [self._tests[test] for test in tests]
        for test, following in zip(items, [*items[1:], None], strict=True):
            os.write(screen, f"\n{test.item.nodeid}".encode())
            signal.setitimer(signal.ITIMER_PROF, SPARE_CPU_S + TIMES_AS_LONG * test.cpu_s)
            test.run(following)
            if self._failed:
                return 1
        return 0

    def _shown(self, verdict: Verdict) -> Verdict:
        if verdict.found_by == "":
            mutant = self._mutants[verdict.mutant]
            lines = (f"survived: {mutant}", *mutant.diff(), "", "")
            os.write(self._screen, "\n".join(lines).encode())
        return verdict


def _statement(mutant: Mutant) -> range:
    """The lines of the innermost statement that it changes: of a compound one, those before its
    body."""
    around = [
        node
        for node in ast.walk(ast.parse(mutant.original()))
        if isinstance(node, ast.stmt)
        and node.lineno <= mutant.line <= (node.end_lineno or node.lineno)
    ]
    innermost = max(around, key=lambda node: node.lineno)
    body: list[ast.stmt] = getattr(innermost, "body", [])
    end = body[0].lineno if body else (innermost.end_lineno or innermost.lineno) + 1
    return range(innermost.lineno, max(end, innermost.lineno + 1))
