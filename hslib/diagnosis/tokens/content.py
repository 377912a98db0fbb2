"""Tokenizer causes inside a row.

Each rule is a pure function of a :class:`Difference`; it returns the evidence in words, or None.
"""

import re
import unicodedata
from collections.abc import Callable, Sequence
from itertools import combinations

from hslib.diagnosis.tokens.differences import Difference, Pair, Side, segment_texts, windows
from hslib.diagnosis.tokens.framing import turn_ends

_THINKING = re.compile(
    r"\s*(<think>.*?</think>|<thinking>.*?</thinking>|◁think▷.*?◁/think▷)\s*", re.DOTALL
)
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*"
_DATE = re.compile(
    rf"\d{{4}}-\d\d-\d\d|\d{{1,2}} {_MONTH}\.? \d{{4}}|{_MONTH}\.? \d{{1,2}},? \d{{4}}"
    r"|\d{1,2}[./]\d{1,2}[./]\d{2,4}"
)
_BYTE = re.compile(r"<0x[0-9A-F]{2}>\Z")

Normalise = Callable[[list[str]], list[str]]


def _each(change: Callable[[str], str]) -> Normalise:
    return lambda texts: [change(text) for text in texts]


#: Changes that make two texts equal; tried in this order, alone and together.
_CHANGES: tuple[tuple[str, Normalise, str], ...] = (
    ("newlines", _each(lambda t: t.replace("\r\n", "\n").replace("\r", "\n")), "line ends"),
    ("unicode", _each(lambda t: unicodedata.normalize("NFC", t)), "NFC"),
    ("unicode", _each(lambda t: unicodedata.normalize("NFKC", t)), "NFKC"),
    ("thinking", lambda texts: [_THINKING.sub("", "".join(texts))], "thinking blocks"),
    ("stripped", _each(str.strip), "white space at the edges"),
    ("date", _each(lambda t: _DATE.sub("<date>", t)), "dates"),
)


def text_changes(difference: Difference) -> tuple[str, ...]:
    """Codes of the fewest known changes of text that make both sides equal; () for none."""
    a, b = segment_texts(difference.pair.expected), segment_texts(difference.pair.got)
    if "".join(a) == "".join(b):
        return ()
    for count in (1, 2, 3):
        for chosen in combinations(_CHANGES, count):
            if _equal_after(a, b, [change for _, change, _ in chosen]):
                return tuple(dict.fromkeys(code for code, _, _ in chosen))
    return ()


def _equal_after(a: list[str], b: list[str], changes: Sequence[Normalise]) -> bool:
    for change in changes:
        a, b = change(a), change(b)
    return "".join(a) == "".join(b)


def special_text(difference: Difference) -> str | None:
    """The same text, with special tokens on one side where the other spells them out."""
    a, b = difference.pair.expected, difference.pair.got
    special = difference.pair.special_ids
    counts = [sum(n in special for n in side.ids) for side in (a, b)]
    if counts[0] == counts[1] or a.text.replace(" ", "") != b.text.replace(" ", ""):
        return None
    parsed = a if counts[0] > counts[1] else b
    token = next(n for n in parsed.ids if n in special)
    name = difference.pair.names[parsed is b]
    return f"{name} has {parsed.vocabulary.pieces([token])[0]} as a token, the other as text"


def byte_fallback(difference: Difference) -> str | None:
    """Bytes on one side where the other has an unknown token or a whole character."""
    a, b = difference.pair.expected, difference.pair.got
    found = windows(a.ids, b.ids)
    for window in found:
        left = a.ids[window.a_start : window.a_stop]
        right = b.ids[window.b_start : window.b_stop]
        if not _is_fallback(left, right, difference.pair):
            return None
    if not found:
        return None
    first = found[0]
    return f"{a.split(first.a_start, first.a_stop)} against {b.split(first.b_start, first.b_stop)}"


def _is_fallback(left: Sequence[int], right: Sequence[int], pair: Pair) -> bool:
    """Bytes on one side for the same text, or unknown tokens on one side."""
    if pair.expected.text == pair.got.text:
        sides = ((pair.expected, left), (pair.got, right))
        whole = [_all_bytes(side, part) for side, part in sides]
        return whole[0] != whole[1]
    unknown = {pair.expected.vocabulary.unknown_id, pair.got.vocabulary.unknown_id} - {None}
    found = [bool(part) and set(part) <= unknown for part in (left, right)]
    return found[0] != found[1]


def _all_bytes(side: Side, ids: Sequence[int]) -> bool:
    pieces = side.vocabulary.pieces(ids)
    return bool(pieces) and all(_BYTE.match(piece) for piece in pieces)


def join_merge(difference: Difference) -> str | None:
    """The same text, split differently only where prompt and response join."""
    pair = difference.pair
    if pair.join is None or pair.expected.text != pair.got.text:
        return None
    found = windows(pair.expected.ids, pair.got.ids)
    if not found or len(found) > 2:
        return None
    low, high = found[0].a_start, found[-1].a_stop
    if not low <= pair.join <= high or high - low > 12:
        return None
    others = pair.got.split(found[0].b_start, found[-1].b_stop)
    return f"{pair.expected.split(low, high)} against {others} at the join"


def segmentation(difference: Difference) -> str | None:
    """The same text under the same vocabulary, split at other places."""
    pair = difference.pair
    if pair.expected.text != pair.got.text or not pair.same_vocabulary:
        return None
    first = windows(pair.expected.ids, pair.got.ids)[0]
    others = pair.got.split(first.b_start, first.b_stop)
    return f"{pair.expected.split(first.a_start, first.a_stop)} against {others}"


def template_text(difference: Difference) -> str | None:
    """A whole turn, or text in the first turn, that only one side has."""
    pair = difference.pair
    a, b = pair.expected.ids, pair.got.ids
    if (a and b) or not (a or b):
        return None
    side, name = (pair.expected, pair.names[0]) if a else (pair.got, pair.names[1])
    marks = [n for n in side.ids if n in pair.special_ids]
    closed = side.ids[-1] in turn_ends(pair) or side.ids[0] in turn_ends(pair)
    if not (len(marks) >= 2 and (closed or difference.at_start)):
        return None
    text = side.text
    return f"only {name} has {text[:80]!r}"


#: Tried in this order, before changes of text.
RULES: tuple[tuple[str, Callable[[Difference], str | None]], ...] = (
    ("special_text", special_text),
    ("byte_fallback", byte_fallback),
    ("join_merge", join_merge),
    ("segmentation", segmentation),
    ("template_text", template_text),
)
