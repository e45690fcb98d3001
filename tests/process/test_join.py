"""Two machines by one line: a verifier that invites, and the edge that joins it, as processes."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from tandem.demo import demo_folder
from tests.process.running_suite import TIMEOUT_S, started, tandem
from tests.process.service_process import free_port


def test_an_edge_joins_by_the_line_of_its_verifier(tmp_path: Path) -> None:
    state = {"XDG_STATE_HOME": str(tmp_path / "cloud")}
    edge = {"XDG_STATE_HOME": str(tmp_path / "edge")}
    target, draft = (str(demo_folder(name)) for name in ("demo-target", "demo-draft"))
    served = ("serve", "verifier", "--host", "0.0.0.0", "--port", str(free_port()))
    with started(*served, "--model", target, environment=state) as verifier:
        assert verifier.stdout is not None
        assert verifier.stdout.readline().startswith("listening 0.0.0.0:")
        kept = tmp_path / "cloud" / "tandem" / "verifier" / "join"
        line = kept.read_text().strip()
        joining = ("--draft", draft, "--http-port", "0", "--json")
        for wrong, why in (
            (f"{line[:-1]}{'A' if line[-1] != 'A' else 'Q'}", "does not let this machine in"),
            (line.replace(line.split(":")[2], "0" * 64), "shows another certificate"),
        ):
            with started("join", wrong, *joining, environment=edge) as refused:
                _, words = refused.communicate(timeout=TIMEOUT_S)
            assert refused.returncode != 0
            assert why in words
            assert len(words.splitlines()) == 1
            assert not list((tmp_path / "edge").rglob("cloud.key")), "nothing is kept of it"
        with started("join", str(kept), *joining, environment=edge) as joined:
            assert joined.stdout is not None
            ready = joined.stdout.readline()
            assert ready, joined.communicate()[1]
            places = json.loads(ready)
            assert sorted(places["pids"]) == ["aggregator", "drafter"]
            asked = ("--endpoint", places["http"], "--json", "--max-tokens", "12", "--preset")
            answer = tandem("generate", "What is a list?", *asked, "coupled")
            assert answer.returncode == 0, answer.stderr
            assert json.loads(answer.stdout)["drafted"] > 0
            joined.send_signal(signal.SIGINT)
            assert joined.wait(TIMEOUT_S) == 0
