"""The dashboards there are."""

from __future__ import annotations

from tools.observability.overview import OVERVIEW
from tools.observability.scheduler import SCHEDULER
from tools.observability.services import SERVICES
from tools.observability.speculation import SPECULATION

DASHBOARDS = (OVERVIEW, SPECULATION, SCHEDULER, SERVICES)
