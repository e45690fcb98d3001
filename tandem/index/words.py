"""The words of texts and of queries, split alike for a folder and for a PostgreSQL server.

Scripts that put no spaces between words, and Korean, whose words take endings, are split into pairs
of letters: a word of two letters or more is found by the pairs that it has in common with the text.

    words_of("Ärger mit door_code")    # arger, mit, door, code, door_code
    words_of("年假")                    # 年, 假, 年假
    query_words("what is the door code")    # door, code
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping

from tandem.index.function_words import function_words, without_asking

VERSION = f"1, Unicode {unicodedata.unidata_version}"
"""Of how texts are split, which each Python's tables of letters change too: to be raised with every
change to `words_of`. An index holds the words of one version."""

MOST_QUERY_WORDS = 512
LONGEST_WORD = 128

COMMON_SHARE = 0.5
"""A word in more chunks than this share is left out of a query once the rarer words match
`FEW_SCORED` chunks: it tells few of them apart."""
FEW_SCORED = 1_000
MOST_SCORED = 10_000
"""Chunks that the words of one query may match in all, the rarest words first."""

_PAIRED = (
    "\u0e01-\u0e4f\u0e81-\u0ecf"  # Thai, Lao
    "\u1000-\u103f\u1050-\u109f\u1780-\u17d3"  # Burmese, Khmer
    "\u1100-\u11ff\uac00-\ud7a3"  # Hangul
    "\u3005-\u3007\u3041-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff"  # Kana
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Han
)
_MARKS = "\u0900-\u0963\u0966-\u0dff"
"""Scripts of India, whose vowels are marks: to Python they end a word."""
_SIGNS = "\u2600-\u27bf\U0001f000-\U0001faff"
"""Emoji, each a word."""
_UNSEEN = str.maketrans("", "", "\u00ad\u200d\u2060")
"""Soft hyphens and joiners, within words and no letters of them."""
_RUN = re.compile(rf"[{_PAIRED}]+|[{_SIGNS}]|(?:(?![{_PAIRED}{_SIGNS}])[\w{_MARKS}])+")
_IS_PAIRED = re.compile(f"[{_PAIRED}]")


def words_of(text: str) -> list[str]:
    """Return the words of a text in their order, each as often as it is there: of an identifier
    its parts and the whole of it, of a run of paired letters the letters and the pairs."""
    words: list[str] = []
    for run in _RUN.findall(_folded(text)):
        if _IS_PAIRED.match(run):
            words += [*run, *_pairs(run)]
        else:
            words += _parts(run)
    return words


def query_words(query: str) -> list[str]:
    """Return the distinct words to search for. Words that ask count where there are no others, and
    a letter of a run of paired ones where it is alone."""
    words = _asked(without_asking(query)) or _asked(query)
    asking = function_words(words)
    return [word for word in words if word not in asking] or words


def telling(frequencies: Mapping[str, int], chunks: int) -> list[str]:
    """Return the words that tell `chunks` chunks apart, the rarest first; one at least, if any
    occurs. `frequencies`: how many of the chunks have each word."""
    chosen: list[str] = []
    scored = 0
    for frequency, word in sorted((count, word) for word, count in frequencies.items() if count):
        scored += frequency
        common = frequency > COMMON_SHARE * chunks and scored > FEW_SCORED
        if chosen and (common or scored > MOST_SCORED):
            break
        chosen.append(word)
    return chosen


def rarity(frequency: int, chunks: int) -> float:
    """Return the weight of a word that `frequency` of the chunks have: its inverse document
    frequency, as BM25 has it, over 0."""
    return math.log1p(max(0.0, chunks - frequency + 0.5) / (frequency + 0.5))


def _asked(query: str) -> list[str]:
    words: list[str] = []
    for run in _RUN.findall(_folded(query)):
        if _IS_PAIRED.match(run):
            words += _pairs(run) or [run]
        else:
            words += _parts(run)
    return list(dict.fromkeys(words))[:MOST_QUERY_WORDS]


def _folded(text: str) -> str:
    """Return the text in lower case, without accents, compatibility forms and what is not seen."""
    if text.isascii():
        return text.lower()
    decomposed = unicodedata.normalize("NFKD", text.translate(_UNSEEN).casefold())
    plain = "".join(c for c in decomposed if not unicodedata.combining(c))
    return unicodedata.normalize("NFC", plain.casefold())


def _pairs(run: str) -> list[str]:
    return [run[place : place + 2] for place in range(len(run) - 1)]


def _parts(identifier: str) -> list[str]:
    parts = [part[:LONGEST_WORD] for part in identifier.split("_") if part]
    return [*parts, "_".join(parts)[:LONGEST_WORD]] if len(parts) > 1 else parts
