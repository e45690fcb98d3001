"""What is found out about a target's server before it is believed, and what is refused, each by
its setting: the demo target's tokenizer, and a server whose model is scripted."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tandem.backends.factory import load_model
from tandem.backends.interface import EngineFailed, ForwardRequest
from tandem.backends.model_description import load_tokenizer
from tandem.backends.model_source import LoadedModel, ModelChoice, ServerChoice
from tandem.backends.remote.engine import RemoteEngine
from tandem.core.errors import InvalidArgument
from tandem.demo import demo_folder
from tandem.services.verifier.config import VerifierSettings, server_choice
from tandem.testing.remote_server import FakeServer, serving
from tandem.testing.scripted import scripted_probs
from tests.services.secured_services import Credentials

FOLDER = str(demo_folder("demo-target"))
VOCABULARY = 4096
KEY = "a-secret"


@cache
def mark_ids(text: str) -> list[int]:
    return load_tokenizer(FOLDER).mark_ids(text)


@pytest.fixture(params=["vllm", "sglang"])
def fake(request: pytest.FixtureRequest) -> Iterator[FakeServer]:
    probs = scripted_probs(1, VOCABULARY, sharpness=9.0)
    about = FakeServer(probs, VOCABULARY, dialect=request.param, tokenize=mark_ids)
    with serving(about) as server:
        yield server


def connected(fake: FakeServer, model: str = FOLDER, **place: str) -> LoadedModel:
    choice = ServerChoice(fake.url, silent_s=10.0, **place)
    return load_model(ModelChoice(model, server=choice))


@pytest.fixture
def engine(fake: FakeServer) -> Iterator[RemoteEngine]:
    engine = connected(fake).engine
    assert isinstance(engine, RemoteEngine)
    yield engine
    engine.close()


def refused(fake: FakeServer, field: str, model: str = FOLDER, **place: str) -> str:
    """Connect in vain; return why, as a user reads it."""
    with pytest.raises(InvalidArgument) as error:
        connected(fake, model, **place)
    assert error.value.field == field, error.value
    return error.value.why


def taken(fake: FakeServer, model: str = FOLDER, **place: str) -> LoadedModel:
    """Connect and take leave."""
    loaded = connected(fake, model, **place)
    assert isinstance(loaded.engine, RemoteEngine)
    loaded.engine.close()
    return loaded


def one_row(engine: RemoteEngine) -> None:
    session = engine.open(8)
    try:
        engine.forward([ForwardRequest(session, (1, 2), 1)])
    finally:
        session.close()


def test_the_kind_of_server_and_what_it_tells_are_found_out_by_asking(fake: FakeServer) -> None:
    fake.context_length, fake.max_logprobs = 2048, 7
    model = connected(fake)
    engine = model.engine
    assert isinstance(engine, RemoteEngine)
    assert engine.more_logprobs.startswith({"vllm": "vLLM", "sglang": "SGLang"}[fake.dialect])
    assert engine.context_length == 2048
    if fake.dialect == "vllm":  # which refuses more; SGLang tells of as many as are asked for
        assert engine.known_tokens == 7
    assert model.default_sampling.top_k == engine.known_tokens
    one_row(engine)
    engine.close()


def test_a_model_s_own_settings_are_cut_to_what_the_server_tells(
    fake: FakeServer, tmp_path: Path
) -> None:
    """Requests that leave settings open can be answered."""
    for file in Path(FOLDER).iterdir():
        (tmp_path / file.name).symlink_to(file)
    settings = tmp_path / "generation_config.json"
    for top_k, given in ((5, 5), (0, 7), (50, 7)):
        settings.unlink()
        settings.write_text(f'{{"temperature": 0.6, "top_k": {top_k}, "repetition_penalty": 1.1}}')
        fake.max_logprobs = 7
        fake.dialect = "vllm"
        model = taken(fake, str(tmp_path))
        assert model.default_sampling.named == {"temperature": 0.6, "top_k": given}


def test_another_vocabulary_is_refused(fake: FakeServer) -> None:
    fake.tokenize = lambda text: [*mark_ids(text)[:-1], 5]
    assert "the tokenizer is another one" in refused(fake, "model")


def test_a_server_that_tokenizes_nothing_is_taken(fake: FakeServer) -> None:
    fake.tokenize = None
    taken(fake)


def test_a_server_of_another_kind_is_refused(fake: FakeServer) -> None:
    fake.dialect = "another"
    assert "neither vLLM nor SGLang" in refused(fake, "target_url")


def test_a_server_that_answers_nonsense_is_refused_at_once(fake: FakeServer) -> None:
    fake.corrupt = lambda answer: answer if "data" in answer else {}
    refused(fake, "target_url")
    fake.corrupt = lambda answer: {}
    assert "no model" in refused(fake, "target_url")


def test_a_server_that_is_not_there_is_named(fake: FakeServer) -> None:
    fake.url = "http://127.0.0.1:9"
    why = refused(fake, "target_url")
    assert "http://127.0.0.1:9: the target's server cannot be reached" in why
    fake.url = "ftp://127.0.0.1"
    assert "is not http://… or https://…" in refused(fake, "target_url")


def test_a_key_is_needed_and_shown_to_nobody(fake: FakeServer) -> None:
    fake.key = KEY
    taken(fake, key=KEY)
    assert "refuses the key" in refused(fake, "target_url")
    for wrong in (f"{KEY}\nanother", "schlüssel", f"{KEY} {KEY}"):
        why = refused(fake, "target_key_file", key=wrong)
        assert KEY not in why
        assert "schlüssel" not in why


def test_a_server_with_tls_is_trusted_by_its_authority_alone(
    fake: FakeServer, tmp_path: Path
) -> None:
    credentials = Credentials(tmp_path)
    files = credentials.issue("vllm")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    safe = FakeServer(
        fake.probs, VOCABULARY, dialect=fake.dialect, tokenize=fake.tokenize, tls=context, key=KEY
    )
    with serving(safe):
        settings = VerifierSettings(
            target_url=safe.url,
            target_ca=files.authorities,
            target_key_file=credentials.write("key", f"{KEY}\n".encode()),
        )
        model = load_model(ModelChoice(FOLDER, server=server_choice(settings)))
        assert isinstance(model.engine, RemoteEngine)
        one_row(model.engine)
        model.engine.close()
        assert "certificate verify failed" in refused(safe, "target_url")
        safe.url = safe.url.replace("https", "http")
        assert "cannot be reached" in refused(safe, "target_url")


def test_a_server_that_restarts_with_the_same_model_goes_on(
    fake: FakeServer, engine: RemoteEngine
) -> None:
    one_row(engine)
    fake.hang_up()
    one_row(engine)


@pytest.mark.parametrize("other", ["model", "root", "context_length", "vocabulary"])
def test_a_server_that_restarts_with_another_model_is_no_longer_believed(
    fake: FakeServer, engine: RemoteEngine, other: str
) -> None:
    one_row(engine)
    if other == "model":
        fake.model = "another"
    elif other == "root":
        fake.root = "another/model"
    elif other == "context_length":
        fake.context_length = 99
    else:
        fake.tokenize = lambda text: [1, 2, 3]
    fake.hang_up()
    for _ in range(2):
        with pytest.raises(EngineFailed, match=r"is another one than before$"):
            one_row(engine)
