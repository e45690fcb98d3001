"""All dashboards, and the queries that they send."""

from __future__ import annotations

from collections.abc import Iterator

from tools.observability.fleet import FLEET
from tools.observability.grafana import Dashboard
from tools.observability.overview import OVERVIEW
from tools.observability.scheduler import SCHEDULER
from tools.observability.services import SERVICES
from tools.observability.speculation import SPECULATION

DASHBOARDS = (OVERVIEW, FLEET, SPECULATION, SCHEDULER, SERVICES)


def substituted(dashboard: Dashboard, rate_interval: str = "1m") -> Iterator[str]:
    """Every query as Grafana sends it with all variables at "All"."""
    for row in dashboard.rows:
        for panel in row.panels:
            for query in panel.queries:
                expression = query.expression.replace("$__rate_interval", rate_interval)
                for variable in dashboard.choices:
                    expression = expression.replace(f"${variable.name}", variable.among)
                yield expression
