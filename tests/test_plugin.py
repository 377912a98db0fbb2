"""The plugin's parts without a server: names, chunks, boundaries, budget, failures."""

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hs_dump import api_key, hooks
from hs_dump.boundaries import CaptureError, find_inner, parse_boundaries, set_boundaries
from hs_dump.capture import Capture, split_rows
from hs_dump.dump_file import DumpFile, bits_of
from hs_dump.names import parse_rid, place_chunk
from hs_dump.numbers import StateNumbers
from hs_dump.writer import Budget, Writer
from support import random_sample

from hslib.dataset import Sample
from hslib.dump import DumpDir, Expected, request_id, validate
from hslib.errors import DumpError

HIDDEN, BOUNDARIES = 16, (1, 3)
EXPECTED = Expected(BOUNDARIES, HIDDEN)
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


# --- boundaries ---------------------------------------------------------------------------


class Inner(torch.nn.Module):
    def __init__(self, num_layers: int = 6, flags: bool = False) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(1, 1) for _ in range(num_layers))
        self.layers_to_capture = [2, 3]  # as SGLang's own setter would leave it
        if flags:
            for index in self.layers_to_capture:
                self.layers[index]._is_layer_to_capture = True  # type: ignore[assignment]


class Causal(torch.nn.Module):
    def __init__(self, inner: Inner, on: bool = True) -> None:
        super().__init__()
        self.model, self.capture_aux_hidden_states = inner, on


class Wrapper(torch.nn.Module):
    """Kimi-K2.5: the language model is inside, next to a vision tower."""

    def __init__(self, inside: Causal) -> None:
        super().__init__()
        self.vision_tower, self.language_model = torch.nn.Linear(1, 1), inside


@pytest.mark.parametrize("flags", [False, True])
@pytest.mark.parametrize("wrap", [lambda m: m, Wrapper])
def test_boundaries_are_set_and_read_back(flags: bool, wrap: Callable[[Any], Any]) -> None:
    inner = Inner(flags=flags)
    assert set_boundaries(wrap(Causal(inner)), (1, 3, 5)) == (1, 3, 5)
    assert inner.layers_to_capture == [1, 3, 5]
    if flags:
        found = [i for i, m in enumerate(inner.layers) if m._is_layer_to_capture]
        assert found == [1, 3, 5], "a layer that SGLang had flagged must not stay"


def test_the_inner_model_is_found_behind_wrappers() -> None:
    inner = Inner()
    assert find_inner(Wrapper(Causal(inner))) is inner


@pytest.mark.parametrize("boundaries", [(0, 3), (3, 6)])
def test_boundaries_that_are_not_entered_by_a_layer_are_refused(
    boundaries: tuple[int, ...],
) -> None:
    with pytest.raises(CaptureError, match=r"Causal.*outside 1\.\.5"):
        set_boundaries(Causal(Inner()), boundaries)


def test_a_model_that_cannot_capture_is_refused_with_its_class() -> None:
    with pytest.raises(CaptureError, match="Linear"):
        find_inner(torch.nn.Linear(1, 1))
    with pytest.raises(CaptureError, match=r"Causal: aux capture is off.*--enable-return-aux"):
        set_boundaries(Causal(Inner(), on=False), (1, 3))


@pytest.mark.parametrize("text", ["", "3,1", "1,1", "a"])
def test_boundaries_of_the_environment_must_ascend(text: str) -> None:
    with pytest.raises(CaptureError):
        parse_boundaries(text)


# --- capture and writer -------------------------------------------------------------------


def make_capture(root: Path, limit: int = 1 << 20, wait_s: float = 5.0, **kw: Any) -> Capture:
    writer = Writer(root, len(BOUNDARIES) + 1, HIDDEN, Budget(root, limit, wait_s), META)
    return Capture(writer, HIDDEN, BOUNDARIES, kw.pop("dump_all", False), **kw)


META = {
    "boundaries": list(BOUNDARIES),
    "pid": os.getpid(),
    "plugin_version": "1",
    "sglang_version": "0",
}


def forward(
    *parts: tuple[str, Sample, int, int], mode: str = "EXTEND", extra_rows: int = 0
) -> tuple[Any, Any]:
    """A forward pass over ``(rid, sample, first row, rows)`` with states that name their row."""
    ids = torch.cat([torch.from_numpy(s.input_ids[a : a + n].astype("i8")) for _, s, a, n in parts])
    rows = len(ids) + extra_rows
    states = torch.arange(rows * 3 * HIDDEN).view(rows, 3 * HIDDEN).remainder(251)
    states = states.to(torch.bfloat16)
    batch = SimpleNamespace(
        rids=[rid for rid, *_ in parts],
        forward_mode=SimpleNamespace(name=mode),
        extend_prefix_lens_cpu=[a for *_, a, _n in parts],
        extend_seq_lens_cpu=[n for *_, n in parts],
        hs_dump_totals=[s.num_tokens for _, s, *_ in parts],
        input_ids=torch.cat([ids, torch.zeros(extra_rows, dtype=torch.int64)]),
    )
    aux, final = states[:, : 2 * HIDDEN].clone(), states[:, 2 * HIDDEN :].clone()
    return batch, SimpleNamespace(hidden_states=aux, last_hidden_states=final)


def received(root: Path, sample: Sample, attempt: int = 1) -> torch.Tensor:
    dumps, rid = DumpDir(root), request_id(sample, attempt)
    dumps.wait(rid, 5)
    dump = dumps.load(rid)
    validate(dump, sample, EXPECTED)
    return torch.from_numpy(dump.hidden_states.copy()).view(torch.bfloat16)


def test_a_forward_is_split_by_request_and_padding_is_left_out(tmp_path: Path) -> None:
    samples = [random_sample(i, n) for i, n in enumerate((5, 3, 5))]
    batch, output = forward(
        *((request_id(s, 1), s, 0, s.num_tokens) for s in samples), extra_rows=3
    )
    make_capture(tmp_path).take(batch, output)
    offset = 0
    for sample in samples:
        states = received(tmp_path, sample)
        part = slice(offset, offset + sample.num_tokens)
        assert torch.equal(states[:, :2].flatten(1), output.hidden_states[part])
        assert torch.equal(states[:, 2], output.last_hidden_states[part])
        offset += sample.num_tokens


def test_chunks_become_one_dump(tmp_path: Path) -> None:
    sample = random_sample(0, 10)
    capture, rid = make_capture(tmp_path), request_id(sample, 1)
    for start, count in ((0, 4), (4, 4), (8, 2)):
        assert not (tmp_path / rid).exists(), "a dump must not appear before its last row"
        capture.take(*forward((rid, sample, start, count)))
    received(tmp_path, sample)
    assert DumpDir(tmp_path).load(rid).meta.chunks == ((0, 4), (4, 4), (8, 2))


def test_a_retracted_request_is_taken_from_its_second_prefill(tmp_path: Path) -> None:
    sample = random_sample(0, 10)
    capture, rid = make_capture(tmp_path), request_id(sample, 1)
    for start, count in ((0, 6), (0, 4), (4, 6)):
        capture.take(*forward((rid, sample, start, count)))
    received(tmp_path, sample)
    assert DumpDir(tmp_path).load(rid).meta.chunks == ((0, 4), (4, 6))


def server_error(root: Path, sample: Sample) -> str:
    with pytest.raises(DumpError) as caught:
        DumpDir(root).wait(request_id(sample, 1), 5)
    assert not list(root.glob(".tmp-*")), "a failed dump must leave nothing behind"
    return caught.value.message


def test_a_prefix_cache_hit_is_an_error_and_not_a_short_dump(tmp_path: Path) -> None:
    sample = random_sample(0, 10)
    make_capture(tmp_path).take(*forward((request_id(sample, 1), sample, 4, 6)))
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
    capture.take(*forward(*parts))
    received(tmp_path, mine)
    assert DumpDir(tmp_path).names() == [request_id(mine, 1)]


def test_with_dump_all_foreign_requests_get_the_counters_names(tmp_path: Path) -> None:
    capture, sample = make_capture(tmp_path, dump_all=True), random_sample(0, 6)
    capture.take(*forward(("aa", sample, 0, 4), ("bb", sample, 0, 6), ("../x", sample, 0, 6)))
    capture.take(*forward(("aa", sample, 4, 2)))
    dumps = DumpDir(tmp_path)
    for name in ("req_0", "req_1"):
        dumps.wait(name, 5)
        assert dumps.load(name).input_ids.tolist() == sample.input_ids.tolist()
    assert dumps.names() == ["req_0", "req_1"]


def test_replicas_never_share_a_counters_name(tmp_path: Path) -> None:
    sample = random_sample(0, 2)
    for rank in range(2):
        capture = make_capture(tmp_path, dump_all=True, dp_rank=rank, replicas=2)
        capture.take(*forward(("a", sample, 0, 2)))
        capture.take(*forward(("b", sample, 0, 2)))
    for name in ("req_0", "req_1", "req_2", "req_3"):
        DumpDir(tmp_path).wait(name, 5)


def test_an_exception_becomes_the_requests_error_and_the_next_one_works(tmp_path: Path) -> None:
    capture, sample, other = make_capture(tmp_path), random_sample(0, 3), random_sample(1, 3)
    batch, output = forward((request_id(sample, 1), sample, 0, 3))
    output.last_hidden_states = output.last_hidden_states[:, :4]
    with pytest.raises(RuntimeError):
        capture.take(batch, output)
    hooks._capture = capture
    try:
        hooks._on_forward(SimpleNamespace(logits_output=output), None, batch)
    finally:
        hooks._capture = None
    assert "states of shape [3, 4]" in server_error(tmp_path, sample)
    capture.take(*forward((request_id(other, 1), other, 0, 3)))
    received(tmp_path, other)


def test_a_forward_without_states_is_an_error_of_its_requests(tmp_path: Path) -> None:
    capture, sample = make_capture(tmp_path), random_sample(0, 3)
    batch, _ = forward((request_id(sample, 1), sample, 0, 3))
    with pytest.raises(RuntimeError, match="aux capture is off"):
        capture.take(batch, SimpleNamespace(hidden_states=None, last_hidden_states=None))


def test_a_full_budget_holds_the_forward_until_a_dump_is_delivered(tmp_path: Path) -> None:
    first, second = random_sample(0, 50), random_sample(1, 50)
    capture = make_capture(tmp_path, limit=7_000, wait_s=30)
    capture.take(*forward((request_id(first, 1), first, 0, 50)))
    received(tmp_path, first)
    threading.Timer(0.3, lambda: DumpDir(tmp_path).remove(request_id(first, 1))).start()
    started = time.monotonic()
    capture.take(*forward((request_id(second, 1), second, 0, 50)))
    assert time.monotonic() - started >= 0.25, "the forward did not wait"
    received(tmp_path, second)


def test_a_budget_that_nobody_frees_is_an_error_and_not_a_hang(tmp_path: Path) -> None:
    first, second = random_sample(0, 50), random_sample(1, 50)
    capture = make_capture(tmp_path, limit=7_000, wait_s=0.2)
    capture.take(*forward((request_id(first, 1), first, 0, 50)))
    capture.take(*forward((request_id(second, 1), second, 0, 50)))
    assert "lie undelivered" in server_error(tmp_path, second)


def test_a_row_larger_than_the_whole_budget_is_an_error_at_once(tmp_path: Path) -> None:
    sample = random_sample(0, 500)
    capture = make_capture(tmp_path, limit=7_000)
    capture.take(*forward((request_id(sample, 1), sample, 0, 500)))
    assert "SGLANG_HS_DUMP_BUDGET_BYTES" in server_error(tmp_path, sample)


def test_a_failed_dump_gives_its_budget_back(tmp_path: Path) -> None:
    capture = make_capture(tmp_path, limit=7_000, wait_s=0.2)
    for index in range(5):
        sample = random_sample(index, 50)
        capture.take(*forward((request_id(sample, 1), sample, 0, 20)))
        capture.take(*forward((request_id(sample, 1), sample, 30, 20)))
        assert "never passed" in server_error(tmp_path, sample)


def test_a_new_attempt_frees_what_an_aborted_one_held(tmp_path: Path) -> None:
    capture, sample = make_capture(tmp_path, limit=7_000, wait_s=2), random_sample(0, 50)
    capture.take(*forward((request_id(sample, 1), sample, 0, 20)))
    capture.take(*forward((request_id(sample, 2), sample, 0, 50)))
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
        capture.take(*forward((request_id(sample, 1), sample, 0, 3)))
        assert "No space left" in server_error(tmp_path, sample)
    capture.take(*forward((request_id(other, 1), other, 0, 3)))
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
    file.append(torch.tensor([1, 2]), states, states)
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
        aux = states[part, :-1].reshape(-1, 2 * HIDDEN)
        file.append(torch.from_numpy(sample.input_ids[part]), aux, states[part, -1])
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
    make_capture(tmp_path).take(*forward((rid, sample, 0, 5)))
    with pytest.raises(DumpError, match="the id says 6 tokens, the request has 5"):
        DumpDir(tmp_path).wait(rid, 5)


def test_a_forward_with_fewer_states_than_rows_is_an_error(tmp_path: Path) -> None:
    sample = random_sample(0, 5)
    batch, output = forward((request_id(sample, 1), sample, 0, 5))
    output.hidden_states = output.hidden_states[:4]
    with pytest.raises(RuntimeError, match=r"states of shape \[4, 32\], needed \[5, 32\]"):
        make_capture(tmp_path).take(batch, output)


def test_a_forward_of_many_undeliverable_requests_waits_once(tmp_path: Path) -> None:
    """SGLang's watchdog ends a server whose scheduler stands still for minutes."""
    first = random_sample(0, 50)
    capture = make_capture(tmp_path, limit=7_000, wait_s=0.5)
    capture.take(*forward((request_id(first, 1), first, 0, 50)))
    others = [random_sample(i, 50) for i in range(1, 6)]
    started = time.monotonic()
    capture.take(*forward(*((request_id(s, 1), s, 0, 50) for s in others)))
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
        capture.take(*forward((request_id(sample, 1), sample, 0, 5)))
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


def test_only_rank_0_of_tensor_parallel_ranks_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_HS_DUMP_DIR", str(tmp_path))
    monkeypatch.setenv("SGLANG_HS_DUMP_BOUNDARIES", "1,3")
    config = SimpleNamespace(hidden_size=HIDDEN, model_path="m", num_hidden_layers=6, vocab_size=9)
    for rank in (1, 0):
        inner = Inner()
        runner = SimpleNamespace(
            model=Causal(inner), is_draft_worker=False, dtype=torch.bfloat16, model_config=config
        )
        parallel = SimpleNamespace(tp_rank=rank, dp_rank=None, dp_size=1, **WHOLE)
        monkeypatch.setattr("sglang.srt.runtime_context.get_parallel", lambda p=parallel: p)
        monkeypatch.setattr(hooks, "_capture", None)
        hooks._on_backends(None, runner)
        assert (hooks._capture is not None) == (rank == 0)
        assert (tmp_path / "plugin.json").exists() == (rank == 0)
        assert inner.layers_to_capture == [1, 3], "every rank's model must capture alike"


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
    shown = api_key._hide({"api_key": "secret", "admin_api_key": None, "port": 1})
    assert shown == {"api_key": "***", "admin_api_key": None, "port": 1}


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


def test_any_rank_that_refuses_says_so_where_the_launcher_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks start side by side, and the first that ends takes the others with it."""
    monkeypatch.setenv("SGLANG_HS_DUMP_DIR", str(tmp_path))
    monkeypatch.setenv("SGLANG_HS_DUMP_BOUNDARIES", "1,3")
    config = SimpleNamespace(hidden_size=HIDDEN, model_path="m", num_hidden_layers=6, vocab_size=9)
    runner = SimpleNamespace(
        model=Causal(Inner()), is_draft_worker=False, dtype=torch.bfloat16, model_config=config
    )
    split = {**WHOLE, "attn_dp_size": 2}
    parallel = SimpleNamespace(tp_rank=1, dp_rank=1, dp_size=1, **split)
    monkeypatch.setattr("sglang.srt.runtime_context.get_parallel", lambda: parallel)
    with pytest.raises(CaptureError):
        hooks._on_backends(None, runner)
    said = json.loads((tmp_path / "plugin.json").read_text())
    assert "attention data parallelism" in said["problems"][0]


def test_other_dtypes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_HS_DUMP_BOUNDARIES", "1,3")
    runner = SimpleNamespace(model=Causal(Inner()), dtype=torch.float16)
    with pytest.raises(CaptureError, match="--dtype bfloat16"):
        hooks.prepare_model(runner, SimpleNamespace(**WHOLE))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_dump_directory_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "d").mkdir()
    os.chown(tmp_path / "d", 12345, -1)
    monkeypatch.setenv("SGLANG_HS_DUMP_DIR", str(tmp_path / "d"))
    with pytest.raises(CaptureError, match="belongs to user 12345"):
        hooks.dump_root()
