"""`python -P -m tandem.testing.verifier`: the verifier, with scripted models as well, and paced."""

from tandem.net.process import run_service
from tandem.services.verifier import __main__ as product
from tandem.services.verifier.servicer import VerifierServicer
from tandem.telemetry.metrics import Metrics
from tandem.testing.loading import verifier_loader
from tandem.testing.settings import PacedVerifierSettings


def build(settings: PacedVerifierSettings, metrics: Metrics) -> VerifierServicer:
    """Build the servicer of the product over the models of this room."""
    return product.build(settings, metrics, verifier_loader(settings))


if __name__ == "__main__":
    run_service(PacedVerifierSettings, build, side="cloud")
