"""`python -P -m tandem.testing.drafter`: the drafter, with scripted models as well, and paced."""

from tandem.net.process import run_service
from tandem.services.drafter import __main__ as product
from tandem.services.drafter.servicer import DrafterServicer
from tandem.telemetry.metrics import Metrics
from tandem.testing.loading import drafter_loader
from tandem.testing.settings import PacedDrafterSettings


def build(settings: PacedDrafterSettings, metrics: Metrics) -> DrafterServicer:
    """Build the servicer of the product over the models of this room."""
    return product.build(settings, metrics, drafter_loader(settings))


if __name__ == "__main__":
    run_service(PacedDrafterSettings, build, side="device")
