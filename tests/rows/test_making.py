"""Files of rows: read by the job, the same bytes in any number of processes, and after a kill."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hslib import demo
from hslib.dataset import Dataset, Limits
from hslib.errors import HslibError, JobError, ParameterError
from hslib.rows import Recipe, RowsManifest, make_file, read_manifest

RECIPE = Recipe(demo.model_path())
LIMITS = Limits(768, 4096)
BAD = ('{"conversations": []}', '{"text": "x"}', "no json")
KILLED = """
import sys
from hslib import demo
from hslib.rows import Recipe, making, chunk
making._COMMIT_S = 0
making.make_file(sys.argv[1], sys.argv[2], Recipe(demo.model_path()), workers=1)
"""


def chats(path: Path, count: int) -> Path:
    """Short conversations, and some lines that are none."""
    lines = []
    for n in range(count):
        turns = [("human", f"{n} + {n}?"), ("gpt", f"{n} + {n} = {2 * n}.")] * (1 + n % 3)
        row = {"id": f"r{n}", "conversations": [{"from": f, "value": v} for f, v in turns]}
        lines.append(json.dumps(row) if n % 50 else BAD[n // 50 % 3])
    path.write_text("\n".join(lines) + "\n")
    return path


def contents(folder: Path) -> dict[str, bytes]:
    """All files; of the manifest what does not name the folder."""
    found = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
    return {name: data.replace(str(folder).encode(), b"") for name, data in found.items()}


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet"])
def test_a_job_reads_what_was_made(suffix: str, tmp_path: Path) -> None:
    out = tmp_path / f"rows{suffix}"
    made = make_file(chats(tmp_path / "chats.jsonl", 120), out, RECIPE, workers=1)
    assert made == read_manifest(out)
    assert made.counts.rejected == {"empty": 1, "no_conversation": 1, "not_json": 1}
    assert (made.counts.conversations, made.counts.rows) == (120, 117)
    survey = Dataset(out, LIMITS).survey()
    assert (len(survey.rows), survey.num_tokens) == (117, made.counts.tokens)
    assert (survey.missing_masks, survey.zero_masks, survey.rejections) == (0, 0, [])
    assert [row.id for row in survey.rows[:2]] == ["r1", "r2"]
    rejected = (tmp_path / f"rows{suffix}.rejected.jsonl").read_text().splitlines()
    assert [json.loads(line)["index"] for line in rejected] == [0, 50, 100]
    assert json.loads(rejected[0]) == made.first_rejected[0]
    assert sum(sample.loss_mask.sum() for sample in Dataset(out, LIMITS)) == made.counts.trained
    assert {path.name for path in tmp_path.iterdir()} == {
        "chats.jsonl",
        *(f"rows{suffix}{more}" for more in ("", ".manifest.json", ".rejected.jsonl")),
    }


@pytest.mark.slow
def test_processes_make_the_same_bytes(tmp_path: Path) -> None:
    source = chats(tmp_path / "chats.jsonl", 1000)
    found = []
    for workers in (1, 2):
        folder = tmp_path / str(workers)
        seen: list[int] = []
        make_file(source, folder / "rows.jsonl.zst", RECIPE, workers,
                  lambda counts, seen=seen: seen.append(counts.conversations))  # fmt: skip
        assert seen == [256, 512, 768, 1000]
        found.append(contents(folder))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "name", ["rows.jsonl", pytest.param("rows.parquet", marks=pytest.mark.slow)]
)
def test_a_killed_job_goes_on_and_ends_with_the_same_bytes(name: str, tmp_path: Path) -> None:
    source = chats(tmp_path / "chats.jsonl", 6000)
    make_file(source, tmp_path / "whole" / name, RECIPE, workers=1)
    out = tmp_path / "killed" / name
    journal = out.with_name(f"{name}.journal")
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(source), str(out)])
    while process.poll() is None and (
        not journal.exists() or journal.read_bytes().count(b"\n") < 4
    ):
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert journal.exists() and not out.exists(), "it was killed in the middle"
    with out.with_name(f"{name}.partial").open("ab") as partial:
        partial.write(b'{"id": "torn')
    with journal.open("ab") as lines:
        lines.write(b'{"digest": "torn')
    seen: list[int] = []
    make_file(source, out, RECIPE, 1, lambda counts: seen.append(counts.conversations))
    assert seen[0] > 512, "what was committed is not made again"
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def test_the_journal_counts_nothing_that_is_not_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = chats(tmp_path / "chats.jsonl", 60), tmp_path / "rows.jsonl"

    def full(_number: int, real: Any = os.fsync) -> None:
        if out.with_name("rows.jsonl.journal").exists():
            raise OSError(28, "No space left on device")
        real(_number)

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        with pytest.raises(JobError, match="No space left"):
            make_file(source, out, RECIPE, 1)
    assert out.with_name("rows.jsonl.journal").read_bytes().count(b"\n") == 1, "its head alone"
    assert make_file(source, out, RECIPE, 1).counts.rows == 58


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
def test_a_kill_between_the_last_steps(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows have their name, the manifest is not there yet."""
    source = chats(tmp_path / "chats.jsonl", 60)
    out = tmp_path / "rows" / name

    def killed(path: Path, _data: bytes, real: Any = Path.write_bytes) -> None:
        if path.name.endswith("manifest.json"):
            raise KeyboardInterrupt
        real(path, _data)

    with monkeypatch.context() as patched:
        patched.setattr("hslib.rows.making.write_atomically", killed)
        with pytest.raises(KeyboardInterrupt):
            make_file(source, out, RECIPE, 1)
    assert out.exists()
    made = make_file(source, out, RECIPE, 1)
    assert len(Dataset(out, LIMITS).survey().rows) == made.counts.rows == 58
    assert not out.with_name(f"{name}.journal").exists()


def begun(tmp_path: Path) -> tuple[Path, Path]:
    """A job that was stopped after its first chunk."""
    source, out = chats(tmp_path / "chats.jsonl", 600), tmp_path / "rows.jsonl"

    def stop(_counts: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_file(source, out, RECIPE, 1, stop)
    return source, out


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"train_on": "last"}, "train_on: 'all' before, 'last' now"),
        ({"thinking": "drop"}, "thinking"),
        ({"max_tokens": 100}, "max_tokens"),
        ({"template": {"x": 1}}, "template"),
        ({"end_tokens": ("[EOS]",)}, "end_tokens"),
    ],
)
def test_other_parameters_are_refused_by_name(
    change: dict[str, Any], named: str, tmp_path: Path
) -> None:
    source, out = begun(tmp_path)
    with pytest.raises(JobError, match=named):
        make_file(source, out, replace(RECIPE, **change), 1)
    make_file(source, out, RECIPE, 1)
    with pytest.raises(JobError, match=named):
        make_file(source, out, replace(RECIPE, **change), 1)


def test_another_template_or_source_is_refused(tmp_path: Path) -> None:
    source, out = begun(tmp_path)
    template = tmp_path / "other.jinja"
    template.write_text((demo.model_path() / "chat_template.jinja").read_text() + " ")
    with pytest.raises(JobError, match="template_digest"):
        make_file(source, out, replace(RECIPE, chat_template=str(template)), 1)
    make_file(source, out, RECIPE, 1)
    source.write_text(source.read_text().replace("3 + 3?", "3 + 3!"))
    with pytest.raises(JobError, match="other conversations"):
        make_file(source, out, RECIPE, 1)


def test_a_source_that_changed_meanwhile_is_refused(tmp_path: Path) -> None:
    source, out = chats(tmp_path / "chats.jsonl", 600), tmp_path / "rows.jsonl"
    seen = 0

    def stop(_counts: object) -> None:
        nonlocal seen
        seen += 1
        if seen == 2:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("hslib.rows.making._COMMIT_S", 0.0)
        with pytest.raises(KeyboardInterrupt):
            make_file(source, out, RECIPE, 1, stop)
    source.write_text(source.read_text().replace("3 + 3?", "3 + 3!"))
    with pytest.raises(JobError, match="rows 0 to 255"):
        make_file(source, out, RECIPE, 1)


def test_a_finished_file_is_not_made_again(tmp_path: Path) -> None:
    source, out = chats(tmp_path / "chats.jsonl", 60), tmp_path / "rows.jsonl"
    made = make_file(source, out, RECIPE, 1)
    before = os.stat(out).st_mtime_ns
    assert make_file(source, out, RECIPE, 1) == made
    assert os.stat(out).st_mtime_ns == before
    assert not out.with_name("rows.jsonl.lock").exists()


def test_what_is_anothers_is_left_alone(tmp_path: Path) -> None:
    source = chats(tmp_path / "chats.jsonl", 60)
    with pytest.raises(JobError, match="not made from conversations"):
        make_file(source, source, RECIPE, 1)
    with pytest.raises(ParameterError, match="suffixes"):
        make_file(source, tmp_path / "rows.csv", RECIPE, 1)
    with pytest.raises(HslibError, match="absent"):
        make_file(tmp_path / "absent.jsonl", tmp_path / "rows.jsonl", RECIPE, 1)


def test_the_manifest_says_how_it_was_made(tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    made = make_file(demo.dataset_path(), out, RECIPE, workers=1)
    assert made.recipe["end_tokens"] == ["<|im_end|>"]
    assert set(made.versions) == {"transformers", "tokenizers", "jinja2"}
    assert made.counts.rejected == {}
    assert msgspec.json.decode((tmp_path / "rows.jsonl.manifest.json").read_bytes(),
                               type=RowsManifest) == made  # fmt: skip
