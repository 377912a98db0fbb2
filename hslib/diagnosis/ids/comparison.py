"""Stored samples against the dataset's rows at their indices, by ids. Pure.

Digests say which samples agree, and which ones the dataset has elsewhere: that is certain. Only
samples whose ids the dataset has nowhere are read, to say how their rows differ.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hslib.diagnosis.catalogue import (
    CUT,
    DATASET_LIMIT,
    FIRST_TOKEN,
    GONE,
    LAST_TOKEN,
    MOVED,
    OTHER_IDS,
    OTHER_MASK,
    PART,
    REORDERED,
)
from hslib.diagnosis.filing.finding import Finding, merged
from hslib.diagnosis.ids.change import Text, change_of, example_of, found_at
from hslib.diagnosis.rows import DatasetRows

_LEAST_MOVED, _MOVED_SHARE = 3, 0.1  # at one distance; fewer are merely another order
_SHOWN = 3
_LACKING = {CUT: "the end", FIRST_TOKEN: "the first token", LAST_TOKEN: "the last token"}


@dataclass(frozen=True)
class Places:
    """Where the dataset has the stored samples' ids; every sample is in one of these."""

    agreeing: tuple[int, ...]
    moved: dict[int, int]  # sample -> the row that has its ids
    changed: tuple[int, ...]  # the row there has other ids, and no row has the sample's
    gone: tuple[int, ...]  # no row there, and no row has the sample's ids
    num_rows: int

    @property
    def num_samples(self) -> int:
        return len(self.agreeing) + self.num_differing

    @property
    def num_differing(self) -> int:
        return len(self.moved) + len(self.changed) + len(self.gone)


def place(stored: Mapping[int, str], rows: DatasetRows) -> Places:
    """Look each sample up by its digest (xxh3-128 of the ids)."""
    digests = rows.digests()
    first_at: dict[str, int] = {}
    for row, digest in enumerate(digests):
        first_at.setdefault(digest, row)
    agreeing, changed, gone, moved = [], [], [], {}
    for index, digest in sorted(stored.items()):
        has_row = index < len(rows) and rows.lengths[index] > 0
        if has_row and digests[index] == digest:
            agreeing.append(index)
        elif digest in first_at:
            moved[index] = first_at[digest]
        elif has_row:
            changed.append(index)
        else:
            gone.append(index)
    moved = _by_common_distance(moved, stored, digests)
    return Places(tuple(agreeing), moved, tuple(changed), tuple(gone), len(rows))


def _by_common_distance(
    moved: dict[int, int], stored: Mapping[int, str], digests: Sequence[str]
) -> dict[int, int]:
    """Of several rows with the same ids, the one at the distance of most other samples."""
    if not moved:
        return moved
    ((distance, _),) = Counter((row - i) % len(digests) for i, row in moved.items()).most_common(1)
    return {
        i: there if digests[there := (i + distance) % len(digests)] == stored[i] else row
        for i, row in moved.items()
    }


@dataclass(frozen=True)
class IdComparison:
    """What differs, the cause of most samples first; ``findings`` is empty where all agree."""

    places: Places
    findings: tuple[Finding, ...]

    @property
    def headline(self) -> str:
        """The verdict in a sentence."""
        total, differing = self.places.num_samples, self.places.num_differing
        masks = next((f for f in self.findings if f.code == OTHER_MASK), None)
        if not differing and masks:
            return (
                f"The ids of all {total} compared samples agree, but {len(masks.samples)} have "
                f"another mask: {masks.evidence}."
            )
        if not differing:
            return (
                f"All {total} compared samples agree: their stored ids are those of the dataset's "
                "rows; nothing to cure."
            )
        finding = next(f for f in self.findings if f.code != OTHER_MASK)
        first = finding.examples[0] if finding.code == OTHER_IDS else finding.evidence
        return f"{differing} of {total} rows have other ids than were stored: {first}."


def compare_ids(
    places: Places, tokens: Mapping[int, np.ndarray], rows: DatasetRows, text: Text
) -> IdComparison:
    """Name what differs.

    Args:
        tokens: ids int64 [T] of those changed samples that could be read.
        text: an id's text; "" where no tokenizer is known.
    """
    findings = [*_moved(places), *_gone(places)]
    groups: dict[str, list[int]] = {}
    for index in places.changed:
        if index in tokens:
            groups.setdefault(change_of(tokens[index], rows.row(index)), []).append(index)
    if _is_limit(groups.get(CUT, []) + groups.get(LAST_TOKEN, []), tokens, rows):
        groups[DATASET_LIMIT] = sorted(groups.pop(CUT, []) + groups.pop(LAST_TOKEN, []))
    for code, samples in groups.items():
        findings.append(_changed(code, samples, tokens, rows, places.num_samples, text))
    unread = [index for index in places.changed if index not in tokens]
    if unread:
        findings.append(_unread(unread, findings))
    by_size = sorted(merged(findings), key=lambda f: -len(f.samples))
    return IdComparison(places, tuple(by_size))


def _finding(code: str, samples: Sequence[int], evidence: str, examples: Sequence[str]) -> Finding:
    return Finding(code, np.array(samples, np.int64), evidence, examples=tuple(examples))


def _moved(places: Places) -> list[Finding]:
    """A finding per distance that many samples have; the rest is another order."""
    size, left = places.num_rows, dict(places.moved)
    found = []
    while left:
        ((distance, count),) = Counter((r - i) % size for i, r in left.items()).most_common(1)
        if count < max(_LEAST_MOVED, _MOVED_SHARE * len(places.moved)):
            break
        samples = [i for i, row in left.items() if (row - i) % size == distance]
        signed = distance if distance <= size // 2 else distance - size
        whole = "all " if count == places.num_samples else ""
        words = f"stored sample i is dataset row i{signed:+d} ({whole}{count} by their ids)"
        wrapped = [i for i in samples if not 0 <= i + signed < size]
        if wrapped:
            words += f"; at the ends it goes round: sample {wrapped[0]} is row {left[wrapped[0]]}"
        found.append(_finding(MOVED, samples, words, _places_shown(samples, left)))
        left = {i: row for i, row in left.items() if i not in set(samples)}
    if left:
        examples = _places_shown(list(left), left)
        words = f"by their ids, each is another row of the dataset: {'; '.join(examples)}"
        found.append(_finding(REORDERED, list(left), words, examples))
    return found


def _places_shown(samples: Sequence[int], rows: Mapping[int, int]) -> list[str]:
    return [f"stored sample {i} is dataset row {rows[i]}" for i in samples[:_SHOWN]]


def _gone(places: Places) -> list[Finding]:
    if not places.gone:
        return []
    words = [f"the dataset has no ids at row {i}" for i in places.gone[:_SHOWN]]
    evidence = f"{words[0]} (it has {places.num_rows} rows), and no row has the sample's"
    return [_finding(GONE, places.gone, evidence, words)]


def _is_limit(samples: Sequence[int], tokens: Mapping[int, np.ndarray], rows: DatasetRows) -> bool:
    """Whether several rows were cut at one length, which no row of that side exceeds."""
    ends = {len(rows.row(i)) for i in samples}
    return len(samples) > 1 and len(ends) == 1 and ends == {int(rows.lengths.max())} and all(
        len(tokens[i]) > len(rows.row(i)) for i in samples
    )  # fmt: skip


def _changed(
    code: str,
    samples: Sequence[int],
    tokens: Mapping[int, np.ndarray],
    rows: DatasetRows,
    num_samples: int,
    text: Text,
) -> Finding:
    examples = [example_of(i, tokens[i], rows.row(i), text) for i in samples[:_SHOWN]]
    how = _how(code, samples, tokens, rows, num_samples)
    return _finding(code, samples, f"{how}{examples[0]}", examples)


def _how(
    code: str,
    samples: Sequence[int],
    tokens: Mapping[int, np.ndarray],
    rows: DatasetRows,
    num_samples: int,
) -> str:
    """What the samples of a cause have in common, before the example."""
    first = samples[0]
    stored, row = tokens[first], rows.row(first)
    if code == DATASET_LIMIT:
        return (
            f"each of these {len(samples)} rows is the beginning of the stored one, and ends at "
            f"{len(row)} tokens; "
        )
    if code == OTHER_IDS:
        equal = sum(len(tokens[i]) == len(rows.row(i)) for i in samples)
        return f"{equal} of {len(samples)} have equal lengths; "
    if code == PART:
        return f"{_part_words(stored, row)}; "
    if code in _LACKING:
        shorter = sum(len(rows.row(i)) < len(tokens[i]) for i in samples)
        sides = (("dataset", shorter), ("store", len(samples) - shorter))
        lacking = [(name, str(n) if n < num_samples else f"all {n}") for name, n in sides if n]
        words = [f"the {name} lacks {_LACKING[code]} in {count} rows" for name, count in lacking]
        return f"{', '.join(words)}; "
    return ""


def _part_words(stored: np.ndarray, row: np.ndarray) -> str:
    names = ["the stored one", "the dataset's row"]
    longer, shorter = stored, row
    if len(row) > len(stored):
        longer, shorter = row, stored
        names.reverse()
    at = found_at(longer, shorter)
    return f"{names[1]} is tokens {at} to {at + len(shorter) - 1} of {names[0]}"


def _unread(samples: Sequence[int], others: Sequence[Finding]) -> Finding:
    """Samples of which only the digest is known."""
    words = [f"sample {i}: its digest is of other ids" for i in samples[:_SHOWN]]
    why = "not read" if others else "their tokens can't be read: name the store, not its journal"
    return _finding(OTHER_IDS, samples, f"{len(samples)} by their digests alone ({why})", words)
