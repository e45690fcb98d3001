"""What is in the images, and what is not."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from docker.errors import ContainerError

from tests.deploy.composed import TAG, Composed
from tests.deploy.conftest import Row

pytestmark = pytest.mark.timeout(1800)  # the first test waits for the images to be built

MEGABYTE = 10**6
WITHOUT_TORCH, WITH_LLAMACPP, WITH_EMBEDDINGS, WITH_TORCH = (
    size * MEGABYTE for size in (300, 320, 480, 1300)
)
"""llama.cpp's library has 26 MB. Embeddings are MiniLM's weights (91 MB), FAISS with its linear
algebra (65 MB), a tokenizer."""

LIMITS = {
    f"tandem/aggregator:{TAG}": WITHOUT_TORCH,
    f"tandem/retriever:{TAG}-minilm": WITH_EMBEDDINGS,
    f"tandem/drafter:{TAG}-llamacpp": WITH_LLAMACPP,
    f"tandem/drafter:{TAG}": WITH_TORCH,
    f"tandem/verifier:{TAG}": WITH_TORCH,
}
Inside = Callable[[str], dict[str, Any]]
SMALL = [name for name, limit in LIMITS.items() if limit != WITH_TORCH]


PROBE = """
import glob, importlib.util, json, os
from tandem.telemetry.tracing import open_tracing
open_tracing("http://127.0.0.1:4317", 1.0, "image").close()
places = [place for place in ("/build", "/wheels", "/etc/pip.conf") if os.path.exists(place)]
demo = "/opt/tandem/app/tandem/demo/demo-*"
print(json.dumps({
    "user": os.getuid(),
    "models": glob.glob("/models/**/*.safetensors") + glob.glob(demo),
    "own model": os.path.exists(os.environ.get("TANDEM_MODEL", "/none") + "/model.safetensors"),
    "libraries": [name for name in ("torch", "pip") if importlib.util.find_spec(name)],
    "of the build": places + [name for name in os.environ if name.startswith("PIP_")],
}))
"""
"""Also that it can export traces: without what that takes, the probe ends with an error."""


@pytest.fixture(scope="module")
def inside(composed: Composed) -> Inside:
    """What a container of an image sees that may do no more than a service may; started once."""

    @cache
    def look(image: str) -> dict[str, Any]:
        wrote = composed.docker.containers.run(
            image,
            ["-c", PROBE],
            entrypoint="python",
            read_only=True,
            cap_drop=["ALL"],
            network_mode="none",
            remove=True,
        )
        seen: dict[str, Any] = json.loads(bytes(wrote))
        return seen

    return look


@pytest.mark.parametrize("image", LIMITS)
def test_an_image_is_small(composed: Composed, image: str, tables: dict[str, list[Row]]) -> None:
    size, limit = composed.docker.images.get(image).attrs["Size"], LIMITS[image]
    rows = tables.setdefault("image sizes", [("image", "MB", "at most")])
    rows.append((image, f"{size / MEGABYTE:.0f}", f"{limit / MEGABYTE:.0f}"))
    assert size <= limit


@pytest.mark.parametrize("image", SMALL)
def test_torch_is_where_it_is_needed_only(inside: Inside, image: str) -> None:
    assert inside(image)["libraries"] == []


@pytest.mark.parametrize("image", [name for name in LIMITS if re.search("drafter|verifier", name)])
def test_what_runs_models_runs_gguf_files(composed: Composed, image: str) -> None:
    """Also the image with torch: llama.cpp's library is there, and whatever it is linked with."""
    code = "from tandem.backends.llamacpp.library import library; library()"
    run = composed.docker.containers.run
    run(image, ["-c", code], entrypoint="python", remove=True, network_mode="none")


@pytest.mark.parametrize("image", LIMITS)
def test_an_image_runs_without_root_shell_or_models(
    composed: Composed, inside: Inside, image: str
) -> None:
    settings = composed.docker.images.get(image).attrs["Config"]
    assert settings["User"] == "10001:10001"
    assert settings["StopSignal"] == "SIGTERM"
    assert settings["Entrypoint"][:2] == ["python", "-m"]
    assert "PYTHONSAFEPATH=1" in settings["Env"]
    assert settings["Healthcheck"]["Test"] == ["CMD", "python", "-m", "tandem.net.probe"]
    assert (inside(image)["user"], inside(image)["models"]) == (10001, [])


@pytest.mark.parametrize("image", LIMITS)
def test_nothing_of_the_build_is_left(inside: Inside, image: str) -> None:
    """Neither sources nor pip's settings nor the build machine's certificates."""
    assert inside(image)["of the build"] == []


@pytest.mark.parametrize("service", ["drafter", "verifier"])
def test_the_demo_pair_is_inside_where_it_was_asked_for(
    composed: Composed, inside: Inside, service: str
) -> None:
    image = f"tandem/{service}:{TAG}-demo"
    composed.build_image(service, image, MODELS="demo")
    assert inside(image)["own model"] is True


WRONG = (
    ({"TANDEM_DRIAN_S": "3"}, "TANDEM_DRIAN_S: is not a setting"),
    ({"TANDEM_DRAIN_S": "soon"}, "TANDEM_DRAIN_S: must be"),
    ({"TANDEM_HOST": "127.0.0.1"}, "TANDEM_TLS_CERTIFICATE: must be set"),
)


@pytest.mark.parametrize(
    ("image", "environment", "named"),
    [(image, *WRONG[number % len(WRONG)]) for number, image in enumerate(LIMITS)],
)
def test_a_wrong_setting_stops_the_start(
    composed: Composed, image: str, environment: dict[str, str], named: str
) -> None:
    """In one line that names it; and nothing serves in the open without being told to. What each
    service says of each wrong setting is tested without images."""
    with pytest.raises(ContainerError) as failed:
        composed.docker.containers.run(
            image, environment=environment, remove=True, network_mode="none"
        )
    assert failed.value.exit_status == 2
    said: Any = failed.value.stderr
    wrote = bytes(said).decode()
    assert named in wrote
    assert len(wrote.splitlines()) == 1
