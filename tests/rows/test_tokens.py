"""Where text ends in ids: vocabularies that are not byte-level, and joins that tokens cross."""

import json
import random
import shutil
from pathlib import Path

import mistral_common
import pytest
from make.chats import FAMILIES, save_tokenizer
from make.tokenizations import byte_level, conversation, unigram
from mistral_common.protocol.instruct.messages import AssistantMessage, SystemMessage, UserMessage
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.protocol.instruct.validator import ValidationMode
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

from hslib.errors import DatasetError
from hslib.rows import Recipe, Row, load_chat, make_rows
from hslib.rows.tokens import MergeError, PlainTokenizer

DATA = Path(mistral_common.__file__).parent / "data"
# The format of Mistral's SentencePiece models: each text begins with a space.
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'system' %}[SYSTEM_PROMPT] {{ m.content }}[/SYSTEM_PROMPT]"
    "{% elif m.role == 'user' %}[INST] {{ m.content }}[/INST]"
    "{% else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
)
TEXTS = ("Be brief.", "What is 2 + 2?", "It is 4, 你好.", "And 河流?", "🙂 A river\n\n bends", "ok")


def mistral_folder(folder: Path) -> Path:
    shutil.copy(DATA / "mistral_instruct_tokenizer_241114.model.v7", folder / "tokenizer.model")
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "legacy": False}
    config = {"tokenizer_class": "LlamaTokenizer", "chat_template": TEMPLATE, **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"model_type": "mistral", "eos_token_id": 2}))
    return folder


def test_ids_and_mask_are_what_mistrals_own_library_makes(tmp_path: Path) -> None:
    """A real SentencePiece vocabulary, whose tokens are no bytes of the text."""
    chat = load_chat(Recipe(mistral_folder(tmp_path)))
    assert chat.tokens._pieces is None
    roles = ("system", "user", "assistant", "user", "assistant")
    messages = [{"role": r, "content": c} for r, c in zip(roles, TEXTS, strict=False)]
    (row,) = make_rows(chat, [(0, {"messages": messages})])
    assert isinstance(row, Row), row
    kinds = {"system": SystemMessage, "user": UserMessage, "assistant": AssistantMessage}
    theirs = [kinds[m["role"]](content=m["content"]) for m in messages]
    library = MistralTokenizer.v7()
    training = MistralTokenizer.v7()
    training._chat_completion_request_validator._mode = ValidationMode.finetuning
    whole = training.encode_chat_completion(ChatCompletionRequest(messages=theirs)).tokens
    mask = [0] * len(whole)
    for turn in (2, 4):
        request = ChatCompletionRequest(messages=theirs[:turn])
        start = len(library.encode_chat_completion(request).tokens)
        mask[start : whole.index(2, start) + 1] = [1] * (whole.index(2, start) + 1 - start)
    assert (row.input_ids.tolist(), row.loss_mask.tolist()) == (whole, mask)


def test_mistrals_tokenizer_without_a_template_is_refused(tmp_path: Path) -> None:
    shutil.copy(DATA / "tekken_240911.json", tmp_path / "tekken.json")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mistral"}))
    with pytest.raises(DatasetError, match="code of its own"):
        load_chat(Recipe(tmp_path))


@pytest.mark.parametrize("vocabulary", [byte_level(), unigram()], ids=lambda v: v.name)
def test_a_cut_is_where_the_text_before_it_makes_the_same_ids(vocabulary: object) -> None:
    """Each position of a text, against two calls of the tokenizer."""
    tokens = PlainTokenizer(vocabulary.tokenizer)  # type: ignore[attr-defined]
    messages = conversation(random.Random(3), 1)
    text = str(tokens.tokenizer.apply_chat_template(messages, tokenize=False)) + " \n\n  x 漢🙂.\n"
    (ids,) = tokens.encode([text])
    good = 0
    for position in range(len(text) + 1):
        before = tokens.encode([text[:position]])[0]
        try:
            (cut,) = tokens.cuts(text, ids, [position])
        except MergeError:
            assert before != ids[: len(before)], text[:position]
        else:
            assert before == ids[:cut], text[:position]
            good += 1
    assert 20 < good < len(text)


def test_a_join_inside_a_token_rejects_the_row(tmp_path: Path) -> None:
    template = tmp_path / "plain.jinja"
    template.write_text(
        "{% for m in messages %}{% if m.role == 'user' %}Q:{{ m.content }}\nA:\n"
        "{% else %}{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    )
    folder = save_tokenizer(FAMILIES["qwen3"], tmp_path / "m")
    chat = load_chat(Recipe(folder, chat_template=str(template)))
    rows = []
    for answer in ("\n4", "4"):
        messages = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": answer}]
        rows += make_rows(chat, [(0, {"messages": messages})])
    merged, row = rows
    assert not isinstance(merged, Row) and merged.reason == "merged"
    assert isinstance(row, Row)
    assert chat.tokenizer.decode(row.input_ids[row.loss_mask == 1]) == "4<|im_end|>"


def test_text_that_is_split_otherwise_once_the_answer_follows(tmp_path: Path) -> None:
    """Four spaces are one token; before a digit, three and one are. No token crosses the join."""
    folder = save_tokenizer(FAMILIES["kimi_k2"], tmp_path / "m", vocabulary=["   "] * 200)
    tokens = load_chat(Recipe(folder)).tokens
    text = "<|im_end|>    1"
    (ids,), (before,) = tokens.encode([text]), tokens.encode([text[:-1]])
    assert (len(before), len(ids) > 3) == (2, True)
    with pytest.raises(MergeError):
        tokens.cuts(text, ids, [len(text) - 1])


def test_a_folder_without_a_tokenizer_that_can_be_read(tmp_path: Path) -> None:
    folder = save_tokenizer(FAMILIES["kimi_k2"], tmp_path / "m")
    content = json.loads((folder / "tokenizer.json").read_text())
    content["pre_tokenizer"] = {"type": "OfNextYear"}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    for path in (folder, tmp_path):
        with pytest.raises(DatasetError, match="no tokenizer can be loaded"):
            load_chat(Recipe(path))


def test_a_tokenizer_file_that_cuts_does_not_cut_here(tmp_path: Path) -> None:
    chat = load_chat(Recipe(save_tokenizer(FAMILIES["kimi_k2"], tmp_path / "m")))
    chat.tokenizer.backend_tokenizer.enable_truncation(3)
    assert len(PlainTokenizer(chat.tokenizer).encode(["one two three four five six"])[0]) > 3


def test_numbers_that_no_token_has_are_no_hindrance(tmp_path: Path) -> None:
    """Vocabularies have gaps, and added tokens behind them."""
    folder = save_tokenizer(FAMILIES["kimi_k2"], tmp_path / "m")
    content = json.loads((folder / "tokenizer.json").read_text())
    number = content["model"]["vocab"].pop("~")
    assert number < 700
    (folder / "tokenizer.json").write_text(json.dumps(content))
    tokens = load_chat(Recipe(folder)).tokens
    (ids,) = tokens.encode(["one<|im_end|>"])
    assert tokens.cuts("one<|im_end|>", ids, [3, 13]) == [len(ids) - 1, len(ids)]
    assert tokens._pieces is not None and tokens._pieces[number] == b""
