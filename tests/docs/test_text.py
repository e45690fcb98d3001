"""Documentation against the repository: links, paths, names and generated pages."""

from __future__ import annotations

import dataclasses
import inspect
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest
import yaml

import tandem
from tandem import __version__
from tandem.core.tokens import TokenSource
from tandem.specdec.presets import PRESETS
from tandem.two_sided.protocol.presets import AGGREGATION_PRESETS
from tests.docs.blocks import PAGES
from tests.docs.flags import TARGETS, all_flags, path_complaints
from tests.programs import REPOSITORY
from tools.reference import FOLDER, pages
from tools.reference_site import LABORATORY, MAIN, Site

LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} (.+?)\s*$", re.MULTILINE)
CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
FENCED = re.compile(r"^ *```.*?^ *```\s*$", re.MULTILINE | re.DOTALL)


@cache
def all_files() -> tuple[str, ...]:
    """The paths of the program's files, relative to the repository."""
    found = (path for room in ROOMS for path in (REPOSITORY / room).rglob("*") if path.is_file())
    return tuple(path.relative_to(REPOSITORY).as_posix() for path in found)


@cache
def all_words() -> frozenset[str]:
    """The words in the program and in its protocol, without its tests."""
    files = [name for name in all_files() if name.endswith((".py", ".proto"))]
    texts = (text_of(name) for name in files if not name.startswith("tests/"))
    return frozenset(word for text in texts for word in re.findall(r"\w+", text))


ROOMS = ("tandem", "lab", "protos", "tests", "tools", "deploy", "examples")

every_page = pytest.mark.parametrize("page", PAGES, ids=str)


def text_of(page: Path | str) -> str:
    return (REPOSITORY / page).read_text(encoding="utf-8")


def prose_of(page: Path | str) -> str:
    """A page without its fenced blocks."""
    return FENCED.sub("", text_of(page))


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and mkdocs write them."""
    found = set()
    for heading in HEADING.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
        words = re.sub(r"[`*\[\]]|\(.*?\)", "", heading).lower()
        found.add(re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", words).strip()))
    return found


@every_page
def test_links_and_anchors_resolve(page: Path) -> None:
    for link in LINK.findall(prose_of(page)):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        target, _, anchor = link.partition("#")
        path = REPOSITORY / page.parent / target if target else REPOSITORY / page
        assert path.exists(), f"{page}: {link}"
        if anchor:
            assert anchor in anchors(path), f"{page}: {link}"


@every_page
def test_paths_flags_and_targets_in_the_prose_exist(page: Path) -> None:
    flags = all_flags()
    for code in CODE.findall(prose_of(page)):
        for word in code.split():
            assert list(path_complaints(word)) == [], page
            assert module_exists(word), f"{page}: {word}"
        make = re.fullmatch(r"make ([a-z-]+)", code)
        assert make is None or make[1] in TARGETS, f"{page}: {code}"
        if code.startswith("--") and page.parts[0] != "deploy":
            flag = re.split(r"[ =]", code)[0]
            known = flags | {"--profile", "--build-arg"}
            assert flag in known, f"{page}: {code}"


def module_exists(word: str) -> bool:
    """Whether `word`, if it names a Python file, does so from the root or from a room."""
    if not re.fullmatch(r"[\w/]+\.py", word):
        return True
    if "/" not in word:
        return any(REPOSITORY.glob(f"[a-z]*/**/{word}"))
    places = ("", "lab", "tandem", "tandem/backends", "tandem/two_sided")
    return any((REPOSITORY / place / word).exists() for place in places)


@pytest.mark.parametrize("name", pages())
def test_generated_pages_are_current(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == pages()[name], "run 'make docs'"


def test_every_preset_is_described() -> None:
    pages = ("docs/presets.md", "lab/docs/methods.md")
    described = {code for page in pages for code in CODE.findall(prose_of(page))}
    assert {*PRESETS, *AGGREGATION_PRESETS} <= described


def test_every_token_source_is_described() -> None:
    section = text_of("docs/http-api.md").partition("## The field tandem")[2]
    assert {str(source) for source in TokenSource} <= set(CODE.findall(section))


def test_every_room_is_described() -> None:
    table = text_of("ARCHITECTURE.md").partition("## Rooms")[2].partition("\n## ")[0]
    packages = {path.parent.name for path in REPOSITORY.glob("tandem/*/__init__.py")}
    rooms = packages | {"cli", "settings"}
    assert rooms <= set(CODE.findall(table))
    lines = text_of("docs/internals/index.md").partition("## The rooms")[2].splitlines()
    rows = [CODE.findall(line) for line in lines if line.startswith("| `")]
    assert sorted(room for room, _ in rows) == sorted(rooms)
    for room, first in rows:
        path = REPOSITORY / "tandem" / first.removeprefix("tandem/")
        assert path.is_file(), first
        assert path.relative_to(REPOSITORY / "tandem").parts[0].removesuffix(".py") == room


def test_the_life_of_a_request_names_files_that_are_there() -> None:
    life = text_of("docs/internals/index.md").partition("\n## ")[0]
    assert re.findall(r"^(\d)\. \*\*", life, re.M) == list("12345678")
    files = [code for code in CODE.findall(life) if re.fullmatch(r"[\w/]+\.(py|mjs)", code)]
    assert len(files) > 20
    for file in files:
        assert any((REPOSITORY / place / file).is_file() for place in ("", "tandem")), file


def test_everything_public_in_python_is_described() -> None:
    described = set(CODE.findall(text_of("docs/reference/python.md")))
    assert set(tandem.__all__) - {"GenerationOptions", "__version__"} <= described
    assert set(tandem.GenerationOptions.__annotations__) <= described
    for maker in (tandem.embedded, tandem.connect):
        assert set(inspect.signature(maker).parameters) <= described
    for kind in (tandem.Answer, tandem.Piece, tandem.Figures, tandem.SideFigures):
        assert {field.name for field in dataclasses.fields(kind)} <= described


def test_every_extra_is_described() -> None:
    described = set(CODE.findall(prose_of("docs/installation.md")))
    for project in ("pyproject.toml", "lab/pyproject.toml"):
        extras = tomllib.loads(text_of(project))["project"].get("optional-dependencies", {})
        assert set(extras) <= described, project


@pytest.mark.parametrize(("config", "site"), [("mkdocs.yml", MAIN), ("lab/mkdocs.yml", LABORATORY)])
def test_every_page_of_a_site_is_in_its_navigation(config: str, site: Site) -> None:
    listed = set(re.findall(r"[\w/-]+\.md", str(yaml.safe_load(text_of(config))["nav"])))
    written = {page.relative_to(site.folder) for page in PAGES if page.is_relative_to(site.folder)}
    assert listed == {page.as_posix() for page in written} | set(site.pages.values())


def test_glossary_words_are_used() -> None:
    """A word of the glossary stands in some page or module; a dead one would mislead."""
    words = re.findall(r"^\| (\*\*.+?\*\*) \|", text_of("docs/glossary.md"), re.MULTILINE)
    assert len(words) > 30
    texts = [prose_of(page) for page in PAGES if page.name != "glossary.md"]
    code = (path for room in ("lab", "tandem") for path in REPOSITORY.glob(f"{room}/**/*.py"))
    texts += [path.read_text(encoding="utf-8") for path in code]
    everything = re.sub(r"[\s_-]+", " ", "\n".join(texts)).lower()
    for entry in words:
        for word in re.findall(r"\*\*(.+?)\*\*", entry):
            assert re.sub(r"[\s-]+", " ", word).lower() in everything, word


@every_page
def test_files_that_a_page_names_as_proof_exist(page: Path) -> None:
    for name in re.findall(r"`(tests/[\w/]+\.py)`", text_of(page)):
        assert (REPOSITORY / name).is_file(), name


def test_the_citation_names_this_version_and_licence() -> None:
    citation = yaml.safe_load(text_of("CITATION.cff"))
    assert citation["version"] == __version__
    assert citation["license"] == "Apache-2.0"
    assert "Apache License" in text_of("LICENSE").splitlines()[1]
    assert "CN2025108856278" in text_of("NOTICE")


def test_the_papers_are_cited_alike_everywhere() -> None:
    identifiers = {"2504.11197", "2507.12000", "2505.21594", "2603.19133", "2512.16273"}
    for page in ("NOTICE", "CITATION.cff", "lab/docs/methods.md"):
        assert set(re.findall(r"\b\d{4}\.\d{5}\b", text_of(page))) == identifiers, page


NAME = re.compile(r"(?:[A-Z][a-z]+){2,}(\.\w+)?|[a-z]+(_[a-z]+)+|[\w/]+\.(py|mjs|json|tpl)")


@pytest.mark.parametrize("page", [page for page in PAGES if "internals" in page.parts], ids=str)
def test_names_in_the_internals_exist(page: Path) -> None:
    """Classes, functions, fields and files: of the code, of protos or of a library it imports."""
    names = {code for code in CODE.findall(prose_of(page)) if NAME.fullmatch(code)}
    assert [name for name in names if not exists(name)] == []


def exists(name: str) -> bool:
    if not re.search(r"\.(py|mjs|json|tpl)$", name):
        return set(name.split(".")) <= all_words()
    stem = name.rpartition("/")[2].partition(".")[0]
    written = name.endswith(".json") and stem in all_words()
    return written or any(f"/{file}".endswith(f"/{name}") for file in all_files())
