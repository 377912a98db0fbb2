"""The embedded demo: its model's shape, its data set's rows, and that the model knows answers."""

import itertools
import json
import re
from pathlib import Path
from random import Random
from typing import Any

import pytest
from make.demo.associations import ASSOCIATIONS
from make.demo.dialogues import KINDS, Dialogue, Message, dialogue, turns, word_chain
from make.demo.tokenizer import ChatEncoder

from hslib.demo import dataset_path, model_path

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

Row = dict[str, Any]


def one_each(_message: Message) -> int:
    return 1


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return [json.loads(line) for line in dataset_path().read_text("utf-8").splitlines()]


@pytest.fixture(scope="module")
def config() -> Row:
    values: Row = json.loads((model_path() / "config.json").read_text())
    return values


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return transformers.AutoTokenizer.from_pretrained(model_path())


@pytest.fixture(scope="module")
def model() -> Any:
    from make.demo.checkpoint import load_model

    return load_model(model_path())


def test_weights_are_small() -> None:
    assert (model_path() / "model.safetensors").stat().st_size <= 6_000_000


def test_config_is_kimi_k2s_architecture(config: Row) -> None:
    assert config["architectures"] == ["DeepseekV3ForCausalLM"]
    assert config["num_hidden_layers"] >= 10
    assert config["q_lora_rank"] and config["first_k_dense_replace"] == 1
    assert config["n_shared_experts"] == 1 and config["n_group"] == 1


def test_config_has_the_keys_that_sglang_reads(config: Row) -> None:
    assert config["moe_layer_freq"] == 1
    assert config["topk_method"] == "noaux_tc" and config["scoring_func"] == "sigmoid"
    assert config["rope_scaling"]["type"] == "yarn" and "mscale_all_dim" in config["rope_scaling"]
    assert "head_dim" not in config


def test_transformers_reads_the_same_rope_from_the_config(config: Row) -> None:
    read = transformers.AutoConfig.from_pretrained(model_path()).rope_parameters
    assert read["rope_type"] == "yarn" and read["rope_theta"] == config["rope_theta"]
    assert read["factor"] == config["rope_scaling"]["factor"]


def test_auto_boundaries_are_distinct(config: Row) -> None:
    layers = config["num_hidden_layers"]
    assert len({2, layers // 2, layers - 3}) == 3


def test_tokenizer_is_fast_and_knows_kimis_special_tokens(tokenizer: Any) -> None:
    assert tokenizer.is_fast
    for token in ("[BOS]", "[EOS]", "[PAD]", "<|im_user|>", "<|im_middle|>", "<|im_end|>"):
        assert len(tokenizer.encode(token, add_special_tokens=False)) == 1


def test_there_are_256_rows_of_10_to_1500_tokens(rows: list[Row]) -> None:
    lengths = sorted(len(row["input_ids"]) for row in rows)
    assert len(rows) == len({row["id"] for row in rows}) == 256
    assert 10 <= lengths[0] <= 15 and 1400 <= lengths[-1] <= 1500


def test_every_id_is_in_the_vocabulary(rows: list[Row], config: Row) -> None:
    assert all(0 <= i < config["vocab_size"] for row in rows for i in row["input_ids"])


def test_ids_are_the_chat_templates(rows: list[Row], tokenizer: Any) -> None:
    for row in rows:
        again = tokenizer.apply_chat_template(row["messages"], tokenize=True, return_dict=False)
        assert again == row["input_ids"], row["id"]


def test_contents_survive_encoding_and_decoding(rows: list[Row], tokenizer: Any) -> None:
    for text in {message["content"] for row in rows for message in row["messages"]}:
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_mask_marks_the_assistants_words_and_their_end(rows: list[Row], tokenizer: Any) -> None:
    for row in rows:
        assert len(row["loss_mask"]) == len(row["input_ids"]) and set(row["loss_mask"]) == {0, 1}
        marked = [i for i, m in zip(row["input_ids"], row["loss_mask"], strict=True) if m]
        answers = [m["content"] for m in row["messages"] if m["role"] == "assistant"]
        assert tokenizer.decode(marked) == "".join(f"{answer}<|im_end|>" for answer in answers)


def test_the_generation_prompt_ends_where_an_answer_begins(rows: list[Row], tokenizer: Any) -> None:
    row = rows[0]
    prompt = tokenizer.apply_chat_template(
        row["messages"][:-1], tokenize=True, return_dict=False, add_generation_prompt=True
    )
    assert row["input_ids"][: len(prompt)] == prompt
    assert row["loss_mask"][len(prompt) - 1 : len(prompt) + 1] == [0, 1]


def test_dialogues_depend_only_on_the_seed() -> None:
    first, second = (dialogue(Random(5), one_each, 40) for _ in range(2))
    assert first == second != dialogue(Random(6), one_each, 40)


def test_sums_are_right() -> None:
    stream = turns(Random(7), {"Ada": 10})
    for turn in (next(stream) for _ in range(500)):
        if turn.kind in ("addition", "subtraction", "multiplication"):
            left, right = turn.answer.rstrip(".").replace("x", "*").split(" = ")
            assert eval(left) == int(right)  # our own text


def test_lookups_repeat_what_was_told() -> None:
    told = dialogue(Random(8), one_each, 200)
    text = ""
    for message in told.messages():
        if message["content"].startswith("The code of") and message["role"] == "assistant":
            name, code = message["content"].rstrip(".").split()[3:6:2]
            assert f"{name} {code}" in text or f"{name} is {code}" in text
        text += message["content"]


def test_every_word_of_a_chain_comes_to_mind_at_the_one_before() -> None:
    for number in range(200):
        turn = word_chain(Random(number))
        words = turn.answer.removeprefix("Hm, ").split()
        asked = next(w for w in re.findall(r"[a-z]+", turn.question)[::-1] if w in ASSOCIATIONS)
        for before, word in itertools.pairwise([asked, *words]):
            assert word in ASSOCIATIONS[before], turn


def test_at_every_word_five_others_come_to_mind_each_with_a_token_of_its_own(
    tokenizer: Any,
) -> None:
    for word, found in ASSOCIATIONS.items():
        assert len(set(found) - {word}) == 5 and set(found) <= set(ASSOCIATIONS), word
        assert len(tokenizer.encode(f" {word}", add_special_tokens=False)) == 1


def test_most_trained_tokens_are_open_ended_as_in_real_text(rows: list[Row]) -> None:
    """What notebook 06 needs: a drafter must read the token that came."""
    answers = [m["content"] for row in rows for m in row["messages"] if m["role"] == "assistant"]
    words = sum(len(text.split()) - 1 for text in answers if text.startswith("Hm, "))
    assert 0.6 < words / sum(sum(row["loss_mask"]) for row in rows) < 0.8


def test_the_model_answers_most_fresh_questions(model: Any, tokenizer: Any) -> None:
    from make.demo.evaluate import score_by_kind

    encoder, rng = ChatEncoder(tokenizer), Random(987_654)
    scores = score_by_kind(model, encoder, [dialogue(rng, encoder.cost, 100) for _ in range(20)])
    assert scores["all"].asked >= 20 and set(scores) - {"all", "note"} <= set(KINDS)
    assert scores["all"].right / scores["all"].asked >= 0.6
    assert scores["chain"].asked >= 250
    assert scores["chain"].right / scores["chain"].asked >= 0.95, "what comes to mind first"


def test_scoring_agrees_with_greedy_generation(model: Any, tokenizer: Any) -> None:
    from make.demo.evaluate import answers_right

    encoder, rng = ChatEncoder(tokenizer), Random(123)
    for _ in range(4):
        tokens = encoder.conversation(first_turn(rng).messages())
        start = tokens.loss_mask.index(1)
        answer = tokens.input_ids[start:]
        made = model.generate(
            torch.tensor([tokens.input_ids[:start]]), max_new_tokens=len(answer), do_sample=False
        )
        assert answers_right(model, tokens) == [made[0, start:].tolist() == answer]


def first_turn(rng: Random) -> Dialogue:
    """A dialogue of one turn without a system prompt."""
    return Dialogue("", (next(turns(rng, {})),))


def test_wrong_answers_are_scored_wrong(model: Any, tokenizer: Any) -> None:
    from make.demo.evaluate import answers_right

    messages = [
        {"role": "user", "content": "What is 2 + 2?"},
        {"role": "assistant", "content": "2 + 2 = 19."},
    ]
    assert answers_right(model, ChatEncoder(tokenizer).conversation(messages)) == [False]


def test_paths_point_into_the_package() -> None:
    assert Path(model_path(), "config.json").is_file() and dataset_path().is_file()
