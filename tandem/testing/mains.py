"""The modules that are a suite's services as processes, with those of this room among them."""

PACED = ("drafter", "verifier")


def module_of(service: str) -> str:
    """Return the module to start; a service without a model is the product's own."""
    return f"tandem.{'testing' if service in PACED else 'services'}.{service}"
