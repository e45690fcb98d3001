"""Documents for training and evaluation, and the rule that keeps some of them unseen.

Invariant: a document whose id is held out never reaches the tokenizer or any training stage.
The rule depends on the id alone (not on `--seed`), so every run holds out the same documents.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HELD_OUT_SALT = "tandem-heldout-v1"
HELD_OUT_SHARE = 0.03
PEPS = "peps"
GSM8K = "gsm8k"
NOT_EXCERPTED = frozenset({"pep-8016"})
"""PEPs that quote text under another licence (here Django's)."""

_CALCULATOR_NOTE = re.compile(r"<<[^<>]*>>")


@dataclass(frozen=True, slots=True)
class Document:
    """One source document. `question` is empty for plain prose."""

    id: str
    source: str
    title: str
    question: str
    text: str


def is_held_out(document_id: str, share: float = HELD_OUT_SHARE) -> bool:
    """Return whether a document is held out, as about `share` of the ids are: if sha256(salt ":"
    id), its first 8 bytes as a fraction of 2**64, is below `share`."""
    digest = hashlib.sha256(f"{HELD_OUT_SALT}:{document_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64 < share


def load_documents(folder: Path) -> list[Document]:
    """Load all documents of `peps.jsonl` and `gsm8k-train.jsonl` in `folder`, also held-out
    ones."""
    return [*load_peps(folder / "peps.jsonl"), *_load_gsm8k(folder / "gsm8k-train.jsonl")]


def load_peps(path: Path) -> Iterator[Document]:
    """Yield the PEPs of a JSON-lines file with `id`, `title` and `text`."""
    for record in _read_jsonl(path):
        yield Document(record["id"], PEPS, record["title"], "", record["text"].strip())


def training_documents(documents: list[Document]) -> list[Document]:
    return [document for document in documents if not is_held_out(document.id)]


def held_out_documents(documents: list[Document]) -> list[Document]:
    return [document for document in documents if is_held_out(document.id)]


def render_epoch(documents: list[Document], seed: int) -> list[str]:
    """Return the training texts of one epoch in random order, without bos and eos.

    Each PEP appears once as prose and once more as a short chat; each problem appears twice, in
    forms drawn at random, so that about two fifths of the tokens are problems."""
    rng = random.Random(seed)
    texts: list[str] = []
    for document in documents:
        if document.source == PEPS:
            texts.append(render_prose(document))
            texts.append(_render_pep_chat(document, rng))
        else:
            texts.extend(_render_problem(document, rng) for _ in range(2))
    rng.shuffle(texts)
    return texts


def render_prose(document: Document) -> str:
    """Return a PEP as plain text, or a problem in the plain question/answer form."""
    if document.source == PEPS:
        return f"{document.title}\n\n{document.text}"
    return f"Question: {document.question}\nAnswer: {document.text}"


def render_chat(question: str, answer: str, document: str = "", system: str = "") -> str:
    """Return the chat form, which must stay equal to the tokenizer's chat template (see
    `tokenizer.py`)."""
    prefix = f"<|system|>{system}" if system else ""
    prefix += f"<|document|>{document}" if document else ""
    return f"{prefix}<|user|>{question}<|assistant|>{answer}<|end|>"


def _render_problem(document: Document, rng: random.Random) -> str:
    draw = rng.random()
    if draw < 0.35:
        return render_prose(document)
    if draw < 0.45:
        return render_chat(document.question, document.text, system=_SYSTEM_PROMPT)
    return render_chat(document.question, document.text)


_SYSTEM_PROMPT = "You are a helpful assistant."
_PEP_QUESTIONS = (
    "What is {title} about?",
    "Explain {title}.",
    "Tell me about {title}.",
    "Summarize {title}.",
)


def _render_pep_chat(document: Document, rng: random.Random) -> str:
    paragraphs = [part for part in document.text.split("\n\n") if len(part) > 120]
    title = document.title
    question = rng.choice(_PEP_QUESTIONS).format(title=title)
    if not paragraphs:
        return render_chat(question, document.text[:800])
    if rng.random() < 0.5:
        return render_chat(question, "\n\n".join(paragraphs[:2])[:1200])
    first = rng.randrange(len(paragraphs))
    context = f"{title}\n\n" + "\n\n".join(paragraphs[first : first + 3])[:2000]
    return render_chat(question, paragraphs[first], document=context)


def _load_gsm8k(path: Path) -> Iterator[Document]:
    for index, record in enumerate(_read_jsonl(path)):
        answer = _CALCULATOR_NOTE.sub("", record["answer"]).strip()
        yield Document(f"gsm8k-train-{index:05d}", GSM8K, "", record["question"].strip(), answer)


def _read_jsonl(path: Path) -> Iterator[dict[str, str]]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if line.strip():
                yield json.loads(line)
