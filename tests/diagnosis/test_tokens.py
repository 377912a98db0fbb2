"""Two tokenisations of one row: nineteen causes told apart on real tokenizers, by ids."""

import random
from collections import Counter
from collections.abc import Callable

import pytest
from make.tokenizations import (
    CAUSES,
    PLAIN,
    byte_level,
    cases,
    conversation,
    mistral,
    pair_of,
    sentence,
    tiktoken_like,
    unigram,
)

from hslib.diagnosis.tokens import content, framing
from hslib.diagnosis.tokens.causes import compare
from hslib.diagnosis.tokens.differences import (
    Difference,
    Pair,
    Side,
    differences,
    first_difference,
    segments,
    windows,
)
from hslib.diagnosis.tokens.tokenizers import Rendering, Vocabulary, readable

CASES = 24
VOCABULARIES = [byte_level, unigram, tiktoken_like]


def codes_of(code: str, seed: int = 0) -> list[tuple[str, ...]]:
    return [compare(0, pair, rows).codes for pair, rows in cases(code, CASES, seed)]


def test_nineteen_causes_are_told_apart() -> None:
    table = {code: Counter(codes_of(code)) for code in CAUSES}
    right = sum(row[(code,)] for code, row in table.items())
    assert len(CAUSES) == 19
    assert right >= 0.95 * CASES * len(CAUSES), table
    assert all(row[(code,)] >= 0.85 * CASES for code, row in table.items()), table
    assert set(table["unknown"]) == {("unknown",)}, "what fits none is unknown, not a guess"


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("code", sorted(set(CAUSES) - {"unknown"}))
def test_equal_ids_have_no_cause(code: str, vocabulary: Callable[[], Vocabulary]) -> None:
    pair = CAUSES[code](random.Random(1), vocabulary())
    same = Pair(pair.expected, pair.expected, pair.join)
    assert compare(0, same).agrees


# Each rule alone: the case that it is for, and one that is near ---------------------------------


def whole(a: list[int], b: list[int], v: Vocabulary, join: int | None = None) -> Pair:
    return pair_of(v, a, b, join)


def difference(pair: Pair) -> Difference:
    return Difference(pair, at_start=True)


@pytest.fixture(params=VOCABULARIES, ids=lambda make: make.__name__)
def vocabulary(request: pytest.FixtureRequest) -> Vocabulary:
    return request.param()


@pytest.fixture
def ids(vocabulary: Vocabulary) -> list[int]:
    return vocabulary.encode_chat(conversation(random.Random(4)), PLAIN)


def test_a_second_bos(vocabulary: Vocabulary, ids: list[int]) -> None:
    bos = sorted(vocabulary.bos_ids)
    twice, rest = framing.leading_bos(whole(ids, bos + ids, vocabulary))
    assert twice == "expected begins with 1 BOS, got with 2"
    assert rest.expected.ids == rest.got.ids
    assert framing.leading_bos(whole(ids, ids + bos, vocabulary))[0] is None


def test_a_missing_eos(vocabulary: Vocabulary, ids: list[int]) -> None:
    eos = sorted(vocabulary.eos_ids)
    assert framing.trailing_eos(whole(ids + eos, ids, vocabulary))[0] is not None
    cut = framing.trailing_eos(whole(ids + eos, ids[:-5], vocabulary))[0]
    assert cut is None, "a row that was cut lacks more than its EOS"
    cut = framing.trailing_eos(whole([*ids, ids[5], *eos], ids[:6], vocabulary))[0]
    assert cut is None, "though both ends have a token in common"


def test_a_generation_prompt(vocabulary: Vocabulary, ids: list[int]) -> None:
    prompt = vocabulary.encode("<|assistant|>assistant<|mid|>", PLAIN)
    text, rest = framing.opened_turn(whole(ids, ids + prompt, vocabulary))
    assert text == "got ends with an opened turn: '<|assistant|>assistant<|mid|>'"
    assert rest.expected.ids == rest.got.ids
    closed = prompt + vocabulary.encode("Yes.<|end|>", PLAIN)
    assert framing.opened_turn(whole(ids, ids + closed, vocabulary))[0] is None


def test_a_template_twice(vocabulary: Vocabulary, ids: list[int]) -> None:
    head, tail = (vocabulary.encode(t, PLAIN) for t in ("<|user|>user<|mid|>", "<|end|>"))
    assert framing.template_twice(whole(ids, head + ids[1:] + tail, vocabulary))
    system = vocabulary.encode("<|system|>system<|mid|>the river<|end|>", PLAIN)
    inserted = ids[:1] + system + ids[1:]
    assert framing.template_twice(whole(ids, inserted, vocabulary)) is None


def test_a_cut_row(vocabulary: Vocabulary, ids: list[int]) -> None:
    assert framing.truncated(whole(ids, ids[:9], vocabulary)) == (
        f"got stops after 9 tokens, {len(ids) - 9} are missing"
    )
    assert framing.truncated(whole(ids[6:], ids, vocabulary)) is not None
    assert framing.truncated(whole(ids, [*ids[:8], ids[3]], vocabulary)) is None


def test_one_missing_token_is_no_cut(vocabulary: Vocabulary, ids: list[int]) -> None:
    first, last = (vocabulary.decode(ids[at : at + 1 or None]) for at in (0, -1))
    assert framing.one_token(whole(ids, ids[1:], vocabulary)) == (
        "first_token",
        f"got lacks the first token, {ids[0]} ({first!r})",
    )
    assert framing.one_token(whole(ids[:-1], ids, vocabulary)) == (
        "last_token",
        f"expected lacks the last token, {ids[-1]} ({last!r})",
    )
    assert framing.one_token(whole(ids, ids[2:], vocabulary)) is None
    assert framing.one_token(whole(ids, [*ids[:3], *ids[4:]], vocabulary)) is None


def test_special_ids_renamed_one_to_one(vocabulary: Vocabulary, ids: list[int]) -> None:
    end = vocabulary.encode("<|end|>", PLAIN)[0]
    moved = [vocabulary.size + 3 if n == end else n for n in ids]
    assert framing.special_ids(whole(ids, moved, vocabulary))
    half = [*moved[: len(moved) // 2], *ids[len(ids) // 2 :]]
    assert framing.special_ids(whole(ids, half, vocabulary)) is None, "not everywhere"
    plain = next(n for n in ids if n not in vocabulary.special_ids)
    other = [vocabulary.size + 3 if n == plain else n for n in ids]
    assert framing.special_ids(whole(ids, other, vocabulary)) is None, "not special"


def test_special_text(vocabulary: Vocabulary) -> None:
    parsed = vocabulary.encode("the<|end|>river", PLAIN)
    spelled = [
        n for part in ("the", "<", "|", "end", "|", ">", "river")
        for n in vocabulary.encode(part, PLAIN)
    ]  # fmt: skip
    assert content.special_text(difference(whole(parsed, spelled, vocabulary)))
    gone = vocabulary.encode("the river", PLAIN)
    assert content.special_text(difference(whole(parsed, gone, vocabulary))) is None


@pytest.mark.parametrize(
    ("a", "b", "codes"),
    [
        ("the river", "the river\n", ("stripped",)),
        ("the\nriver", "the\r\nriver", ("newlines",)),
        ("café", "cafe\u0301", ("unicode",)),
        ("\ufb01x", "fix", ("unicode",)),
        ("<think>a\nb</think>\n\nYes.", "Yes.", ("thinking",)),
        ("<think>\n\n</think>\n\nYes.", "Yes.", ("thinking",)),
        ("Today is 3 May 2026.", "Today is 14 May 2025.", ("date",)),
        ("Today is 2026-01-30.", "Today is 2024-11-02.", ("date",)),
        ("cafe\u0301\r\n", "café\n", ("newlines", "unicode")),
        ("the river", "the stones", ()),
        ("the river", "the  river", ()),  # inside: not an edge
        ("the think river", "the river", ()),
        ("room 12 34", "room 12 35", ()),
    ],
)
def test_changes_of_text(a: str, b: str, codes: tuple[str, ...]) -> None:
    vocabulary = byte_level()
    pair = whole(vocabulary.encode(a, PLAIN), vocabulary.encode(b, PLAIN), vocabulary)
    assert content.text_changes(difference(pair)) == codes


def test_han_is_shown_as_han_and_not_as_pieces_of_bytes() -> None:
    vocabulary = byte_level()
    a, b = (vocabulary.encode(t, PLAIN) for t in ("the 漢字 river", "the 漢語 river"))
    assert len(vocabulary.encode("漢", PLAIN)) > 1, "several tokens make the character"
    text = first_difference(whole(a, b, vocabulary))
    assert "字" in text and "\ufffd" not in text
    parts = readable(vocabulary, a)
    assert [n for ids, _ in parts for n in ids] == a
    assert "".join(shown for _, shown in parts) == "the 漢字 river"


def test_a_merge_at_the_join() -> None:
    vocabulary = byte_level()
    prompt, response = (vocabulary.encode(part, PLAIN) for part in ("the old st", "ones rest"))
    together = vocabulary.encode("the old stones rest", PLAIN)
    assert prompt + response != together
    joined = difference(whole(prompt + response, together, vocabulary, join=len(prompt)))
    assert content.join_merge(joined)
    elsewhere = difference(whole(prompt + response, together, vocabulary, join=0))
    assert content.join_merge(elsewhere) is None
    assert content.segmentation(elsewhere)


def test_other_text_is_no_segmentation() -> None:
    vocabulary = byte_level()
    a, b = (vocabulary.encode(text, PLAIN) for text in ("the river", "the stones"))
    assert content.segmentation(difference(whole(a, b, vocabulary))) is None


def test_bytes_for_unknown_characters() -> None:
    with_bytes, without = unigram(True), unigram(False)
    a, b = (v.encode("the ☃ river", PLAIN) for v in (with_bytes, without))
    assert content.byte_fallback(difference(pair_of(with_bytes, a, b, other=without)))
    c = with_bytes.encode("the old river", PLAIN)
    assert content.byte_fallback(difference(pair_of(with_bytes, a, c))) is None


def test_a_whole_turn_of_the_template(vocabulary: Vocabulary) -> None:
    turn = vocabulary.encode("<|system|>system<|mid|>the river<|end|>", PLAIN)
    row = vocabulary.encode("<|user|>user<|mid|>the<|end|>", PLAIN)
    (only,) = differences(whole(row, turn + row, vocabulary))
    assert content.template_text(only)
    (other,) = differences(whole(row, [*row[:-1], *vocabulary.encode(" river", PLAIN), row[-1]],
                            vocabulary))  # fmt: skip
    assert content.template_text(other) is None


def test_a_row_in_another_place_is_known_by_its_ids(vocabulary: Vocabulary) -> None:
    a, b = (tuple(vocabulary.encode_chat(conversation(random.Random(n)), PLAIN)) for n in (1, 2))
    pair = Pair(Side(a, vocabulary), Side(b, vocabulary))
    assert (
        compare(0, pair, {a: 0, b: 5}).reasons[0].evidence
        == "the ids that came are exactly those of row 5"
    )
    assert "row_order" not in compare(0, pair, {a: 0}).codes
    twin = compare(3, pair, {a: 5, b: 5})
    assert "row_order" not in twin.codes, "two names of one row are no other order"


# Real vocabularies ------------------------------------------------------------------------------


def test_equal_counts_with_other_ids_are_caught() -> None:
    """Mistral's v3 moved every piece of v1 behind 768 control tokens."""
    v1, v3 = mistral("v1"), mistral("v3")
    text = sentence(random.Random(1), 40).replace("ö", "o")
    a, b = v1.encode(text, PLAIN), v3.encode(text, PLAIN)
    assert len(a) == len(b)
    assert a != b
    found = compare(0, pair_of(v1, a, b, other=v3))
    assert found.codes == ("other_vocabulary",)
    stored_by_v3 = compare(0, pair_of(v1, a, b))
    assert stored_by_v3.codes == ("other_vocabulary",), "even where nobody says which"


@pytest.mark.parametrize("version", ["v1", "v3", "tekken"])
def test_mistrals_tokenizers_agree_with_themselves_and_lack_a_bos(version: str) -> None:
    vocabulary = mistral(version)
    text = sentence(random.Random(2), 30) + " ☃ 漢字"
    a = vocabulary.encode(text, Rendering(add_special_tokens=True))
    assert compare(0, pair_of(vocabulary, a, a)).agrees
    assert compare(0, pair_of(vocabulary, a, a[1:])).codes == ("bos",)
    other = vocabulary.encode("cafe\u0301 " + text, PLAIN)
    same = vocabulary.encode("café " + text, PLAIN)
    assert compare(0, pair_of(vocabulary, other, same)).codes == ("unicode",)


def test_tekken_is_not_the_sentencepiece_model() -> None:
    v3, tekken = mistral("v3"), mistral("tekken")
    text = sentence(random.Random(3), 40)
    pair = pair_of(v3, v3.encode(text, PLAIN), tekken.encode(text, PLAIN), other=tekken)
    assert compare(0, pair).codes == ("other_vocabulary",)


# Several at once, and how it is shown -----------------------------------------------------------


def test_several_causes_in_one_row_are_all_named(vocabulary: Vocabulary) -> None:
    messages = conversation(random.Random(5))
    plain = vocabulary.encode_chat(messages, PLAIN)
    messages[0]["content"] += "\n"
    recipe = Rendering(add_special_tokens=True, add_generation_prompt=True)
    other = vocabulary.encode_chat(messages, recipe)
    found = compare(0, whole(plain, other, vocabulary))
    assert set(found.codes) == {"bos", "generation_prompt", "stripped"}


def test_an_explained_part_does_not_hide_an_unexplained_one(vocabulary: Vocabulary) -> None:
    messages = conversation(random.Random(6))
    plain = vocabulary.encode_chat(messages, PLAIN)
    messages[1]["content"] = "something else over again"
    other = vocabulary.encode_chat(messages, Rendering(add_generation_prompt=True))
    found = compare(0, whole(plain, other, vocabulary))
    assert set(found.codes) == {"generation_prompt", "unknown"}


def test_windows_rebuild_the_other_sequence() -> None:
    rng = random.Random(7)
    for _ in range(200):
        a = [rng.randrange(4) for _ in range(rng.randrange(30))]
        b = [rng.randrange(4) for _ in range(rng.randrange(30))]
        rebuilt, at = [], 0
        for w in windows(a, b):
            rebuilt += a[at : w.a_start] + b[w.b_start : w.b_stop]
            at = w.a_stop
        assert rebuilt + a[at:] == b


def test_segments_are_cut_at_special_ids() -> None:
    assert segments([9, 1, 2, 9, 9, 3], frozenset({9})) == [(9,), (1, 2), (9,), (9,), (3,)]
    assert segments([], frozenset()) == []


def test_the_first_difference_is_shown_with_what_surrounds_it() -> None:
    vocabulary = byte_level()
    a, b = (vocabulary.encode(t, PLAIN) for t in ("the river bends", "the river rest"))
    text = first_difference(whole(a, b, vocabulary))
    at = len(a) - 1
    assert text == (
        f"at position {at}, after 'he river': expected ids [{a[at]}], ' bends', "
        f"got ids [{b[at]}], ' rest'"
    )
    assert first_difference(whole(a, a, vocabulary)) == "the ids are equal"
