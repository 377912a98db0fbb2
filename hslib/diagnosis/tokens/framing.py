"""Tokenizer causes at the ends of a row, and causes that concern the whole row.

Each rule is a pure function of a :class:`Pair`; it returns the evidence in words, or None.
"""

from itertools import pairwise

from hslib.diagnosis.catalogue import FIRST_TOKEN, LAST_TOKEN
from hslib.diagnosis.tokens.differences import Ids, Pair, common_head, windows
from hslib.diagnosis.tokens.tokenizers import Rendering, Vocabulary

_MIN_REPEATS = 3
_HEADER_MAX = 16  # ids of an opened turn: role, separators, an opened thinking block


def special_ids(pair: Pair) -> str | None:
    """Equal counts; only special ids differ, and each is always replaced by the same other."""
    a, b = pair.expected.ids, pair.got.ids
    if len(a) != len(b) or a == b:
        return None
    renamed = {(x, y) for x, y in zip(a, b, strict=True) if x != y}
    one_to_one = len({x for x, _ in renamed}) == len(renamed) == len({y for _, y in renamed})
    special, size = pair.special_ids, pair.expected.vocabulary.size
    is_special = all(n in special or n >= size for both in renamed for n in both)
    if not one_to_one or not is_special:
        return None
    if any(x == y and x in {old for old, _ in renamed} for x, y in zip(a, b, strict=True)):
        return None
    shown = ", ".join(f"{x} is {y}" for x, y in sorted(renamed)[:4])
    return f"equal count; {shown}"


def other_vocabulary(pair: Pair) -> str | None:
    """Two vocabularies number the pieces differently, or ids spell no text in this one."""
    a, b = pair.expected, pair.got
    if not a.ids or not b.ids:
        return None
    beyond = [n for side in (a, b) for n in side.ids if n >= a.vocabulary.size]
    if beyond and a.vocabulary is b.vocabulary:
        side = a if beyond[0] in a.ids else b
        return (
            f"id {beyond[0]} at position {side.ids.index(beyond[0])} is outside the tokenizer's "
            f"vocabulary of {a.vocabulary.size}"
        )
    if a.vocabulary is not b.vocabulary:
        if pair.same_vocabulary:
            return None
        return "most ids mean another piece in the other vocabulary"
    renumbered = _renumbered(a.ids, b.ids)
    if renumbered:
        return renumbered
    if a.text == b.text:
        return None
    strange = [_strangeness(side.ids, side.vocabulary) for side in (a, b)]
    little_in_common = _agreeing_share(a.ids, b.ids) < 0.2
    if min(strange) > 0.1 or max(strange) < (0.05 if little_in_common else 0.3):
        return None
    name = pair.names[strange[1] > strange[0]]
    return (
        f"the {name} ids are not of this vocabulary: decoded and tokenized again, "
        f"{max(strange):.0%} of them differ"
    )


def _renumbered(a: Ids, b: Ids) -> str | None:
    """Equal counts; at least half of the ids differ, each always replaced by the same other."""
    if len(a) != len(b):
        return None
    renamed = {(x, y) for x, y in zip(a, b, strict=True) if x != y}
    differing = sum(x != y for x, y in zip(a, b, strict=True))
    one_to_one = len({x for x, _ in renamed}) == len(renamed) == len({y for _, y in renamed})
    repeated = differing - len(renamed)  # each a chance to contradict
    if not one_to_one or differing < 0.5 * len(a) or repeated < _MIN_REPEATS:
        return None
    x, y = min(renamed)
    return f"equal count, each id always replaced by the same other ({x} by {y})"


def _agreeing_share(a: Ids, b: Ids) -> float:
    differing = sum(w.a_stop - w.a_start for w in windows(a, b))
    return 1 - differing / len(a)


def _strangeness(ids: Ids, vocabulary: Vocabulary) -> float:
    """Share of ids that differ after decoding and encoding again; small for real text."""
    special = vocabulary.special_ids
    plain = [number for number in ids if number not in special][:512]
    if len(plain) < 8:
        return 0.0
    again = vocabulary.encode(vocabulary.decode(plain), Rendering())
    touched = sum(w.a_stop - w.a_start for w in windows(plain, again))
    return touched / len(plain)


def leading_bos(pair: Pair) -> tuple[str | None, Pair]:
    """Unequal numbers of BOS at the start; also returns the pair without any BOS."""
    bos = pair.expected.vocabulary.bos_ids | pair.got.vocabulary.bos_ids
    counts = []
    for ids in (pair.expected.ids, pair.got.ids):
        count = 0
        while count < len(ids) and ids[count] in bos:
            count += 1
        counts.append(count)
    rest = pair.cut(slice(counts[0], None), slice(counts[1], None))
    if counts[0] == counts[1]:
        return None, rest
    return f"{pair.names[0]} begins with {counts[0]} BOS, {pair.names[1]} with {counts[1]}", rest


def opened_turn(pair: Pair) -> tuple[str | None, Pair]:
    """A generation prompt at the end of one side; also returns the pair without it."""
    a, b = pair.expected.ids, pair.got.ids
    tails = {name: _opened_tail(ids, pair) for name, ids in (("expected", a), ("got", b))}
    if tails["expected"] == tails["got"] or (tails["expected"] and tails["got"]):
        return None, pair
    name = "expected" if tails["expected"] else "got"
    tail = tails[name]
    own, other = (a, b) if name == "expected" else (b, a)
    shorter = own[: -len(tail)]
    goes_on = len(other) > len(own) and other[: len(own)] == own  # own was cut in a turn's head
    if goes_on or not _ends_alike(shorter, other, pair):
        return None, pair
    side = pair.expected if name == "expected" else pair.got
    text = f"{pair.names[name == 'got']} ends with an opened turn: {side.vocabulary.decode(tail)!r}"
    cut = slice(0, len(shorter))
    whole = slice(0, None)
    return text, pair.cut(*((cut, whole) if name == "expected" else (whole, cut)))


def _opened_tail(ids: Ids, pair: Pair) -> Ids:
    """Ids after the last end of a turn, if they are only the head of another turn."""
    special, closers = pair.special_ids, turn_ends(pair)
    for start in range(len(ids) - 1, max(-1, len(ids) - _HEADER_MAX - 1), -1):
        if ids[start] in closers:
            tail = ids[start + 1 :]
            while tail and tail[0] not in special:
                tail = tail[1:]  # a line break that belongs to the end of the turn
            return tail if tail and not any(n in closers for n in tail) else ()
    return ()


def turn_ends(pair: Pair) -> frozenset[int]:
    """Ids that close a turn.

    EOS, and each special id that stands directly before a turn's head, or directly before the
    special id that ends the row.
    """
    special = pair.special_ids
    bos = pair.expected.vocabulary.bos_ids | pair.got.vocabulary.bos_ids
    found = set(pair.expected.vocabulary.eos_ids | pair.got.vocabulary.eos_ids)
    heads = _turn_heads(pair.expected.ids, special, bos) | _turn_heads(pair.got.ids, special, bos)
    last = {ids[-1] for ids in (pair.expected.ids, pair.got.ids) if ids}
    for ids in (pair.expected.ids, pair.got.ids):
        for x, y in pairwise(ids):
            if x in special and (y in heads or (y in special and x in last)):
                found.add(x)
    return frozenset(found - bos - heads)


def _turn_heads(ids: Ids, special: frozenset[int], bos: frozenset[int]) -> set[int]:
    """The special id that opens the row; it opens turns as well."""
    plain = [number for number in ids[:3] if number not in bos]
    return {plain[0]} if plain and plain[0] in special else set()


def _ends_alike(a: Ids, b: Ids, pair: Pair) -> bool:
    """Whether the last ids agree; ends of turns are ignored."""
    ends = turn_ends(pair)
    last = []
    for ids in (a, b):
        kept = [n for n in ids[-4:] if n not in ends]
        last.append(kept[-1] if kept else None)
    return last[0] == last[1]


def trailing_eos(pair: Pair) -> tuple[str | None, Pair]:
    """Unequal numbers of EOS at the end; also returns the pair without any EOS."""
    eos = pair.expected.vocabulary.eos_ids | pair.got.vocabulary.eos_ids
    counts = []
    for ids in (pair.expected.ids, pair.got.ids):
        count = 0
        while count < len(ids) and ids[-1 - count] in eos:
            count += 1
        counts.append(count)
    if counts[0] == counts[1]:
        return None, pair
    lengths = (len(pair.expected.ids), len(pair.got.ids))
    rest = pair.cut(*(slice(0, n - c) for n, c in zip(lengths, counts, strict=True)))
    short, long = sorted((rest.expected.ids, rest.got.ids), key=len)
    if len(short) < len(long) and long[: len(short)] == short:
        return None, pair  # more than EOS is missing: it was cut
    if common_head(rest.expected.ids[::-1], rest.got.ids[::-1]) == 0:
        return None, pair  # one of the two ends elsewhere: it was cut
    return f"{pair.names[0]} ends with {counts[0]} EOS, {pair.names[1]} with {counts[1]}", rest


def template_twice(pair: Pair) -> str | None:
    """One side is the whole other, wrapped into one more turn."""
    for inner, outer, name in (
        (pair.expected, pair.got, pair.names[1]),
        (pair.got, pair.expected, pair.names[0]),
    ):
        if len(inner.ids) < 4 or len(outer.ids) <= len(inner.ids):
            continue
        special, bos = pair.special_ids, inner.vocabulary.bos_ids
        body = tuple(n for n in inner.ids if n not in bos)
        start = _find(outer.ids, body)
        header = [n for n in outer.ids[: max(0, start)] if n not in bos]
        if start <= 0 or not header or len(header) > _HEADER_MAX:
            continue
        marks = [n for n in header if n in special]
        ends = turn_ends(Pair(inner, inner))  # in the outer row, the wrapped head looks like an end
        opened = marks and not set(marks) & ends and set(marks) <= set(body)
        if opened and body[0] in special:
            text = outer.vocabulary.decode(outer.ids[: start + 4])
            return f"{name} opens a turn around the whole other: {text!r}"
    return None


def _find(ids: Ids, part: Ids) -> int:
    last = len(ids) - len(part)
    return next((at for at in range(last + 1) if ids[at : at + len(part)] == part), -1)


def truncated(pair: Pair) -> str | None:
    """One side is the beginning, or the end, of the other."""
    a, b = pair.expected.ids, pair.got.ids
    shorter, longer = sorted((a, b), key=len)
    missing = len(longer) - len(shorter)
    if missing == 0 or not shorter:
        return None
    name = pair.names[len(b) < len(a)]
    if longer[: len(shorter)] == shorter:
        return f"{name} stops after {len(shorter)} tokens, {missing} are missing"
    if longer[missing:] == shorter and shorter[0] not in pair.special_ids:
        return f"{name} lacks the first {missing} tokens"
    return None


def one_token(pair: Pair) -> tuple[str, str] | None:
    """(code, evidence): only the first, or only the last, token is missing on one side."""
    a, b = pair.expected.ids, pair.got.ids
    shorter, longer = sorted((a, b), key=len)
    if len(longer) - len(shorter) != 1 or not shorter:
        return None
    short, long = (pair.expected, pair.got) if len(a) < len(b) else (pair.got, pair.expected)
    name = pair.names[short is pair.got]
    for code, which, rest, token in (
        (FIRST_TOKEN, "first", longer[1:], longer[:1]),
        (LAST_TOKEN, "last", longer[:-1], longer[-1:]),
    ):
        if rest == shorter:
            return code, f"{name} lacks the {which} token, {token[0]} ({long.shown(token)})"
    return None
