"""What is in the images, and what is not."""

from __future__ import annotations

from typing import Any

import pytest
from docker.errors import ContainerError

from tests.deploy.composed import TAG, Composed
from tests.deploy.conftest import Row

pytestmark = pytest.mark.timeout(1800)  # the first test waits for the images to be built

MEGABYTE = 10**6
WITHOUT_TORCH, WITH_TORCH = 300 * MEGABYTE, 1300 * MEGABYTE

LIMITS = {
    f"tandem/aggregator:{TAG}": WITHOUT_TORCH,
    f"tandem/retriever:{TAG}-lexical": WITHOUT_TORCH,
    f"tandem/drafter:{TAG}-llamacpp": WITHOUT_TORCH,
    f"tandem/drafter:{TAG}": WITH_TORCH,
    f"tandem/verifier:{TAG}": WITH_TORCH,
}
SMALL = [name for name, limit in LIMITS.items() if limit == WITHOUT_TORCH]


def python(composed: Composed, image: str, code: str) -> str:
    """What `code` printed in a container that may do no more than a service may."""
    wrote = composed.docker.containers.run(
        image,
        ["-c", code],
        entrypoint="python",
        read_only=True,
        cap_drop=["ALL"],
        network_mode="none",
        remove=True,
    )
    return bytes(wrote).decode().strip()


@pytest.mark.parametrize("image", LIMITS)
def test_an_image_is_small(composed: Composed, image: str, tables: dict[str, list[Row]]) -> None:
    size, limit = composed.docker.images.get(image).attrs["Size"], LIMITS[image]
    rows = tables.setdefault("image sizes", [("image", "MB", "at most")])
    rows.append((image, f"{size / MEGABYTE:.0f}", f"{limit / MEGABYTE:.0f}"))
    assert size <= limit


@pytest.mark.parametrize("image", SMALL)
def test_torch_is_where_it_is_needed_only(composed: Composed, image: str) -> None:
    found = python(
        composed,
        image,
        "import importlib.util as u; print(u.find_spec('torch'), u.find_spec('pip'))",
    )
    assert found == "None None"


@pytest.mark.parametrize("image", LIMITS)
def test_an_image_runs_without_root_shell_or_models(composed: Composed, image: str) -> None:
    settings = composed.docker.images.get(image).attrs["Config"]
    assert settings["User"] == "10001:10001"
    assert settings["StopSignal"] == "SIGTERM"
    assert settings["Entrypoint"][:2] == ["python", "-m"]
    assert settings["Healthcheck"]["Test"] == ["CMD", "python", "-m", "tandem.net.probe"]
    code = (
        "import os, glob; print(os.getuid(), glob.glob('/models/**/*.safetensors'),"
        " glob.glob('/opt/tandem/app/tandem/demo/demo-*'))"
    )
    assert python(composed, image, code) == "10001 [] []"


@pytest.mark.parametrize("image", LIMITS)
def test_an_image_can_export_traces(composed: Composed, image: str) -> None:
    code = (
        "from tandem.telemetry.tracing import open_tracing;"
        " open_tracing('http://127.0.0.1:4317', 1.0, 'image').close(); print('opened')"
    )
    assert python(composed, image, code) == "opened"


@pytest.mark.parametrize("service", ["drafter", "verifier"])
def test_the_demo_pair_is_inside_where_it_was_asked_for(composed: Composed, service: str) -> None:
    image = f"tandem/{service}:{TAG}-demo"
    composed.build_image(service, image, MODELS="demo")
    code = "import os; print(os.path.exists(os.environ['TANDEM_MODEL'] + '/model.safetensors'))"
    assert python(composed, image, code) == "True"


@pytest.mark.parametrize("image", LIMITS)
def test_nothing_of_the_build_is_left(composed: Composed, image: str) -> None:
    """Neither sources nor pip's settings nor the build machine's certificates."""
    code = (
        "import os; print([place for place in ('/build', '/wheels', '/etc/pip.conf')"
        " if os.path.exists(place)], [name for name in os.environ if name.startswith('PIP_')])"
    )
    assert python(composed, image, code) == "[] []"


@pytest.mark.parametrize("image", LIMITS)
@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({"TANDEM_DRIAN_S": "3"}, "TANDEM_DRIAN_S: is not a setting"),
        ({"TANDEM_DRAIN_S": "soon"}, "TANDEM_DRAIN_S: must be"),
        ({"TANDEM_HOST": "127.0.0.1"}, "TANDEM_TLS_CERTIFICATE: must be set"),
    ],
)
def test_a_wrong_setting_stops_the_start(
    composed: Composed, image: str, environment: dict[str, str], named: str
) -> None:
    """In one line that names it; and nothing serves in the open without being told to."""
    with pytest.raises(ContainerError) as failed:
        composed.docker.containers.run(
            image, environment=environment, remove=True, network_mode="none"
        )
    assert failed.value.exit_status == 2
    said: Any = failed.value.stderr
    wrote = bytes(said).decode()
    assert named in wrote
    assert len(wrote.splitlines()) == 1
