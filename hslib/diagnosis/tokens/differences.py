"""Where two tokenisations of one row differ: ids are compared, not counts.

Special tokens cut a row into segments. Neighbouring segments that differ are one
:class:`Difference`; causes are searched for each of them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import accumulate

from hslib.diagnosis.tokens.tokenizers import Vocabulary, readable

Ids = tuple[int, ...]
_MAX_EXACT = 4000  # ids; a longer middle that differs is one window


@dataclass(frozen=True)
class Side:
    """One tokenisation, and the vocabulary in which its ids are read."""

    ids: Ids
    vocabulary: Vocabulary

    @property
    def text(self) -> str:
        return self.vocabulary.decode(self.ids)

    def shown(self, ids: Sequence[int]) -> str:
        """The text of some ids, quoted; "nothing" for none."""
        return (
            repr("".join(text for _, text in readable(self.vocabulary, ids))) if ids else "nothing"
        )

    def split(self, start: int, stop: int) -> str:
        """How the ids split the text: each part with its ids."""
        parts = readable(self.vocabulary, self.ids[start:stop])
        return " ".join(f"{text!r} {list(ids)}" for ids, text in parts) or "nothing"


@dataclass(frozen=True)
class Pair:
    """What was expected (stored ids, say) and what came (a server's, say).

    ``join``: how many of the expected ids belong to the prompt; None = not known. ``names``: what
    the two are called in evidence.
    """

    expected: Side
    got: Side
    join: int | None = None
    names: tuple[str, str] = ("expected", "got")

    @property
    def special_ids(self) -> frozenset[int]:
        return self.expected.vocabulary.special_ids | self.got.vocabulary.special_ids

    @property
    def is_in_vocabulary(self) -> bool:
        """Whether one vocabulary has all ids of both."""
        size = min(self.expected.vocabulary.size, self.got.vocabulary.size)
        return max(self.expected.ids + self.got.ids, default=0) < size

    @property
    def same_vocabulary(self) -> bool:
        """Whether the ids of this pair mean the same pieces on both sides, 90 % of them."""
        ids = sorted(set(self.expected.ids) | set(self.got.ids))
        a, b = self.expected.vocabulary, self.got.vocabulary
        if a is b:
            return True
        if max(ids, default=0) >= min(a.size, b.size):
            return False
        same = sum(x == y for x, y in zip(a.pieces(ids), b.pieces(ids), strict=True))
        return same >= 0.9 * len(ids)

    def cut(self, expected: slice, got: slice) -> "Pair":
        """A part of both sides."""
        start = expected.start or 0
        join = None if self.join is None else max(0, self.join - start)
        return Pair(
            replace(self.expected, ids=self.expected.ids[expected]),
            replace(self.got, ids=self.got.ids[got]),
            join,
            self.names,
        )


@dataclass(frozen=True)
class Window:
    """``expected[a_start:a_stop]`` stands where ``got[b_start:b_stop]`` does."""

    a_start: int
    a_stop: int
    b_start: int
    b_stop: int


@dataclass(frozen=True)
class Difference:
    """Segments that differ, between segments that agree."""

    pair: Pair  # the differing ids alone
    at_start: bool  # of the row, on both sides


def windows(a: Sequence[int], b: Sequence[int]) -> list[Window]:
    """Where two id sequences differ, as narrow as possible."""
    head = common_head(a, b)
    tail = common_head(a[head:][::-1], b[head:][::-1])
    a_stop, b_stop = len(a) - tail, len(b) - tail
    if head == a_stop and head == b_stop:
        return []
    if max(a_stop, b_stop) - head > _MAX_EXACT:
        return [Window(head, a_stop, head, b_stop)]
    matcher = SequenceMatcher(None, a[head:a_stop], b[head:b_stop], autojunk=False)
    return [
        Window(head + i, head + j, head + k, head + m)
        for tag, i, j, k, m in matcher.get_opcodes()
        if tag != "equal"
    ]


def common_head(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading ids agree."""
    count = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        count += 1
    return count


def segments(ids: Sequence[int], special: frozenset[int]) -> list[Ids]:
    """Single special ids, and the runs between them."""
    found: list[Ids] = []
    run: list[int] = []
    for number in ids:
        if number not in special:
            run.append(number)
            continue
        if run:
            found.append(tuple(run))
            run = []
        found.append((number,))
    return [*found, tuple(run)] if run else found


def differences(pair: Pair) -> Iterator[Difference]:
    """Groups of differing segments; groups of equal size are taken apart, segment by segment."""
    special = pair.special_ids
    a, b = segments(pair.expected.ids, special), segments(pair.got.ids, special)
    a_at, b_at = ([0, *accumulate(map(len, parts))] for parts in (a, b))
    matcher = SequenceMatcher(None, a, b, autojunk=False)
    for tag, i, j, k, m in matcher.get_opcodes():
        if tag == "equal":
            continue
        paired = j - i == m - k and all(
            (x[0] in special) == (y[0] in special) for x, y in zip(a[i:j], b[k:m], strict=True)
        )
        steps = range(j - i) if paired else [None]
        for step in steps:
            x = slice(i, j) if step is None else slice(i + step, i + step + 1)
            y = slice(k, m) if step is None else slice(k + step, k + step + 1)
            if a[x] == b[y]:
                continue
            part = pair.cut(slice(a_at[x.start], a_at[x.stop]), slice(b_at[y.start], b_at[y.stop]))
            yield Difference(part, at_start=x.start == 0 and y.start == 0)


def segment_texts(side: Side) -> list[str]:
    """Each segment's text: shows white space that touches a special token."""
    return [
        side.vocabulary.decode(part) for part in segments(side.ids, side.vocabulary.special_ids)
    ]


def first_difference(pair: Pair, around: int = 4) -> str:
    """Where the ids differ first: position, the ids there, and the text around them."""
    a, b = pair.expected, pair.got
    at = common_head(a.ids, b.ids)
    if at == len(a.ids) == len(b.ids):
        return "the ids are equal"
    first = windows(a.ids, b.ids)[0]
    before = "".join(text for _, text in readable(a.vocabulary, a.ids[max(0, at - around) : at]))
    sides = ((a, first.a_start, first.a_stop), (b, first.b_start, first.b_stop))
    words = [_quoted(side, start, min(stop, start + around)) for side, start, stop in sides]
    return (
        f"at position {at}, after {before!r}: {pair.names[0]} {words[0]}, "
        f"{pair.names[1]} {words[1]}"
    )


def _quoted(side: Side, start: int, stop: int) -> str:
    part = side.ids[start:stop]
    return f"ids {list(part)}, {side.shown(part)}" if part else "nothing"
