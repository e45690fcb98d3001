"""Models whose makers mean no good: each is refused by a message that names the file, soon."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tandem.backends.factory import load_model
from tandem.backends.gguf_check import check_gguf
from tandem.backends.model_description import load_tokenizer
from tandem.backends.model_files import MOST_FILE_BYTES, MOST_TENSORS
from tandem.backends.model_source import ModelChoice, find_source
from tandem.backends.torch.loading import load_engine
from tandem.core.errors import InvalidArgument
from tandem.demo import demo_folder
from tests.long_runs import LONG, with_long_cases
from tests.unit.backends.tiny_folders import TEMPLATE, write_model, write_tokenizer

Damage = Callable[[Path], object]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a tokenizer that nothing is wrong with."""
    return write_tokenizer(write_model(tmp_path_factory.mktemp("models") / "tiny", "llama"))


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "stranger"))


def change(folder: Path, name: str, **changes: Any) -> None:
    settings = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps(settings | changes))


# GGUF files


def field(name: str, kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", kind) + value


def text(content: str) -> bytes:
    return struct.pack("<Q", len(content.encode())) + content.encode()


def gguf_of(*fields: bytes, tensors: int = 0, after: bytes = b"", version: int = 3) -> bytes:
    return struct.pack("<4sIQQ", b"GGUF", version, tensors, len(fields)) + b"".join(fields) + after


LLAMA = field("general.architecture", 8, text("llama"))
UINT8, STRING, ARRAY = 0, 8, 9
HEADERS = {
    "an array of 2^40 bytes": gguf_of(field("x", ARRAY, struct.pack("<IQ", UINT8, 2**40))),
    "2^40 texts": gguf_of(field("x", ARRAY, struct.pack("<IQ", STRING, 2**40))),
    "a text of 2^63 bytes": gguf_of(field("x", STRING, struct.pack("<Q", 2**63))),
    "texts of 2^63 bytes": gguf_of(
        field("x", ARRAY, struct.pack("<IQQ", STRING, 2, 2**63 - 1) + bytes(16))
    ),
    "arrays in arrays": gguf_of(
        field("x", ARRAY, struct.pack("<IQ", ARRAY, 1) * 2000 + struct.pack("<IQ", UINT8, 0))
    ),
    "2^31 layers": gguf_of(LLAMA, field("llama.block_count", 4, struct.pack("<I", 2**31 - 1))),
    "2^60 tensors": gguf_of(LLAMA, tensors=2**60),
    "2^60 fields": struct.pack("<4sIQQ", b"GGUF", 3, 0, 2**60),
    "10^9 dimensions": gguf_of(LLAMA, tensors=1, after=text("w") + struct.pack("<I", 10**9)),
    "a tensor beyond the end": gguf_of(
        LLAMA, tensors=1, after=text("w") + struct.pack("<IQIQ", 1, 4, 0, 2**50)
    ),
    "a value of no kind": gguf_of(field("x", 77, b"")),
    "the other byte order": gguf_of(version=3 << 24),
    "nothing": b"GGUF",
    "no end": gguf_of(LLAMA)[:-3],
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("header", HEADERS)
def test_a_gguf_header_is_compared_with_the_file(header: str, tmp_path: Path) -> None:
    path = tmp_path / "stranger.gguf"
    path.write_bytes(HEADERS[header])
    with pytest.raises(InvalidArgument, match=r"stranger\.gguf cannot be read: ") as caught:
        load_model(ModelChoice(str(path)))
    assert caught.value.field == "model"


def test_a_gguf_file_without_a_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "stranger.gguf"
    path.write_bytes(gguf_of(LLAMA).ljust(64, b"\0"))
    with pytest.raises(InvalidArgument, match=r"stranger\.gguf"):
        load_model(ModelChoice(str(path)))


# What a folder says


@pytest.mark.parametrize("place", [None, "text_config", "vision_config"])
@pytest.mark.parametrize(
    "key", ["attn_implementation", "_attn_implementation", "experts_implementation"]
)
def test_no_folder_names_the_code_that_computes_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, key: str, place: str | None
) -> None:
    """transformers would ask the hub for a kernel of this name, and run it."""
    asked: list[object] = []
    kernel = "transformers.modeling_utils.lazy_import_flash_attention"
    monkeypatch.setattr(kernel, lambda name, **options: asked.append(name))
    names = {key: "evil/kernel"}
    change(folder, "config.json", **({place: names} if place else names))
    with pytest.raises(InvalidArgument, match=rf"config\.json names code to run, '{key}'"):
        load_engine(folder)
    assert not asked


def test_code_in_a_folder_is_not_run(folder: Path, tmp_path: Path) -> None:
    """Folders of models that transformers knows may name classes of their own, and often do."""
    ran = tmp_path / "ran"
    (folder / "own.py").write_text(f"open({str(ran)!r}, 'w')\n")
    classes = {name: f"own.{name}" for name in ("AutoConfig", "AutoModelForCausalLM")}
    change(folder, "config.json", auto_map=classes, attn_implementation="eager")
    change(folder, "tokenizer_config.json", auto_map={"AutoTokenizer": ["own.A", "own.B"]})
    load_engine(folder)
    load_tokenizer(folder)
    assert not ran.exists()


def deep(depth: int) -> str:
    return "[" * depth + "]" * depth


def pipe(name: str) -> Damage:
    def put(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return put


def many_tensors(folder: Path) -> None:
    entry = '"{}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}'
    header = "{" + ",".join(map(entry.format, range(MOST_TENSORS + 1))) + "}"
    content = struct.pack("<Q", len(header)) + header.encode()
    (folder / "model.safetensors").write_bytes(content)


def large(name: str) -> Damage:
    def put(folder: Path) -> None:
        with (folder / name).open("wb") as file:
            file.truncate(MOST_FILE_BYTES + 1)

    return put


def write(name: str, content: str | bytes) -> Damage:
    raw = content if isinstance(content, bytes) else content.encode()
    return lambda folder: (folder / name).write_bytes(raw)


def configured(**changes: Any) -> Damage:
    return lambda folder: change(folder, "config.json", **changes)


CONFIG_WITH_DEPTH = '{"model_type":"llama","x":%s}'
DAMAGES: dict[str, Damage] = {
    "a deep configuration": write("config.json", CONFIG_WITH_DEPTH % deep(100_000)),
    "one not quite as deep": write("config.json", CONFIG_WITH_DEPTH % deep(200)),
    "a large configuration": large("config.json"),
    "a pipe for a configuration": pipe("config.json"),
    "a pipe for a tokenizer": pipe("tokenizer.json"),
    "a large file of tokens": large("special_tokens_map.json"),
    "2^31 layers": configured(num_hidden_layers=2**31),
    "more layers than tensors": configured(num_hidden_layers=4000),
    "no layers": configured(num_hidden_layers="many"),
    "no heads": configured(num_attention_heads=0),
    "heads that are no number": configured(num_attention_heads="two"),
    "a vocabulary of 2^40": configured(vocab_size=2**40),
    "a width of 2^31": configured(hidden_size=2**31),
    "an inner width of 2^31": configured(intermediate_size=2**31),
    "a list for a configuration": configured(rope_parameters=[1]),
    "another model's adapter": write("adapter_config.json", "{}"),
    "an index that leads out": write(
        "model.safetensors.index.json", '{"weight_map":{"w":"../../other.safetensors"}}'
    ),
    "an index of numbers": write("model.safetensors.index.json", '{"weight_map":{"w":[7]}}'),
    "a header beyond the file": write("model.safetensors", struct.pack("<Q", 2**62) + b"{}"),
    "a deep header": write("model.safetensors", struct.pack("<Q", 20_000) + deep(10_000).encode()),
    "more tensors than any model": many_tensors,
}


@pytest.mark.timeout(30)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_folder_that_cannot_be_a_model_is_refused_soon(folder: Path, damage: str) -> None:
    DAMAGES[damage](folder)
    with pytest.raises(InvalidArgument, match="stranger") as caught:
        load_model(ModelChoice(str(folder), engine="torch"))
    assert caught.value.field == "model"


def test_a_hub_s_model_is_looked_at_too(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    commit = "1" * 40
    change(folder, "config.json", attn_implementation="evil/kernel")
    shutil.copytree(folder, tmp_path / "models--a--b" / "snapshots" / commit)
    with pytest.raises(InvalidArgument, match="names code to run"):
        find_source("a/b", commit)


# Tokenizers and templates, which run


def splitting(pattern: str) -> Damage:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"}
    return lambda folder: change(folder, "tokenizer.json", pre_tokenizer=split | {"invert": False})


def replacing(times: int, by: int) -> Damage:
    replace = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * by}
    steps = {"type": "Sequence", "normalizers": [replace] * times}
    return lambda folder: change(folder, "tokenizer.json", normalizer=steps)


def with_added_tokens(folder: Path) -> None:
    tokens = [
        {"id": 1000 + number, "content": f"<{number}>", "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for number in range(200_000)
    ]
    change(folder, "tokenizer.json", added_tokens=tokens)


TOKENIZERS: dict[str, tuple[Damage, str]] = {
    "a pattern that backtracks": (splitting(r"(a+)+b|."), "cannot be used"),
    "texts that grow": (replacing(8, 100), ""),
    "tokens without end": (with_added_tokens, "has 2000.* added tokens"),
}


@pytest.mark.timeout(100)
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_tokenizer_that_takes_too_much_is_refused(folder: Path, kind: str) -> None:
    damage, why = TOKENIZERS[kind]
    damage(folder)
    with pytest.raises(InvalidArgument, match=f"stranger: its tokenizer {why}") as caught:
        load_tokenizer(folder)
    assert caught.value.field == "model"


def test_a_tokenizer_that_gives_up_later_refuses_the_prompt(folder: Path) -> None:
    """What it gives up on is not among what it was tried with."""
    splitting(r"(x+x+)+y|.")(folder)
    tokenizer = load_tokenizer(folder)
    for encode in (tokenizer.encode, tokenizer.encode_piece, tokenizer.mark_ids):
        with pytest.raises(InvalidArgument, match="cannot encode this"):
            encode("x" * 2000)
    with pytest.raises(InvalidArgument, match="messages"):
        tokenizer.chat([{"role": "user", "content": "x" * 2000}])


ENDLESS = "{% for a in range(99999) %}" * 3 + "{% endfor %}" * 3
TEMPLATES = {
    "a loop of 10^15": (ENDLESS, "chat template takes more than"),
    "one inside of an answer": (
        "{% generation %}" + ENDLESS + "{% endgeneration %}",
        "chat template takes more than",
    ),
    "three gigabytes of blanks": ("{{ 'a' | center(8000000000) }}", "chat template takes more"),
    "what doubles": (
        "{% set n = namespace(x='ab') %}"
        "{% for a in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        "chat template takes more than",
    ),
    "a long text": ("{{ 'a' * 5000000 }}", "chat template makes"),
    "five megabytes": ("a" * 5_000_000, "chat template has more than"),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "kind", with_long_cases(TEMPLATES, [*TEMPLATES.keys() - {"one inside of an answer"}])
)
def test_a_chat_template_that_takes_too_much_is_refused(folder: Path, kind: str) -> None:
    template, why = TEMPLATES[kind]
    (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(InvalidArgument, match=f"stranger: its {why}"):
        load_tokenizer(folder)


@pytest.mark.parametrize("several", [False, True])
def test_wherever_it_lies(folder: Path, several: bool) -> None:
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    template, why = TEMPLATES["a long text"]
    named = [{"name": name, "template": template} for name in ("default", "tool_use")]
    change(folder, "tokenizer_config.json", chat_template=named if several else template)
    with pytest.raises(InvalidArgument, match=f"stranger: its {why}"):
        load_tokenizer(folder)


@LONG  # it takes all of the time that a template may
@pytest.mark.timeout(60)
def test_so_is_that_of_a_gguf_file(tmp_path: Path) -> None:
    path = tmp_path / "stranger.gguf"
    path.write_bytes(gguf_of(LLAMA, field("tokenizer.chat_template", STRING, text(ENDLESS))))
    with pytest.raises(InvalidArgument, match=r"stranger\.gguf: its chat template takes more"):
        check_gguf(path)


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[0].content + 1 }}",
        "{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(1) }}",
        "{{ 1 // 0 }}",
        "{{ messages[7].content.x }}",
    ],
)
def test_a_chat_template_that_fails_refuses_the_messages(folder: Path, template: str) -> None:
    (folder / "chat_template.jinja").write_text(template)
    tokenizer = load_tokenizer(folder)
    with pytest.raises(InvalidArgument, match="messages: refused by the chat template"):
        tokenizer.chat([{"role": "user", "content": "a"}])


def test_what_nothing_is_wrong_with_is_taken(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    assert load_tokenizer(folder).chat([{"role": "user", "content": "a"}])
    assert load_tokenizer(demo_folder("demo-draft")).encode("a")
