"""Why two tokenisations of one row differ: every cause, "unknown" for what none explains."""

from collections.abc import Mapping
from dataclasses import dataclass

from hslib.diagnosis.catalogue import UNKNOWN_CAUSE
from hslib.diagnosis.tokens import framing
from hslib.diagnosis.tokens.content import RULES, text_changes
from hslib.diagnosis.tokens.differences import Difference, Ids, Pair, differences

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
    cut = framing.truncated(rest)
    if cut and not _is_text_change(rest):
        return (*reasons, Reason("truncated", cut))
    for difference in differences(rest):
        reasons += _reasons(difference)
    first = {reason.code: reason for reason in reversed(reasons)}
    return tuple(first[code] for code in dict.fromkeys(reason.code for reason in reasons))


def _whole_row(index: int, pair: Pair, other_rows: Mapping[Ids, int]) -> Reason | None:
    row = other_rows.get(pair.got.ids, index)
    if row != index and other_rows.get(pair.expected.ids, index) != row:
        return Reason("row_order", f"the ids that came are exactly those of row {row}")
    renamed = framing.special_ids(pair)
    if renamed:
        return Reason("special_ids", renamed)
    foreign = framing.other_vocabulary(pair)
    if foreign:
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
