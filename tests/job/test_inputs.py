"""What needs no server is said before one is started."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes.server import FakeServer
from make import jobs
from make.rows import random_sample
from make.stores import store_samples

from hslib import demo, extract
from hslib.dataset import Dataset, Limits, Sample
from hslib.errors import HslibError, raise_all
from hslib.job import input_problems, inputs
from hslib.parameters import ExtractionParameters

GOOD = {"input_ids": [4, 5, 6], "loss_mask": [0, 1, 1]}
Job = Callable[..., ExtractionParameters]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A job for a server of its own (the demo's) on rows that are written now."""
    monkeypatch.setattr(
        "hslib.server.launch.start", lambda *_: pytest.fail("a server was started for nothing")
    )

    def make(*rows: dict[str, Any], **values: Any) -> ExtractionParameters:
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        defaults = {"run_dir": str(tmp_path / "run"), "dataset_path": str(path)}
        return ExtractionParameters.from_values({**defaults, **values})

    return make


def require_none(wanted: ExtractionParameters) -> None:
    raise_all(input_problems(wanted))


def said(wanted: ExtractionParameters) -> str:
    with pytest.raises(HslibError) as caught:
        extract.open_servers(wanted)
    return str(caught.value)


def test_good_rows_pass_with_and_without_a_known_model(job: Job) -> None:
    require_none(job(GOOD))
    require_none(job({**GOOD, "input_ids": [9999, 5, 6]}, server_url="http://127.0.0.1:1"))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"dataset_path": "nowhere.jsonl"}, "there is no dataset at /"),
        ({"dataset_path": "hf:a:b:c:d"}, "no dataset of the hub"),
        ({"model_path": "nowhere"}, "nowhere"),
        ({"mask_column": "los_mask"}, "2 no_mask; the first: row 0 (rows.jsonl, line 1)"),
    ],
)
def test_what_is_mistyped_is_named(job: Job, values: dict[str, Any], message: str) -> None:
    assert message in said(job(GOOD, GOOD, **values))


def test_conversations_are_sent_to_where_rows_are_made(job: Job) -> None:
    chat = {"messages": [{"role": "user", "content": "hi"}]}
    assert "python -m hslib rows" in said(job(chat, chat))


def test_ids_out_of_the_models_vocabulary_are_seen(job: Job) -> None:
    assert "1 out_of_vocabulary" in said(job(*[GOOD] * 3, {"input_ids": [768]}))


def test_placeholders_of_the_models_config_are_seen(job: Job, tmp_path: Path) -> None:
    config = {"num_hidden_layers": 2, "hidden_size": 8, "vocab_size": 9, "image_token_id": 5}
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text(json.dumps({**config, "model_type": "qwen3"}))
    (tmp_path / "m" / "model.safetensors").write_bytes(b"x")
    assert "id 5 at position 1 is the model's image_token_id" in said(
        job(GOOD, model_path=str(tmp_path / "m"))
    )


def test_too_many_rejections_or_zero_masks_in_a_small_dataset_are_seen(job: Job) -> None:
    padded = {**GOOD, "attention_mask": [0, 1, 1]}
    assert "3 of 4 rows are rejected" in said(job(GOOD, *[padded] * 3))
    assert "2 of 3 rows have a mask of zeros" in said(
        job(GOOD, *[{**GOOD, "loss_mask": [0] * 3}] * 2)
    )
    require_none(job(GOOD, *[padded] * 3, max_rejected_share=0.75))


def test_of_a_large_dataset_the_first_rows_are_read(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "_ROWS", 3)
    require_none(job(GOOD, *[{"input_ids": []}] * 9))
    assert "strict is set: 3 empty" in said(job(GOOD, *[{"input_ids": []}] * 9, strict=True))
    assert "none of the first 4 rows can be extracted: 4 empty" in said(
        job(*[{"input_ids": []}] * 4, GOOD)
    )
    require_none(job(*[{"input_ids": [4] * 9}] * 4, GOOD, max_tokens=8))  # sorted by length


def test_all_that_is_in_the_way_is_said_at_once(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Model, rows, store, port's flag, key: five errors would be five starts otherwise."""
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    (tmp_path / "file").touch()
    text = said(
        job(
            *[{"input_ids": []}] * 2,
            model_path=str(tmp_path / "no-model"),
            store_dir=str(tmp_path / "file/states"),
            extra_args=["--pp-size", "2"],
        )
    )
    assert text.startswith("4 things are in the way:")
    assert text.count("no-model") == 1, "preflight finds it again"
    for part in ("2 empty", "file is a file", "--pp-size in extra_args"):
        assert part in text
    assert "NO_SUCH_KEY" in said(job(GOOD, api_key_env="NO_SUCH_KEY"))
    assert not (tmp_path / "run").exists(), "nothing was made"


def test_layers_that_the_model_has_not_are_seen(job: Job) -> None:
    assert "99" in said(job(GOOD, layers="2,99"))


def test_a_store_that_its_disk_cant_take_is_seen(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hslib.store.directory.Directory.free_bytes", lambda _self: 5000)
    assert "the store would grow by" in said(job(*[GOOD] * 9))
    too_long = {"input_ids": [4] * 5000}  # rejected later, and takes no room
    require_none(job(GOOD, too_long, max_rejected_share=0.5))
    require_none(job(GOOD))


def test_stored_rows_that_the_dataset_has_no_more_are_seen(job: Job, tmp_path: Path) -> None:
    rows = [random_sample(i, 6, vocab_size=500) for i in range(4)]
    lines = [{"input_ids": r.input_ids.tolist(), "id": r.id} for r in rows]
    wanted = job(*lines, store_dir=str(tmp_path / "store"), model_path=str(demo.model_path()))
    dataset = Dataset(wanted.dataset_source, Limits(512, 100))
    samples = [row for row in dataset if isinstance(row, Sample)]
    store_samples(tmp_path / "store", tmp_path / "dumps", samples)
    require_none(wanted)
    require_none(job(*lines, GOOD, store_dir=wanted.store_dir))
    lines[2]["input_ids"] = [4, 5, 6]
    text = said(job(*lines, store_dir=wanted.store_dir))
    assert "1 stored rows are not the rows that the dataset has there now: 1 have other in" in text
    assert f"python -m hslib diagnose {tmp_path / 'store'} --dataset {tmp_path}/rows.jsonl" in text
    require_none(job(*lines, store_dir=wanted.store_dir, on_changed_rows="redo"))


@pytest.mark.parametrize("more", [0, 2])
def test_what_is_stored_already_is_said_while_servers_start(
    fake: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    rows = [random_sample(i, 5 + i) for i in range(4)]
    jobs.run(jobs.wanted(fake, tmp_path, rows[: 4 - more]))

    def start(_parameters: ExtractionParameters, tell: Callable[[str], None]) -> Any:
        tell("importing SGLang")
        tell("ready: it answers")
        return SimpleNamespace(locks=[])

    monkeypatch.setattr("hslib.server.endpoints.open_endpoints", start)
    lines: list[str] = []
    extract.open_servers(jobs.wanted(fake, tmp_path, rows), lines.append)
    done = f"importing SGLang; {4 - more} of 4 rows are stored already"
    asked = "" if more else "; a server is asked whether they are of the model that it serves"
    assert lines == [done + asked, "ready: it answers"]
