"""Words and phrases that ask rather than tell: few documents have "what" or "什么", so their rarity
would count for more than what is asked for.

English, German, Chinese and Japanese. A query of another language is searched for with all of its
words.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection

_ENGLISH = """
a about am an and any are as at be been but by can could did do does for from had has have how i if
in into is it its many me much my of on or our s shall should so t than that the their them then
there these they this those to us was we were what when where which who whom whose why will with
would you your
"""
_GERMAN = """
aber als am an auch auf aus bei bin bis das dass dein deine dem den der des die dir du durch ein
eine einem einen einer eines er es fur habe haben hat hier ich ihm ihn ihnen ihr ihre ihrem ihren
im in ist ja kann kannst konnen man mein meine meinem meinen meiner mich mir mit muss mussen nach
nicht noch oder ob sein seine sich sie sind soll sollen uber um und uns unser unsere unserem unseren
viel viele vom von vor wann war waren warum was welche welchem welchen welcher welches wem wen wenn
wer werden weshalb wie wieso wieviel wird wir wo woher wohin wurde zu zum zur
"""
"""Without their accents, as `words_of` has them."""
ENGLISH = frozenset(_ENGLISH.split())
GERMAN = frozenset(_GERMAN.split())
_LEAST_GERMAN = 2
"""Function words that tell a German query from an English one: alone, "die" or "war" may be what is
asked for."""

_PHRASES = """
为什么 為什麼 什么时候 什麼時候 什么 什麼 怎么样 怎麼樣 怎么 怎麼 怎样 怎樣 如何
哪里 哪裡 哪儿 哪兒 哪个 哪個 哪些 多少 是否 有没有 有沒有 请问 請問
何ですか いつですか どこですか だれですか 誰ですか いくらですか どれですか
ですか ますか でしょうか とは何 いつ どこ だれ 誰 いくら どの どれ
なぜ どうやって どうすれば 教えてください 教えて
"""
_LONGEST_FIRST = sorted(_PHRASES.split(), key=len, reverse=True)
_PARTICLES = r"[吗嗎](?!啡)|呢(?![子绒絨])|何(?=[ぁ-ゟ]|$)"
"""Not the first letters of morphine and of woollen cloth."""
_ASKING = re.compile("|".join([*_LONGEST_FIRST, _PARTICLES]))


def without_asking(query: str) -> str:
    """Return a query without phrases of Chinese and Japanese that ask: no spaces set them apart, so
    pairs of their letters would be searched for."""
    return _ASKING.sub(" ", unicodedata.normalize("NFKC", query))


def function_words(words: Collection[str]) -> frozenset[str]:
    """Return the function words of the language that these words of a query are of."""
    german = len(GERMAN.intersection(words))
    is_german = german >= _LEAST_GERMAN and german > len(ENGLISH.intersection(words))
    return GERMAN if is_german else ENGLISH
