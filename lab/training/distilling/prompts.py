"""What the target is asked: one's own prompts, those about everyday things, or the recipe's five
tasks; a share of each is held out from training.

A prompt is held out by what it was made from (`corpus.is_held_out`), so every run holds out the
same ones. The texts of these sources only ask; what the draft learns is what the target answers.
"""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain, cycle, islice
from pathlib import Path

from lab.training.demo_pair.corpus import HELD_OUT_SHARE, Document, is_held_out, load_documents

MATHS = "maths"
PROSE = "prose"
CODE = "code"
TOPICS = "topics"
TALK = "talk"
TASKS = (MATHS, PROSE, CODE, TOPICS, TALK)
OWN = "own"
ASKED = "asked"
"""Tasks of prompts that a user gave, and that the target itself made up."""
EXCERPT_CHARACTERS = 420
PIECE_CHARACTERS = 1200
ANSWERED = "\x00"
WIKITEXT = "wikitext2-valid.txt"
OWN_HELD_OUT_SHARE = 0.08
HELD_OUT_SHARES = dict.fromkeys((CODE, TOPICS, TALK), OWN_HELD_OUT_SHARE)
HELD_OUT_SHARES |= dict.fromkeys((MATHS, PROSE), HELD_OUT_SHARE)
"""Those of documents are the demo pair's, whose held-out texts benchmarks use."""

_HEADING = re.compile(r"^ = ([^=]+) = $")
_UNKNOWN = "<unk>"
_PROMPT_FIELDS = ("prompt", "question", "text")
_PEP_REQUESTS = (
    "What is {title} about?",
    "Explain {title} in simple words.",
    "Summarize this text in two sentences:\n\n{excerpt}",
    "Rewrite this text so that a beginner understands it:\n\n{excerpt}",
    "List the main points of this text:\n\n{excerpt}",
)
_TOPIC_REQUESTS = (
    "Tell me about {title}.",
    "Write a short story about {title}.",
    "Write three facts about {title}.",
    "Who or what is {title}?",
    "Summarize this text:\n\n{excerpt}",
)
_CODE_REQUESTS = (
    "Complete this Python function:\n\n{code}",
    "Write a Python function named {name}. {purpose}",
)
_TALK_REQUESTS = (
    "What is {thing}?",
    "How does {thing} work?",
    "Why is {thing} important?",
    "Tell me something surprising about {thing}.",
    "Write a short poem about {thing}.",
    "Write an email to a friend about {thing}.",
    "Give me five tips about {thing}.",
    "Write the beginning of a story in which {thing} matters.",
    "What are advantages and disadvantages of {thing}?",
    "Explain {thing} to a child.",
    "What should a beginner know about {thing}?",
    "What is the history of {thing}?",
)
_THINGS = (
    *("the moon", "rain", "bread", "chess", "the heart", "a bicycle", "coffee", "the internet"),
    *("sleep", "photosynthesis", "money", "a library", "football", "the sea", "a garden", "music"),
    *("an electric car", "the Roman Empire", "a cat", "learning a language", "running", "winter"),
    *("cooking rice", "a job interview", "the brain", "a volcano", "friendship", "a computer"),
    *("the human eye", "paper", "a good habit", "recycling", "Paris", "gravity", "a birthday"),
    *("public transport", "a camera", "saving energy", "the alphabet", "bees", "democracy"),
    *("working from home", "a mountain hike", "vaccines", "painting", "a school", "tea", "Japan"),
    *("the sun", "stress", "a robot", "healthy food", "the piano", "a forest", "time management"),
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request, made from the text of that id. `chat`: it is a user's turn; otherwise it is text
    that goes on."""

    source_id: str
    task: str
    text: str
    chat: bool = True

    @property
    def held_out(self) -> bool:
        return is_held_out(self.source_id, HELD_OUT_SHARES.get(self.task, OWN_HELD_OUT_SHARE))


def all_prompts(folder: Path, seed: int, variants: int = 1) -> list[Prompt]:
    """Return the prompts of all tasks, in random order: about everyday things, and from
    `gsm8k-train.jsonl`, `peps.jsonl`, `HumanEval.jsonl.gz` and `wikitext2-valid.txt` in `folder`.
    `variants`: how many there are of each document, with excerpts and requests drawn anew. Raises
    FileNotFoundError naming a file that is missing."""
    return list(chain.from_iterable(_variant(folder, seed + n) for n in range(variants)))


def everyday_prompts(seed: int) -> list[Prompt]:
    """Return requests about everyday things, in random order; they need no file."""
    prompts = list(_talk())
    random.Random(seed).shuffle(prompts)
    return prompts


def own_prompts(path: Path, seed: int) -> list[Prompt]:
    """Read the prompts of a file, in random order and each once: lines of a text, or JSON lines
    that are strings or have a field 'prompt', 'question' or 'text' (or 'messages', of which the
    first by a user counts). Raises ValueError naming the line, FileNotFoundError."""
    read = _read_json_prompts if path.suffix in (".jsonl", ".json") else _read_lines
    texts = dict.fromkeys(text.strip() for text in read(path))
    texts.pop("", None)
    prompts = [Prompt(sha256(text.encode()).hexdigest()[:16], OWN, text) for text in texts]
    if not prompts:
        raise ValueError(f"{path} has no prompts")
    random.Random(seed).shuffle(prompts)
    return prompts


def split_held_out(prompts: list[Prompt], least: int) -> tuple[list[Prompt], list[Prompt]]:
    """Split prompts into those to learn from and held-out ones. At least `least` of each task are
    held out, if as many remain: where there are too few, those whose ids' digests come first are
    held out too."""
    held_out = [prompt for prompt in prompts if prompt.held_out]
    for task in dict.fromkeys(prompt.task for prompt in prompts):
        of_task = [prompt for prompt in prompts if prompt.task == task]
        wanted = min(least, len(of_task) // 2) - sum(prompt.held_out for prompt in of_task)
        others = sorted(
            {prompt.source_id for prompt in of_task if not prompt.held_out},
            key=lambda source: sha256(source.encode()).digest(),
        )
        chosen = set(others[: max(0, wanted)])
        held_out += [p for p in of_task if not p.held_out and p.source_id in chosen]
    sources = {(prompt.task, prompt.source_id) for prompt in held_out}
    return [p for p in prompts if (p.task, p.source_id) not in sources], held_out


def _read_lines(path: Path) -> Iterator[str]:
    yield from path.read_text(encoding="utf-8").splitlines()


def _read_json_prompts(path: Path) -> Iterator[str]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            yield _prompt_of(json.loads(line))
        except (KeyError, TypeError, ValueError, StopIteration):
            fields = "a string, or an object with 'prompt', 'question', 'text' or 'messages'"
            raise ValueError(f"{path}, line {number}: not {fields}") from None


def _prompt_of(record: object) -> str:
    if isinstance(record, dict) and "messages" in record:
        by_user = (turn for turn in record["messages"] if turn["role"] == "user")
        record = next(by_user)["content"]
    elif isinstance(record, dict):
        record = next(record[name] for name in _PROMPT_FIELDS if name in record)
    if not isinstance(record, str):
        raise TypeError
    return record


def _variant(folder: Path, seed: int) -> list[Prompt]:
    rng = random.Random(seed)
    prompts = [_of_document(document, rng) for document in load_documents(folder)]
    prompts += _code(folder / "HumanEval.jsonl.gz")
    prompts += _topics(folder / WIKITEXT, rng)
    prompts += _talk()
    rng.shuffle(prompts)
    return prompts


def _talk() -> Iterator[Prompt]:
    for thing in _THINGS:
        for request in _TALK_REQUESTS:
            yield Prompt(thing, TALK, request.format(thing=thing))


def texts_to_read(folder: Path, seed: int, characters: int = PIECE_CHARACTERS) -> list[Prompt]:
    """Return texts by others, which the target only reads, in random order: solved problems as
    chats (question and answer separated by ANSWERED), and pieces of PEPs and articles of at most
    `characters` characters. None is held out."""
    rng = random.Random(seed)
    texts = list[Prompt]()
    for document in load_documents(folder):
        if document.question:
            text = f"{document.question}{ANSWERED}{document.text}"
            texts.append(Prompt(document.id, MATHS, text))
        else:
            piece = _piece(document.text, rng, characters)
            texts.append(Prompt(document.id, PROSE, piece, chat=False))
    for article, _, text in _paragraphs(folder / WIKITEXT, least=400):
        texts.append(Prompt(article, TOPICS, text[:characters], chat=False))
    rng.shuffle(texts)
    return [text for text in texts if not text.held_out]


def _piece(text: str, rng: random.Random, characters: int) -> str:
    first = rng.randrange(max(1, len(text) - characters))
    return text[text.find(" ", first) + 1 :][:characters]


def mixed(prompts: list[Prompt], shares: dict[str, float], count: int) -> list[Prompt]:
    """Return about `count` prompts, divided among the tasks by `shares`; tasks without prompts do
    not count. Prompts of a task that has too few are repeated."""
    by_task = {task: [one for one in prompts if one.task == task] for task in shares}
    whole = sum(share for task, share in shares.items() if by_task[task])
    return [
        prompt
        for task, of_task in by_task.items()
        if of_task
        for prompt in islice(cycle(of_task), round(count * shares[task] / whole))
    ]


def _of_document(document: Document, rng: random.Random) -> Prompt:
    """Return a prompt about a document: a problem, or a request about a PEP; one in six is the
    beginning of a text instead."""
    plain = rng.random() < 1 / 6
    if document.question:
        text = f"Question: {document.question}\nAnswer:" if plain else document.question
        return Prompt(document.id, MATHS, text, not plain)
    if plain:
        beginning = document.text[: rng.randrange(120, EXCERPT_CHARACTERS)]
        return Prompt(document.id, PROSE, f"{document.title}\n\n{beginning}", chat=False)
    paragraphs = [part for part in document.text.split("\n\n") if len(part) > 200]
    excerpt = rng.choice(paragraphs or [document.text])[:EXCERPT_CHARACTERS]
    request = rng.choice(_PEP_REQUESTS).format(title=document.title, excerpt=excerpt)
    return Prompt(document.id, PROSE, request)


def _code(path: Path) -> Iterator[Prompt]:
    for line in gzip.decompress(path.read_bytes()).splitlines():
        record = json.loads(line)
        number = record["task_id"].replace("/", "-")
        code, name = record["prompt"].strip(), record["entry_point"]
        purpose = " ".join(code.split('"""')[1].split(">>>")[0].split()) if '"""' in code else ""
        yield Prompt(number, CODE, record["prompt"], chat=False)
        for request in _CODE_REQUESTS:
            text = request.format(code=code, name=name, purpose=purpose).strip()
            yield Prompt(number, CODE, text)


def _topics(path: Path, rng: random.Random) -> Iterator[Prompt]:
    for article, title, text in _paragraphs(path, least=150):
        excerpt = text[:EXCERPT_CHARACTERS]
        request = rng.choice(_TOPIC_REQUESTS).format(title=title, excerpt=excerpt)
        plain = rng.random() < 1 / 6
        yield Prompt(article, TOPICS, excerpt if plain else request, not plain)


def _paragraphs(path: Path, least: int) -> Iterator[tuple[str, str, str]]:
    """Yield paragraphs of WikiText-2: id and title of the article, and those sentences without
    unknown words, if they have more than `least` characters."""
    title = ""
    article = 0
    for line in path.read_text(encoding="utf-8").splitlines():
        if heading := _HEADING.match(line):
            title, article = _detokenized(heading[1].strip()), article + 1
        elif title and len(known := _known_sentences(line)) > least:
            yield f"article-{article}", title, _detokenized(known)


def _known_sentences(line: str) -> str:
    return " . ".join(part for part in line.strip(" .").split(" . ") if _UNKNOWN not in part) + " ."


def _detokenized(text: str) -> str:
    """Return the text without the spaces that WikiText puts around punctuation marks."""
    joined = re.sub(r" @([-,.])@ ", r"\1", text)
    joined = re.sub(r" ([,.;:!?)\]]|'s)", r"\1", joined)
    return re.sub(r"([(\[]) ", r"\1", joined)
