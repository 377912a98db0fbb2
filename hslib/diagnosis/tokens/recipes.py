"""Makes a row's ids again in every way that the tokenizer knows, and compares them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from hslib.diagnosis.catalogue import CATALOGUE, OTHER_IDS, UNKNOWN_CAUSE
from hslib.diagnosis.filing.finding import ranges
from hslib.diagnosis.rows import LeftOut, TextRow, row_name
from hslib.diagnosis.tokens.causes import Comparison, compare
from hslib.diagnosis.tokens.differences import Ids, Pair, Side, first_difference, windows
from hslib.diagnosis.tokens.tokenizers import RenderError, Rendering, Vocabulary

DATASET = "dataset"
_CURES = {  # of causes whose catalogued cure is for stored samples
    UNKNOWN_CAUSE: "read both texts: one of them may have been changed after the ids were made",
    OTHER_IDS: "find out what changed the ids after they were made, and make them again; states "
    "are right only for the ids that were sent",
}


@dataclass(frozen=True, eq=False)
class Source:
    """Where ids come from: the dataset's rows (``recipe`` None), or made by a vocabulary."""

    name: str
    vocabulary: Vocabulary
    recipe: Rendering | None

    @property
    def side(self) -> str:
        """What evidence calls it."""
        return DATASET if self.recipe is None else self.vocabulary.name

    @property
    def words(self) -> str:
        """Completes "the ids are those ..."."""
        if self.recipe is None:
            return "of the dataset"
        maker = "by" if self.vocabulary.name == "server" else "here with"
        is_plain = self.recipe == Rendering()
        what = "plain: template or text, and nothing else" if is_plain else self.recipe.name
        return f"made {maker} the {self.vocabulary.name} ({what})"

    def ids(self, row: TextRow) -> Ids:
        if self.recipe is None:
            return row.ids
        chat = row.conversation
        if chat is not None:
            recipe = replace(self.recipe, template={**chat.template, **self.recipe.template})
            return tuple(self.vocabulary.encode_chat(chat.messages, recipe, chat.tools))
        return tuple(self.vocabulary.encode(row.text, self.recipe))


@dataclass(frozen=True, eq=False)
class Compared:
    """Two sources over the same rows; ``left_out``: those that one of them could not make."""

    expected: Source
    got: Source
    comparisons: tuple[Comparison, ...]
    left_out: tuple[LeftOut, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.expected.name} / {self.got.name}"

    @cached_property
    def differing(self) -> tuple[Comparison, ...]:
        return tuple(c for c in self.comparisons if not c.agrees)

    @property
    def equal_counts(self) -> int:
        """Rows with other ids but equal counts, which a check of counts passes."""
        return sum(len(c.pair.expected.ids) == len(c.pair.got.ids) for c in self.differing)

    @cached_property
    def by_cause(self) -> dict[str, list[Comparison]]:
        """Code -> rows, most frequent first; a row with several causes counts for each."""
        found: dict[str, list[Comparison]] = {}
        for comparison in self.differing:
            for code in comparison.codes:
                found.setdefault(code, []).append(comparison)
        return dict(sorted(found.items(), key=lambda item: -len(item[1])))

    def worst(self, code: str = "") -> Comparison | None:
        """The row with the most ids that differ, of those with this cause; None when all agree."""
        rows = self.by_cause.get(code, []) if code else self.differing
        return max(rows, key=lambda c: (_distance(c), -c.index), default=None)


def _distance(comparison: Comparison) -> int:
    a, b = comparison.pair.expected.ids, comparison.pair.got.ids
    return sum(max(w.a_stop - w.a_start, w.b_stop - w.b_start) for w in windows(a, b))


def recipes_for(vocabulary: Vocabulary, rows: Sequence[TextRow]) -> list[Rendering]:
    """Plain, with special tokens, with a generation prompt, and with the template's variables."""
    found = [Rendering(), Rendering(add_special_tokens=True)]
    if not any(row.conversation for row in rows):
        return found
    found.append(Rendering(add_generation_prompt=True))
    template = str(vocabulary.tokenizer.chat_template or "")
    for variable, value in (("enable_thinking", False), ("thinking", True)):
        if f" {variable}" in template:
            found.append(Rendering(template={variable: value}))
    if "date_string" in template:
        found.append(Rendering(template={"date_string": "01 Jan 2026"}))
    return found


def sources(
    rows: Sequence[TextRow], vocabularies: Iterable[Vocabulary], reader: Vocabulary
) -> list[Source]:
    """The dataset's ids first, then every vocabulary with each recipe.

    Args:
        reader: the vocabulary in which the dataset's ids are read.
    """
    made = [
        Source(f"{vocabulary.name} {recipe.name}", vocabulary, recipe)
        for vocabulary in vocabularies
        for recipe in recipes_for(vocabulary, rows)
    ]
    return [Source(DATASET, reader, None), *made]


def compare_all(
    rows: Sequence[TextRow], found: Sequence[Source], left_out: Sequence[LeftOut] = ()
) -> list[Compared]:
    """Compare the dataset's ids with every other source, plain ones with the first plain one.

    A recipe that the template or the server refuses for all rows is left out; a row that the
    plain recipe can't render is named.
    """
    own, *made = found
    plain = [source for source in made if source.recipe == Rendering()]
    pairs = [(own, source) for source in made]
    pairs += [(plain[0], source) for source in plain[1:]]
    known = {row.ids: row.index for row in rows}
    compared = [_compare(rows, expected, got, known, left_out) for expected, got in pairs]
    return [pair for pair in compared if pair.comparisons or pair.got.recipe == Rendering()]


def _compare(
    rows: Sequence[TextRow],
    expected: Source,
    got: Source,
    known: dict[Ids, int],
    left_out: Sequence[LeftOut],
) -> Compared:
    comparisons, refused = [], list(left_out)
    for row in rows:
        try:
            sides = (Side(expected.ids(row), expected.vocabulary),
                     Side(got.ids(row), got.vocabulary))  # fmt: skip
        except RenderError as error:
            refused.append(
                LeftOut(row.index, row.line, error.fields["reason"], error.message, error.fix)
            )
            continue
        pair = Pair(*sides, join=row.prompt_tokens, names=(expected.side, got.side))
        comparisons.append(compare(row.index, pair, known, row.line))
    return Compared(expected, got, tuple(comparisons), tuple(refused))


def reference(compared: Sequence[Compared]) -> Compared | None:
    """The comparison of the dataset's ids with the server's plain ones, or else the tokenizer's."""
    mine = [c for c in compared if c.expected.name == DATASET and c.got.recipe == Rendering()]
    return next((c for c in mine if c.got.vocabulary.name == "server"), mine[0] if mine else None)


def token_sentences(compared: Sequence[Compared]) -> list[str]:
    """The verdict on tokens in words."""
    main = reference(compared)
    if main is None:
        return ["TOKENS NOT MADE AGAIN: no row holds input_ids beside messages or text."]
    total = len(main.comparisons)
    left_out = _left_out_words(main.left_out)
    if not total:
        return ["TOKENIZATION NOT COMPARED: no row could be rendered.", *left_out]
    if not main.differing:
        words = f"TOKENS AGREE: the dataset's ids of all {total} rows are those {main.got.words}."
        return [words, *left_out]
    lines = [
        f"TOKENS DIFFER in {len(main.differing)} of {total} rows: the dataset's ids are not those "
        f"{main.got.words}."
    ]
    if main.equal_counts:
        lines[0] += f" In {main.equal_counts} of them the counts agree: counts prove nothing."
    exact = [c for c in compared if c.expected.name == DATASET and c.comparisons]
    exact = [c for c in exact if not c.differing and len(c.comparisons) >= total]
    if exact:
        lines.append(f"The dataset's ids of all rows are those {exact[0].got.words}.")
    return [*lines, *(_cause_words(code, rows) for code, rows in main.by_cause.items()), *left_out]


def _cause_words(code: str, rows: Sequence[Comparison]) -> str:
    """With the clearest example: a row of few causes."""
    cause = CATALOGUE[code]
    cure = _CURES.get(code, cause.cure)
    shown = min(rows, key=lambda row: len(row.codes))
    evidence = next(reason.evidence for reason in shown.reasons if reason.code == code)
    where = first_difference(shown.pair)
    evidence = f"{evidence}; {where}" if evidence else where
    return (
        f"{code}: {len(rows)} row{'s' * (len(rows) != 1)}: {cause.title}.\n"
        f"  Evidence: {row_name(shown.index, shown.line)}: {evidence}.\n  Cure: {cure}."
    )


def _left_out_words(rows: Sequence[LeftOut]) -> list[str]:
    """A paragraph for each reason, with its rows and one example."""
    found: dict[str, list[LeftOut]] = {}
    for row in rows:
        found.setdefault(row.reason, []).append(row)
    return [
        f"NOT COMPARED, {reason}: {len(group)} row{'s' * (len(group) != 1)} "
        f"({ranges([row.index for row in group])}).\n"
        f"  Evidence: {row_name(group[0].index, group[0].line)}: {group[0].detail}.\n"
        f"  Cure: {group[0].fix}."
        for reason, group in found.items()
    ]
