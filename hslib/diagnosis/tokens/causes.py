"""Why two tokenisations of one row differ: every cause, "unknown" for what none explains."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from hslib.diagnosis.catalogue import OTHER_IDS, UNKNOWN_CAUSE
from hslib.diagnosis.tokens import framing
from hslib.diagnosis.tokens.content import RULES, text_changes
from hslib.diagnosis.tokens.differences import Difference, Ids, Pair, differences

_FEW, _RUN = 0.25, 3  # of a row's ids, and ids in a row; more is another text
_NOT_IN_PLACE = ("template_text", UNKNOWN_CAUSE)
_SHOWN = 24  # tokens of a part that differs


@dataclass(frozen=True)
class Reason:
    """A cause's code and its evidence in one row."""

    code: str
    evidence: str


@dataclass(frozen=True)
class Comparison:
    """One row's two tokenisations and why they differ; no reasons when the ids are equal."""

    index: int
    pair: Pair
    reasons: tuple[Reason, ...]
    line: int = 0  # of the row in its file, from 1; 0 where there are no lines

    @property
    def codes(self) -> tuple[str, ...]:
        return tuple(reason.code for reason in self.reasons)

    @property
    def agrees(self) -> bool:
        return not self.reasons


def compare(
    index: int, pair: Pair, other_rows: Mapping[Ids, int] | None = None, line: int = 0
) -> Comparison:
    """Find every cause of a difference.

    Args:
        other_rows: ids -> row number of the dataset; finds rows in another order.
    """
    return Comparison(index, pair, explain(index, pair, other_rows or {}), line)


def explain(index: int, pair: Pair, other_rows: Mapping[Ids, int]) -> tuple[Reason, ...]:
    """The reasons in the order in which they were found. Pure."""
    if pair.expected.ids == pair.got.ids:
        return ()
    whole = _whole_row(index, pair, other_rows)
    if whole is not None:
        return (whole,)
    if _is_in_place(pair):
        return _in_place(pair)
    reasons = []
    bos, rest = framing.leading_bos(pair)
    if bos:
        reasons.append(Reason("bos", bos))
    twice = framing.template_twice(rest)
    if twice:
        return (*reasons, Reason("template_twice", twice))
    prompt, rest = framing.opened_turn(rest)
    if prompt:
        reasons.append(Reason("generation_prompt", prompt))
    end, rest = framing.trailing_eos(rest)
    if end:
        reasons.append(Reason("eos", end))
    one = framing.one_token(rest)
    if one and not reasons and not _is_text_change(rest):
        return (Reason(*one),)
    cut = framing.truncated(rest)
    if cut and not _is_text_change(rest):
        return (*reasons, Reason("truncated", cut))
    for difference in differences(rest):
        reasons += _reasons(difference)
    return _each_once(reasons)


def _each_once(reasons: Sequence[Reason]) -> tuple[Reason, ...]:
    first = {reason.code: reason for reason in reversed(reasons)}
    return tuple(first[code] for code in dict.fromkeys(reason.code for reason in reasons))


def _is_in_place(pair: Pair) -> bool:
    """Equal lengths and few other ids, here and there: nothing was added, taken away or cut."""
    a, b = pair.expected.ids, pair.got.ids
    if len(a) != len(b) or _num_other(pair) > _FEW * len(a):
        return False
    runs = groupby(x == y for x, y in zip(a, b, strict=True))
    return max(sum(1 for _ in run) for equal, run in runs if not equal) <= _RUN


def _num_other(pair: Pair) -> int:
    return sum(x != y for x, y in zip(pair.expected.ids, pair.got.ids, strict=True))


def _in_place(pair: Pair) -> tuple[Reason, ...]:
    """Rules for text that is split or written in another way; else the ids are simply others."""
    found = [reason for difference in differences(pair) for reason in _reasons(difference)]
    known = [reason for reason in found if reason.code not in _NOT_IN_PLACE]
    if len(known) < len(found):
        words = f"{_num_other(pair)} of {len(pair.got.ids)} ids differ, the lengths are equal"
        known.append(Reason(OTHER_IDS, words))
    return _each_once(known)


def _whole_row(index: int, pair: Pair, other_rows: Mapping[Ids, int]) -> Reason | None:
    row = other_rows.get(pair.got.ids, index)
    if row != index and other_rows.get(pair.expected.ids, index) != row:
        return Reason("row_order", f"the ids that came are exactly those of row {row}")
    renamed = framing.special_ids(pair)
    if renamed:
        return Reason("special_ids", renamed)
    foreign = framing.other_vocabulary(pair)
    if foreign and not (_is_in_place(pair) and pair.is_in_vocabulary):
        return Reason("other_vocabulary", foreign)
    return None


def _is_text_change(pair: Pair) -> bool:
    """Whether only known changes of text differ: a missing thinking block at the end is no cut."""
    found = list(differences(pair))
    return bool(found) and all(text_changes(difference) for difference in found)


def _reasons(difference: Difference) -> list[Reason]:
    for code, rule in RULES:
        evidence = rule(difference)
        if evidence is not None:
            return [Reason(code, evidence)]
    codes = text_changes(difference) or (UNKNOWN_CAUSE,)
    a, b = (
        side.shown(side.ids[:_SHOWN]) for side in (difference.pair.expected, difference.pair.got)
    )
    return [Reason(code, f"{a} against {b}") for code in codes]
