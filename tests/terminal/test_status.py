"""``python -m hslib status``: once, and until a job ends; in pipes and when it is interrupted."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from make.progress import progress as state
from make.waits import wait_until

from hslib.job import RunRecord
from hslib.job.progress import State
from hslib.server.launch import ServerState
from hslib.server.processes import process_mark
from hslib.terminal import main

Captured = pytest.CaptureFixture[str]


def tell(run: Path, **changes: object) -> None:
    """A job's word, replaced at once as a job does it."""
    run.mkdir(parents=True, exist_ok=True)
    (run / ".new").write_text(state(**changes).model_dump_json())
    (run / ".new").replace(run / "progress.json")


def watching(run: Path, **pipes: Any) -> "subprocess.Popen[str]":
    command = [sys.executable, "-u", "-m", "hslib", "status", str(run), "--watch", "0.1"]
    return subprocess.Popen(command, text=True, **{"stdout": subprocess.PIPE, **pipes})


def record_server(run: Path, **changes: Any) -> None:
    """A job's server that is this process, and answers nobody."""
    facts = {
        "url": "http://127.0.0.1:9",
        "pid": os.getpid(),
        "process_mark": process_mark(os.getpid()),
        "launched_at": 0.0,
        "model_path": "m",
        "boundaries": (1,),
        "dump_dir": str(run),
        "log": str(run / "server.log"),
        "budget_bytes": 1,
        "for_job": True,
    }
    server = ServerState.model_validate({**facts, **changes})
    (run / "server.json").write_text(server.model_dump_json())


DONE = {"state": "finished", "ok": 93, "failed": 0, "reasons": {}}


def test_it_names_failures_and_disk_and_exits_with_1_for_failed_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tell(tmp_path, state="finished")
    assert main(["status", str(tmp_path)]) == 1
    shown = capsys.readouterr().out
    assert "failed: 2 x rows" in shown
    assert "disk left: 36.0 GB for the store" in shown
    tell(tmp_path, **DONE)
    assert main(["status", str(tmp_path)]) == 0


def test_it_watches_a_job_of_another_process_to_its_end(tmp_path: Path) -> None:
    tell(tmp_path, updated_at=time.time())
    with watching(tmp_path) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(2)]
        assert "running" in "".join(lines)
        tell(tmp_path, **DONE, updated_at=time.time())
        rest = process.stdout.read()
        assert process.wait(20) == 0
    assert "finished" in rest
    assert "\x1b" not in rest, "a pipe is no terminal"


def test_it_waits_for_a_run_that_has_not_begun_and_says_for_what(tmp_path: Path) -> None:
    run = tmp_path / "later"
    with watching(run) as process:
        assert process.stdout is not None
        first = "".join(process.stdout.readline() for _ in range(3))
        assert f"waiting: for a job to begin in {run}" in first
        tell(run, updated_at=time.time())
        wait_until("it is seen", lambda: "running" in process.stdout.readline())
        tell(run, **DONE, updated_at=time.time())
        assert "finished" in process.stdout.read()
        assert process.wait(20) == 0


def test_a_run_that_goes_on_is_waited_for_while_its_server_starts(tmp_path: Path) -> None:
    """The last word is the one before; the server was started after it."""
    tell(tmp_path, state="interrupted", updated_at=time.time() - 60)
    (tmp_path / "server.log").write_text("Load weight begin. avail mem=19.63 GB\n")
    record_server(tmp_path, launched_at=time.time() - 5)
    with watching(tmp_path) as process:
        assert process.stdout is not None
        seen = [process.stdout.readline() for _ in range(25)]
        assert any("answers: not yet, starting for" in line for line in seen)
        assert any("loading weights" in line for line in seen)
        assert any("job: starting its server since" in line for line in seen)
        assert any("before: interrupted: run again to resume" in line for line in seen)
        assert not any("waiting: for a job" in line for line in seen)
        tell(tmp_path, **DONE, updated_at=time.time())
        process.stdout.read()
        assert process.wait(20) == 0


def test_a_server_that_ends_with_its_job_is_not_dead_and_does_not_start(
    tmp_path: Path, capsys: Captured
) -> None:
    def shown(state: State, **server: Any) -> str:
        tell(tmp_path, **{**DONE, "state": state, "message": "stopped at once"})
        record_server(tmp_path, **server)
        main(["status", str(tmp_path)])
        return capsys.readouterr().out

    ending = shown("interrupted")
    assert "server: stopping, with its job" in ending and "not yet" not in ending
    assert "ETA" not in ending and "elapsed" not in ending
    assert "job: interrupted: run again" in ending
    assert "message" not in ending
    assert "server: stopped, with its job" in shown("interrupted", process_mark="gone")
    assert "server: dead" in shown("running", process_mark="gone"), "the job lost it"
    assert "server: dead" in shown("finished", process_mark="gone", for_job=False)
    assert "not yet, starting" in shown("finished", launched_at=time.time()), "for the next job"
    assert "message: stopped at once" in shown("failed", process_mark="gone")


STARTING = """
import sys, time
from pathlib import Path
from hslib.server import run_lock
lock = run_lock(Path(sys.argv[1]), sys.argv[2])
print("held", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("before", [None, "interrupted", "finished"])
def test_a_job_that_holds_the_run_and_has_not_told_of_itself_starts(
    tmp_path: Path, capsys: Captured, before: State | None
) -> None:
    if before is not None:
        tell(tmp_path, state=before)
    words = dict.fromkeys(("job", "answers", "none"), False)
    for role in words:
        command = [sys.executable, "-c", STARTING, str(tmp_path), role]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None and process.stdout.readline() == "held\n"
            code = main(["status", str(tmp_path)])
            words[role] = "job: starting its server since" in capsys.readouterr().out
            process.kill()
        assert code == (role != "job")
    assert words == {"job": True, "answers": False, "none": False}
    tell(tmp_path, **DONE, updated_at=time.time())
    assert main(["status", str(tmp_path)]) == 0
    assert "job: finished" in capsys.readouterr().out


def test_the_shards_of_an_array_are_shown_one_by_one(tmp_path: Path, capsys: Captured) -> None:
    for number, changes in ((0, DONE), (10, {"state": "interrupted"}), (9, DONE)):
        run = tmp_path / f"shard-{number}"
        tell(run, **changes)
        record = RunRecord(
            parameters={"num_shards": 11, "shard_index": number},
            model_path="m",
            model_class="M",
            dataset="d",
            store="s",
            states="1",
            hardware="cpu",
            versions={},
        )
        (run / "run.json").write_text(record.model_dump_json())
    assert main(["status", str(tmp_path)]) == 1
    shown = capsys.readouterr().out
    heads = [line for line in shown.splitlines() if line.startswith("---")]
    assert heads[:3] == ["--- shard-0", "--- shard-9", "--- shard-10"]
    assert heads[3].startswith("--- 8 more shards have not begun")


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_ends_it_without_a_traceback(tmp_path: Path) -> None:
    tell(tmp_path, updated_at=time.time() + 600)
    with watching(tmp_path, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        assert "Traceback" not in process.stderr.read()


def test_a_reader_that_has_read_enough_ends_it_without_a_traceback(tmp_path: Path) -> None:
    tell(tmp_path, updated_at=time.time() + 600)
    with watching(tmp_path, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(20) == 0
        assert process.stderr.read() == ""
