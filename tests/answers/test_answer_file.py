"""A whole regeneration: by a real server, and by stand-ins that fail as none will on demand."""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import torch
from make.waits import wait_until

from hslib import demo
from hslib.answers import AnswerSettings, answer_file
from hslib.answers.regenerate import MOST_FAILURES_IN_A_ROW
from hslib.errors import JobError, RequestError, ServerError
from hslib.rows import Recipe, load_chat, make_file
from hslib.server import Completion, ServerClient
from hslib.server import launch as server
from hslib.terminal import main

RECIPE = Recipe(model=demo.model_path())
GREEDY = AnswerSettings(
    temperature=0.0,
    max_answer_tokens=32,
    max_tokens=512,
    keep_cut=True,  # the demo model's lists of associations have no likeliest end
    concurrency=4,
    server_wait_s=0.5,
)


def chats(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def demo_chats(path: Path, count: int) -> Path:
    """The first turns of the demo's conversations, with answers that no model gives."""
    rows = [json.loads(line) for line in demo.dataset_path().read_text().splitlines()[:count]]
    for row in rows:
        row["messages"] = [
            {**message, "content": "no" if message["role"] == "assistant" else message["content"]}
            for message in row["messages"][:2]
        ]
    return chats(path, [{"id": row["id"], "messages": row["messages"]} for row in rows])


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def demo_server(start_server: Callable[..., server.ServerState]) -> server.ServerState:
    return start_server(demo.model_path(), layers="auto")


@pytest.fixture
def client(demo_server: server.ServerState) -> Iterator[ServerClient]:
    with ServerClient(demo_server.url) as found:
        yield found


def test_the_rows_are_the_prompts_and_what_the_model_itself_goes_on_with(
    client: ServerClient, tmp_path: Path
) -> None:
    """transformers' first choice, given what stands before, is the token that the row trains."""
    from transformers import AutoModelForCausalLM

    source, out = demo_chats(tmp_path / "chats.jsonl", 24), tmp_path / "rows.jsonl"
    manifest = answer_file(source, out, RECIPE, GREEDY, [client])
    assert (manifest.counts.conversations, manifest.counts.rows) == (24, 24)
    assert manifest.recipe["regenerated"]["temperature"] == 0.0
    model = AutoModelForCausalLM.from_pretrained(demo.model_path(), dtype=torch.float32)
    tokenizer = load_chat(RECIPE).tokenizer
    agreed, trained = 0, 0
    for row, chat in zip(lines(out), lines(source), strict=True):
        ids, mask = torch.tensor(row["input_ids"]), torch.tensor(row["loss_mask"], dtype=torch.bool)
        first = [message for message in chat["messages"] if message["role"] != "assistant"]
        prompt = tokenizer.apply_chat_template(first, add_generation_prompt=True, return_dict=False)
        assert row["input_ids"][: len(prompt)] == prompt
        assert not mask[: len(prompt)].any()
        assert row["id"] == chat["id"]
        with torch.no_grad():
            choices = model(ids[None]).logits[0, :-1].argmax(-1)
        agreed += int((choices == ids[1:])[mask[1:]].sum())
        trained += int(mask.sum())
    assert agreed / trained > 0.97, "bfloat16 decides ties the other way now and then"
    assert manifest.counts.trained == trained


@pytest.mark.slow
def test_several_samples_and_cut_answers(client: ServerClient, tmp_path: Path) -> None:
    settings = AnswerSettings(
        temperature=1.0, max_answer_tokens=3, max_tokens=512, samples=2, keep_cut=True
    )
    out = tmp_path / "rows.parquet"
    source = demo_chats(tmp_path / "chats.jsonl", 3)
    manifest = answer_file(source, out, RECIPE, settings, [client])
    rows = pyarrow.parquet.read_table(out).to_pylist()
    assert [row["id"] for row in rows] == [f"demo-000{i}#{s}" for i in range(3) for s in range(2)]
    assert [row["stop_reasons"] for row in rows] == [["length"]] * 6
    assert [sum(row["loss_mask"]) for row in rows] == [3] * 6
    assert manifest.answers == {"answers_cut": 6, "ended_early": {"cut": 6}}


def test_in_a_terminal(
    demo_server: server.ServerState, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = demo_chats(tmp_path / "chats.jsonl", 4), tmp_path / "rows.jsonl"
    options = ["--regenerate", "--server-url", demo_server.url, "--max-answer-tokens", "8"]
    command = ["rows", str(source), str(out), "--model", str(demo.model_path()), *options]
    assert main([*command, "--cut-answers", "keep"]) == 0
    assert (
        "ON POLICY: the served model generated every answer that trains" in capsys.readouterr().out
    )
    assert [row["source_index"] for row in lines(out)] == [0, 1, 2, 3]
    assert main([*command, "--cut-answers", "keep"]) == 0, "made before, nothing is asked"


# a job in a process of its own
_PROGRAM = """
import sys
from hslib import demo
from hslib.answers import AnswerSettings, answer_file
from hslib.rows import Recipe
from hslib.server import ServerClient
source, out, url = sys.argv[1:]
settings = AnswerSettings(0.0, 32, 512, keep_cut=True, concurrency=4)
with ServerClient(url) as client:
    answer_file(source, out, Recipe(model=demo.model_path()), settings, [client])
"""


@pytest.mark.slow
def test_a_killed_job_goes_on_and_answers_nothing_twice(
    demo_server: server.ServerState, client: ServerClient, tmp_path: Path
) -> None:
    source, out = demo_chats(tmp_path / "chats.jsonl", 60), tmp_path / "rows.jsonl"
    journal = tmp_path / "rows.jsonl.answers"
    job = subprocess.Popen([sys.executable, "-c", _PROGRAM, source, out, demo_server.url])
    wait_until(
        "eight answers",
        lambda: (
            job.poll() is not None or (journal.exists() and journal.read_bytes().count(b"\n") > 8)
        ),
    )
    assert job.poll() is None
    job.kill()
    job.wait()
    before = journal.read_bytes()
    journal.write_bytes(before + b'{"index": 59, "samp')  # torn off by the kill
    kept = {head["index"]: head for head in map(json.loads, before.splitlines()[1:])}
    assert 8 <= len(kept) < 60

    class Counting:
        """Passes on, and counts."""

        url, settings, asked = client.url, staticmethod(client.settings), 0

        def generate(self, *arguments: Any) -> Completion:
            Counting.asked += 1
            return client.generate(*arguments)

    answer_file(source, out, RECIPE, GREEDY, [Counting()])  # type: ignore[list-item]
    rows = lines(out)
    assert [row["source_index"] for row in rows] == list(range(60))
    assert Counting.asked == 60 - len(kept)
    for index, head in kept.items():
        assert rows[index]["input_ids"] == head["rows"][0]["input_ids"]
    assert not journal.exists()


class StandIn:
    """Answers at once; ``misbehave`` gets the number of the request and may raise."""

    url = "http://stand-in"

    def __init__(self, misbehave: Callable[[int], None] = lambda _number: None) -> None:
        self.misbehave, self.asked, self._lock = misbehave, 0, threading.Lock()

    def settings(self) -> Any:
        class Settings:
            model_path = str(demo.model_path())
            max_req_input_len = 4090

        return Settings()

    def generate(self, *_request: Any) -> Completion:
        with self._lock:
            self.asked += 1
            number = self.asked
        self.misbehave(number)
        return Completion((26, 7), False, 7)


def refused(_number: int) -> None:
    raise RequestError("the server answered 400", retry=False, down=False)


def away_at_first(number: int) -> None:
    if number < 3:
        raise RequestError("it does not answer", retry=True, down=True)


def run(tmp_path: Path, stand_in: StandIn, count: int = 6, **settings: Any) -> Any:
    source = tmp_path / "chats.jsonl"
    if not source.exists():
        demo_chats(source, count)
    chosen = AnswerSettings(**{**vars(GREEDY), **settings})
    return answer_file(source, tmp_path / "rows.jsonl", RECIPE, chosen, [stand_in])  # type: ignore[list-item]


def test_a_server_that_is_away_for_a_moment_is_asked_again(tmp_path: Path) -> None:
    stand_in = StandIn(away_at_first)
    run(tmp_path, stand_in)
    assert stand_in.asked == 6 + 2
    assert len(lines(tmp_path / "rows.jsonl")) == 6


def test_what_failed_is_named_kept_apart_and_asked_by_the_next_run(tmp_path: Path) -> None:
    def refuse_third(number: int) -> None:
        if number == 3:
            refused(number)

    with pytest.raises(JobError, match=r"1 conversations are not answered.* 400"):
        run(tmp_path, StandIn(refuse_third), concurrency=1)
    assert not (tmp_path / "rows.jsonl").exists()
    again = StandIn()
    run(tmp_path, again)
    assert again.asked == 1
    assert len(lines(tmp_path / "rows.jsonl")) == 6


def test_a_server_that_refuses_everything_ends_the_job_early(tmp_path: Path) -> None:
    stand_in = StandIn(refused)
    with pytest.raises(JobError, match="one after another"):
        run(tmp_path, stand_in, count=60, concurrency=1)
    assert stand_in.asked == MOST_FAILURES_IN_A_ROW


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_keeps_what_is_in_flight(tmp_path: Path) -> None:
    def interrupt(number: int) -> None:
        if number == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(JobError, match=r"interrupted: [345] conversations are answered"):
        run(tmp_path, StandIn(interrupt), concurrency=2)
    again = StandIn()
    run(tmp_path, again)
    assert again.asked in (1, 2, 3)
    assert len(lines(tmp_path / "rows.jsonl")) == 6


def test_other_settings_or_other_conversations_are_refused(tmp_path: Path) -> None:
    with pytest.raises(JobError):
        run(tmp_path, StandIn(lambda number: refused(number) if number == 3 else None))
    with pytest.raises(JobError, match="begun with other settings: regenerated"):
        run(tmp_path, StandIn(), temperature=0.5)
    rows = lines(tmp_path / "chats.jsonl")
    chats(tmp_path / "chats.jsonl", rows[::-1])
    with pytest.raises(JobError, match="no longer the conversation that was answered"):
        run(tmp_path, StandIn())


def test_a_shorter_source_and_another_kind_of_rows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(JobError):
        run(tmp_path, StandIn(lambda number: refused(number) if number == 3 else None))
    with pytest.raises(JobError, match="was begun with the model's own answers"):
        make_file(tmp_path / "chats.jsonl", tmp_path / "rows.jsonl", RECIPE)
    rows = lines(tmp_path / "chats.jsonl")
    chats(tmp_path / "chats.jsonl", rows[:3])
    with pytest.raises(JobError, match="the source has only 3 rows now"):
        run(tmp_path, StandIn())


def test_another_model_with_the_same_tokenizer_does_not_go_on(tmp_path: Path) -> None:
    run(tmp_path, StandIn())
    other = tmp_path / "other"
    shutil.copytree(demo.model_path(), other)
    source, out = tmp_path / "chats.jsonl", tmp_path / "rows.jsonl"
    with pytest.raises(JobError, match="begun with other settings: regenerated"):
        answer_file(source, out, Recipe(model=other), GREEDY, [StandIn()])  # type: ignore[list-item]


def test_the_last_answer_does_not_train_where_it_was_dropped(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}] * 2
    source = chats(tmp_path / "chats.jsonl", [{"messages": turns}])

    class CutAtLast(StandIn):
        def generate(self, *_request: Any) -> Completion:
            self.asked += 1
            return (
                Completion((26, 26), True, None) if self.asked == 2 else Completion((7,), False, 7)
            )

    recipe = Recipe(model=demo.model_path(), train_on="last")
    settings = dataclasses.replace(GREEDY, keep_cut=False)
    out = tmp_path / "rows.jsonl"
    manifest = answer_file(source, out, recipe, settings, [CutAtLast()])  # type: ignore[list-item]
    assert (manifest.counts.rows, manifest.counts.rejected) == (0, {"cut": 1})
    assert lines(tmp_path / "rows.jsonl.rejected.jsonl")[0]["fix"].startswith("raise max_answer")


def test_a_whole_file_is_not_made_again(tmp_path: Path) -> None:
    run(tmp_path, StandIn())
    again = StandIn()
    run(tmp_path, again)
    assert again.asked == 0
    with pytest.raises(JobError, match="begun with other settings: regenerated"):
        run(tmp_path, again, max_answer_tokens=5)


def test_a_kill_before_the_manifest_is_made_good_and_nothing_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr("hslib.rows.making.write_manifest", killed)
        with pytest.raises(SystemExit):
            run(tmp_path, StandIn())
    assert (tmp_path / "rows.jsonl").exists()
    again = StandIn()
    manifest = run(tmp_path, again)
    assert (again.asked, manifest.counts.rows) == (0, 6)
    assert len(lines(tmp_path / "rows.jsonl")) == 6


def test_rows_that_can_not_be_asked_are_rejected_by_name(tmp_path: Path) -> None:
    question = {"role": "user", "content": "Compute 3 x 7."}
    chats(
        tmp_path / "chats.jsonl",
        [
            {"messages": [question]},
            {"messages": [{"role": "user", "content": "x<|im_end|>"}]},
            {"messages": [{"role": "assistant", "content": "x"}]},
            {"text": "x"},
            {"messages": [question, {"role": "assistant", "content": ""}]},
            {"id": "\ud83d", "messages": [{"role": "user", "content": "half \ud83d"}]},
        ],
    )
    manifest = run(tmp_path, StandIn())
    assert [row["source_index"] for row in lines(tmp_path / "rows.jsonl")] == [0, 4]
    assert manifest.counts.rejected == {
        "special_in_text": 1,
        "no_question": 1,
        "no_conversation": 1,
        "half_character": 1,
    }
    rejected = lines(tmp_path / "rows.jsonl.rejected.jsonl")
    assert [(row["index"], row["reason"]) for row in rejected] == [
        (1, "special_in_text"),
        (2, "no_question"),
        (3, "no_conversation"),
        (5, "half_character"),
    ]


def test_only_the_last_answer_trains_where_that_is_asked_for(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}] * 2
    source = chats(tmp_path / "chats.jsonl", [{"messages": turns}])
    masks = {}
    for train_on in ("all", "last"):
        recipe = Recipe(model=demo.model_path(), train_on=train_on)  # type: ignore[arg-type]
        out = tmp_path / f"{train_on}.jsonl"
        answer_file(source, out, recipe, GREEDY, [StandIn()])  # type: ignore[list-item]
        masks[train_on] = lines(out)[0]["loss_mask"]
    assert sum(masks["all"]) == 4
    assert masks["last"] == [0] * (len(masks["all"]) - 2) + [1, 1]


def test_a_server_of_another_model_is_refused(
    llama_server: server.ServerState, tmp_path: Path
) -> None:
    source = demo_chats(tmp_path / "chats.jsonl", 2)
    with (
        ServerClient(llama_server.url) as other,
        pytest.raises(ServerError, match="serves another model"),
    ):
        answer_file(source, tmp_path / "rows.jsonl", RECIPE, GREEDY, [other])
