"""The plugin's parts without a server: names, chunks, budget, failures."""

import json
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hs_dump import hooks, server_flags
from hs_dump.capture import split_rows
from hs_dump.dump_file import DumpFile
from hs_dump.names import parse_rid, place_chunk
from hs_dump.numbers import StateNumbers, bits_of
from hs_dump.stack import CaptureError
from hs_dump.writer import Budget
from make.passes import EXPECTED, HIDDEN, META, forward, make_capture, received, run, server_error
from make.rows import random_sample

from hslib.errors import DumpError
from hslib.server.dumps import DumpDir, request_id
from hslib.server.validate import validate

WHOLE = {field: harmless for field, (harmless, _) in hooks._SPLITS.items()}

# --- names and chunks ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "rid",
    ["../../evil", "/etc", ".hidden", "..", "a/b", "a b", "", "x" * 201, "\u00fc", "a\n", 7],
)
def test_an_id_that_is_not_a_plain_name_is_never_a_path(rid: object) -> None:
    assert parse_rid(rid) is None


def test_the_kits_ids_say_how_many_tokens_the_request_has() -> None:
    sample = random_sample(12, 34)
    name = parse_rid(request_id(sample, 5))
    assert name is not None
    assert name.claimed_tokens == 34
    assert name.sample == parse_rid(request_id(sample, 6)).sample  # type: ignore[union-attr]
    foreign = parse_rid("0f3c")
    assert foreign is not None
    assert foreign.claimed_tokens is None


@pytest.mark.parametrize(
    ("next_row", "total", "start", "count", "action"),
    [
        (None, 200, 0, 64, "append"),  # a first chunk
        (64, 200, 64, 64, "append"),  # the next one
        (192, 200, 192, 8, "append"),  # the last one
        (64, 200, 0, 64, "restart"),  # prefilled again after a retraction
        (None, 200, 64, 136, "fail"),  # a prefix-cache hit
        (64, 200, 128, 72, "fail"),  # a lost chunk
        (64, 200, 32, 64, "fail"),  # rows again, from the middle
        (None, 200, 0, 201, "fail"),  # more rows than tokens
        (200, 200, 200, 1, "ignore"),  # a decode step in a mixed forward
    ],
)
def test_each_chunk_goes_where_it_belongs(
    next_row: int | None, total: int, start: int, count: int, action: str
) -> None:
    place = place_chunk(next_row, total, start, count)
    assert place.action == action
    assert bool(place.reason) == (action == "fail")


# --- capture and writer -------------------------------------------------------------------


def test_a_forward_is_split_by_request_and_padding_is_left_out(tmp_path: Path) -> None:
    samples = [random_sample(i, n) for i, n in enumerate((5, 3, 5))]
    batch, output = forward(
        *((request_id(s, 1), s, 0, s.num_tokens) for s in samples), extra_rows=3
    )
    run(make_capture(tmp_path), batch, output)
    offset = 0
    for sample in samples:
        states = received(tmp_path, sample)
        part = slice(offset, offset + sample.num_tokens)
        for number, made in enumerate(output.states):
            assert torch.equal(states[:, number], made[part])
        offset += sample.num_tokens


def test_chunks_become_one_dump(tmp_path: Path) -> None:
    sample = random_sample(0, 10)
    capture, rid = make_capture(tmp_path), request_id(sample, 1)
    for start, count in ((0, 4), (4, 4), (8, 2)):
        assert not (tmp_path / rid).exists(), "a dump must not appear before its last row"
        run(capture, *forward((rid, sample, start, count)))
    received(tmp_path, sample)
    assert DumpDir(tmp_path).load(rid).meta.chunks == ((0, 4), (4, 4), (8, 2))


def test_a_retracted_request_is_taken_from_its_second_prefill(tmp_path: Path) -> None:
    sample = random_sample(0, 10)
    capture, rid = make_capture(tmp_path), request_id(sample, 1)
    for start, count in ((0, 6), (0, 4), (4, 6)):
        run(capture, *forward((rid, sample, start, count)))
    received(tmp_path, sample)
    assert DumpDir(tmp_path).load(rid).meta.chunks == ((0, 4), (4, 6))


def test_a_prefix_cache_hit_is_an_error_and_not_a_short_dump(tmp_path: Path) -> None:
    sample = random_sample(0, 10)
    run(make_capture(tmp_path), *forward((request_id(sample, 1), sample, 4, 6)))
    assert "prefix-cache hit" in server_error(tmp_path, sample)


def test_decode_and_dummy_forwards_hold_no_rows() -> None:
    sample = random_sample(0, 4)
    assert list(split_rows(forward(("hs", sample, 0, 4), mode="DECODE")[0])) == []
    assert list(split_rows(SimpleNamespace(rids=None))) == []


def test_foreign_requests_are_not_dumped(tmp_path: Path) -> None:
    capture, sample = make_capture(tmp_path), random_sample(0, 3)
    mine = random_sample(1, 4)
    parts = [
        ("0123abc", sample, 0, 3),
        ("../../evil", sample, 0, 3),
        (request_id(mine, 1), mine, 0, 4),
    ]
    run(capture, *forward(*parts))
    received(tmp_path, mine)
    assert DumpDir(tmp_path).names() == [request_id(mine, 1)]


def test_with_dump_all_foreign_requests_get_the_counters_names(tmp_path: Path) -> None:
    capture, sample = make_capture(tmp_path, dump_all=True), random_sample(0, 6)
    run(capture, *forward(("aa", sample, 0, 4), ("bb", sample, 0, 6), ("../x", sample, 0, 6)))
    run(capture, *forward(("aa", sample, 4, 2)))
    dumps = DumpDir(tmp_path)
    for name in ("req_0", "req_1"):
        dumps.wait(name, 5)
        assert dumps.load(name).input_ids.tolist() == sample.input_ids.tolist()
    assert dumps.names() == ["req_0", "req_1"]


def test_replicas_never_share_a_counters_name(tmp_path: Path) -> None:
    sample = random_sample(0, 2)
    for rank in range(2):
        capture = make_capture(tmp_path, dump_all=True, dp_rank=rank, replicas=2)
        run(capture, *forward(("a", sample, 0, 2)))
        run(capture, *forward(("b", sample, 0, 2)))
    for name in ("req_0", "req_1", "req_2", "req_3"):
        DumpDir(tmp_path).wait(name, 5)


def test_an_exception_becomes_the_requests_error_and_the_next_one_works(tmp_path: Path) -> None:
    capture, sample, other = make_capture(tmp_path), random_sample(0, 3), random_sample(1, 3)
    batch, output = forward((request_id(sample, 1), sample, 0, 3))
    output.states = [state[:, :4] for state in output.states]
    capture._recorder.made = output.states  # type: ignore[attr-defined]
    hooks._capture, hooks._recorder = capture, capture._recorder
    runner = SimpleNamespace(is_draft_worker=False)
    try:
        given = hooks._around_forward(lambda *_args: output, runner, batch)
        assert given is output, "the server's own result is untouched"
        assert not capture._recorder.seen.active, "the hooks are off again"
        assert "ValueError" in server_error(tmp_path, sample)
        batch, output = forward((request_id(other, 1), other, 0, 3))
        capture._recorder.made = output.states  # type: ignore[attr-defined]
        hooks._around_forward(lambda *_args: output, runner, batch)
        received(tmp_path, other)
    finally:
        hooks._capture = hooks._recorder = None


def test_a_forward_that_raises_leaves_the_hooks_off(tmp_path: Path) -> None:
    capture, sample = make_capture(tmp_path), random_sample(0, 3)
    batch, _ = forward((request_id(sample, 1), sample, 0, 3))
    hooks._capture, hooks._recorder = capture, capture._recorder

    def broken(*_args: object) -> None:
        assert capture._recorder.seen.active
        raise RuntimeError("out of memory")

    try:
        with pytest.raises(RuntimeError, match="out of memory"):
            hooks._around_forward(broken, SimpleNamespace(is_draft_worker=False), batch)
        assert not capture._recorder.seen.active
    finally:
        hooks._capture = hooks._recorder = None


def test_a_full_budget_holds_the_forward_until_a_dump_is_delivered(tmp_path: Path) -> None:
    first, second = random_sample(0, 50), random_sample(1, 50)
    capture = make_capture(tmp_path, limit=7_000, wait_s=30)
    run(capture, *forward((request_id(first, 1), first, 0, 50)))
    received(tmp_path, first)
    threading.Timer(0.3, lambda: DumpDir(tmp_path).remove(request_id(first, 1))).start()
    started = time.monotonic()
    run(capture, *forward((request_id(second, 1), second, 0, 50)))
    assert time.monotonic() - started >= 0.25, "the forward did not wait"
    received(tmp_path, second)


def test_a_budget_that_nobody_frees_is_an_error_and_not_a_hang(tmp_path: Path) -> None:
    first, second = random_sample(0, 50), random_sample(1, 50)
    capture = make_capture(tmp_path, limit=7_000, wait_s=0.2)
    run(capture, *forward((request_id(first, 1), first, 0, 50)))
    run(capture, *forward((request_id(second, 1), second, 0, 50)))
    assert "lie undelivered" in server_error(tmp_path, second)


def test_a_row_larger_than_the_whole_budget_is_an_error_at_once(tmp_path: Path) -> None:
    sample = random_sample(0, 500)
    capture = make_capture(tmp_path, limit=7_000)
    run(capture, *forward((request_id(sample, 1), sample, 0, 500)))
    assert "SGLANG_HS_DUMP_BUDGET_BYTES" in server_error(tmp_path, sample)


def test_a_failed_dump_gives_its_budget_back(tmp_path: Path) -> None:
    capture = make_capture(tmp_path, limit=7_000, wait_s=0.2)
    for index in range(5):
        sample = random_sample(index, 50)
        run(capture, *forward((request_id(sample, 1), sample, 0, 20)))
        run(capture, *forward((request_id(sample, 1), sample, 30, 20)))
        assert "never passed" in server_error(tmp_path, sample)


def test_a_new_attempt_frees_what_an_aborted_one_held(tmp_path: Path) -> None:
    capture, sample = make_capture(tmp_path, limit=7_000, wait_s=2), random_sample(0, 50)
    run(capture, *forward((request_id(sample, 1), sample, 0, 20)))
    run(capture, *forward((request_id(sample, 2), sample, 0, 50)))
    with pytest.raises(DumpError):
        DumpDir(tmp_path).wait(request_id(sample, 1), 0.1)
    received(tmp_path, sample, attempt=2)


def test_a_file_system_without_room_is_an_error_of_that_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_args: object) -> None:
        raise OSError(28, "No space left on device")

    capture, sample, other = make_capture(tmp_path), random_sample(0, 3), random_sample(1, 3)
    with monkeypatch.context() as patch:
        patch.setattr("hs_dump.dump_file.os.write", full)
        run(capture, *forward((request_id(sample, 1), sample, 0, 3)))
        assert "No space left" in server_error(tmp_path, sample)
    run(capture, *forward((request_id(other, 1), other, 0, 3)))
    received(tmp_path, other)


def numbers_of(states: torch.Tensor, block_rows: int = 16) -> list[dict[str, Any]]:
    numbers = StateNumbers(states.shape[1])
    for start in range(0, len(states), block_rows):
        numbers.add(bits_of(states)[start : start + block_rows])
    return numbers.to_list()


def test_numbers_of_layers_that_are_broken_say_so() -> None:
    states = torch.randn(40, 3, HIDDEN).to(torch.bfloat16)
    states[39, 0, 1], states[:, 1] = float("nan"), 0
    nan, zero, good = numbers_of(states)
    assert (nan["finite"], nan["absmax"]) == (False, None)
    assert (zero["zero_share"], zero["absmax"], zero["mean_l2"]) == (1.0, 0.0, 0.0)
    assert good["finite"]
    assert good["zero_share"] == 0.0
    json.dumps([nan, zero, good], allow_nan=False)


def test_a_dump_replaces_a_leftover_of_its_name(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/stale").touch()
    file = DumpFile(tmp_path, "d", (2, 2, 4))
    states = torch.ones(2, 4, dtype=torch.bfloat16)
    file.append(torch.tensor([1, 2]), [states, states])
    file.publish(dict(META))
    assert sorted(p.name for p in (tmp_path / "d").iterdir()) == [
        "done",
        "hidden_states.safetensors",
        "meta.json",
    ]


def test_rows_are_written_in_order_whatever_the_blocks_and_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hs_dump.dump_file._BLOCK_BYTES", 3 * 2 * HIDDEN * 3 * 2)
    sample, states = random_sample(0, 75), torch.randn(75, 3, HIDDEN).to(torch.bfloat16)
    file = DumpFile(tmp_path, "d", (75, 3, HIDDEN))
    for part in (slice(0, 1), slice(1, 40), slice(40, 75)):
        file.append(torch.from_numpy(sample.input_ids[part]), list(states[part].unbind(1)))
        file.witnessed(1, np.full(3, 0.002))
    file.publish({**META, "rid": "d"})
    dump = DumpDir(tmp_path).load("d")
    assert (dump.hidden_states == bits_of(states)).all()
    assert dump.meta.chunks == ((0, 1), (1, 39), (40, 35))
    validate(dump, sample, EXPECTED)


def test_numbers_of_layers_are_those_of_the_states() -> None:
    """More rows than a block, against plain float64."""
    states = torch.randn(75, 3, HIDDEN).to(torch.bfloat16)
    states[:, 2, :3] = 0
    for number, layer in enumerate(numbers_of(states)):
        state = states[:, number].double()
        assert layer["absmax"] == state.abs().max()
        assert layer["mean_l2"] == pytest.approx(float(state.norm(dim=-1).mean()), rel=1e-5)
        assert layer["zero_share"] == pytest.approx(float((state == 0).double().mean()))


def test_an_id_that_claims_another_length_is_an_error(tmp_path: Path) -> None:
    sample, longer = random_sample(0, 5), random_sample(0, 6)
    rid = request_id(longer, 1)
    run(make_capture(tmp_path), *forward((rid, sample, 0, 5)))
    with pytest.raises(DumpError, match="the id says 6 tokens, the request has 5"):
        DumpDir(tmp_path).wait(rid, 5)


def test_a_forward_of_many_undeliverable_requests_waits_once(tmp_path: Path) -> None:
    """SGLang's watchdog ends a server whose scheduler stands still for minutes."""
    first = random_sample(0, 50)
    capture = make_capture(tmp_path, limit=7_000, wait_s=0.5)
    run(capture, *forward((request_id(first, 1), first, 0, 50)))
    others = [random_sample(i, 50) for i in range(1, 6)]
    started = time.monotonic()
    run(capture, *forward(*((request_id(s, 1), s, 0, 50) for s in others)))
    assert time.monotonic() - started < 1.0
    for sample in others:
        with pytest.raises(DumpError, match="lie undelivered"):
            DumpDir(tmp_path).wait(request_id(sample, 1), 5)


def test_many_undelivered_dumps_do_not_slow_the_forward_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request may cost a few looks at the directory, not one for each dump that lies there."""
    looks = 0

    def exists(_path: Path) -> bool:
        nonlocal looks
        looks += 1
        return True

    budget = Budget(tmp_path, limit_bytes=10**9, wait_s=1)
    monkeypatch.setattr("hs_dump.writer.Path.exists", exists)
    for number in range(2000):
        assert budget.reserve(f"d{number}", 100, budget.deadline()) == ""
        budget.published(f"d{number}")
    assert 0 < looks < 3 * 2000
    monkeypatch.setattr("hs_dump.writer.Path.exists", lambda _path: False)
    assert budget.reserve("last", 10**9, budget.deadline()) == "", "delivered dumps hold nothing"


def test_a_dump_that_cannot_be_finished_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_args: object) -> None:
        raise OSError(28, "No space left on device")

    capture, sample = make_capture(tmp_path), random_sample(0, 5)
    with monkeypatch.context() as patch:
        patch.setattr("hs_dump.numbers.StateNumbers.to_list", full)
        run(capture, *forward((request_id(sample, 1), sample, 0, 5)))
        assert "No space left" in server_error(tmp_path, sample)


# --- hooks --------------------------------------------------------------------------------


def test_a_dump_directory_that_is_a_link_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.setenv("SGLANG_HS_DUMP_DIR", str(tmp_path / "link"))
    with pytest.raises(CaptureError, match="is a link"):
        hooks.dump_root()


def test_the_dump_directory_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "d").mkdir(mode=0o755)
    monkeypatch.setenv("SGLANG_HS_DUMP_DIR", str(tmp_path / "d"))
    assert hooks.dump_root().stat().st_mode & 0o777 == 0o700


def test_the_seams_are_there_in_the_pinned_sglang(monkeypatch: pytest.MonkeyPatch) -> None:
    assert hooks.missing_seams() == []
    monkeypatch.setitem(hooks._SEAMS, "sglang.srt.managers.scheduler.Scheduler.no_such", ())
    monkeypatch.setitem(hooks._SEAMS, f"{hooks._RUNNER}.forward", ("self", "no_such"))
    absent, parameter, version = hooks.missing_seams()
    assert "forward has no parameter no_such" in absent + parameter
    assert "Scheduler.no_such is not there" in absent + parameter
    assert "0.5.23" in version


def test_unfinished_dumps_of_dead_processes_are_removed(tmp_path: Path) -> None:
    for pid in (2**22 + 1, os.getpid()):
        (tmp_path / f".tmp-{pid}-hs-1").mkdir()
    hooks.remove_leftovers(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == [f".tmp-{os.getpid()}-hs-1"]


def test_the_api_key_is_masked_in_sglangs_own_log_line() -> None:
    shown = server_flags._hide({"api_key": "secret", "admin_api_key": None, "port": 1})
    assert shown == {"api_key": "***", "admin_api_key": None, "port": 1}


def test_a_server_started_by_hand_gets_the_flags_that_capture_needs() -> None:
    (given,), _ = server_flags._add_needed(["--model-path", "m", "--disable-radix-cache"])
    assert given == ["--model-path", "m", "--disable-radix-cache", "--disable-prefill-cuda-graph"]


@pytest.mark.parametrize(
    ("field", "value", "setting"),
    [
        ("attn_dp_size", 2, "attention data parallelism"),
        ("attn_cp_size", 2, "context parallelism"),
        ("pp_size", 2, "pipeline parallelism"),
        ("enable_layernorm_sp", True, "sequence parallelism"),
        ("enable_attn_tp_input_scattered", True, "--enable-attn-tp-input-scattered"),
    ],
)
def test_what_splits_the_states_over_ranks_is_refused_by_name(
    field: str, value: object, setting: str
) -> None:
    hooks.refuse_split_states("Causal", SimpleNamespace(**WHOLE))
    parallel = SimpleNamespace(**{**WHOLE, field: value})
    with pytest.raises(CaptureError, match=f"Causal: {setting}"):
        hooks.refuse_split_states("Causal", parallel)


def test_the_settings_that_split_states_are_there_in_the_pinned_sglang() -> None:
    from sglang.srt.server_args import ServerArgs

    assert set(hooks._SPLITS) <= set(ServerArgs.__annotations__)


def runner_of(dtype: torch.dtype = torch.bfloat16) -> Any:
    config = SimpleNamespace(hidden_size=HIDDEN, model_path="m", num_hidden_layers=6, vocab_size=9)
    return SimpleNamespace(
        model=torch.nn.Linear(1, 1),
        is_draft_worker=False,
        dtype=dtype,
        device="cpu",
        model_config=config,
    )


def test_any_rank_that_refuses_says_so_where_the_launcher_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks start side by side, and the first that ends takes the others with it."""
    monkeypatch.setenv("SGLANG_HS_DUMP_DIR", str(tmp_path))
    split = {**WHOLE, "attn_dp_size": 2}
    parallel = SimpleNamespace(tp_rank=1, dp_rank=1, dp_size=1, **split)
    monkeypatch.setattr("sglang.srt.runtime_context.get_parallel", lambda: parallel)
    with pytest.raises(CaptureError):
        hooks._on_backends(None, runner_of())
    said = json.loads((tmp_path / "plugin.json").read_text())
    assert "attention data parallelism" in said["problems"][0]


def test_other_dtypes_are_refused() -> None:
    with pytest.raises(CaptureError, match="--dtype bfloat16"):
        hooks.make_recorder(runner_of(torch.float16), SimpleNamespace(**WHOLE), True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_dump_directory_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "d").mkdir()
    os.chown(tmp_path / "d", 12345, -1)
    monkeypatch.setenv("SGLANG_HS_DUMP_DIR", str(tmp_path / "d"))
    with pytest.raises(CaptureError, match="belongs to user 12345"):
        hooks.dump_root()
