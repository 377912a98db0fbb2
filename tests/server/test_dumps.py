"""The dump directory, and the gate that every dump must pass: each check with its control."""

import json
import os
import threading
import time
from pathlib import Path

import pytest
import safetensors.torch
import torch
from make.dumps import BOUNDARIES, EXPECTED, put_dump, rehash, write_dump
from make.rows import random_sample

from hslib.dataset import Sample
from hslib.errors import DumpError, JobError
from hslib.files import Lock
from hslib.server.dumps import DumpDir, request_id
from hslib.server.plugin_info import Expected
from hslib.server.validate import validate

SAMPLE = random_sample(7, 12)


@pytest.fixture
def dumps(tmp_path: Path) -> DumpDir:
    write_dump(tmp_path, "d", SAMPLE)
    return DumpDir(tmp_path)


def test_the_plugins_file_is_read_by_the_safetensors_library(dumps: DumpDir) -> None:
    loaded = safetensors.torch.load_file(dumps.root / "d/hidden_states.safetensors")
    assert loaded["input_ids"].tolist() == SAMPLE.input_ids.tolist()
    assert loaded["hidden_states"].shape == (12, 4, 16)
    assert loaded["hidden_states"].dtype == torch.bfloat16


def test_a_right_dump_passes(dumps: DumpDir) -> None:
    states_hash = validate(dumps.load("d"), SAMPLE, EXPECTED)
    assert states_hash.hexdigest() == dumps.load("d").meta.checksums["hidden_states"]


def refused(dumps: DumpDir, check: str, sample: Sample = SAMPLE, want: Expected = EXPECTED) -> None:
    with pytest.raises(DumpError) as caught:
        validate(dumps.load("d"), sample, want)
    assert caught.value.fields["check"].startswith(check), caught.value
    assert caught.value.fields["index"] == sample.index
    assert {"expected", "got", "path"} <= set(caught.value.fields)


def test_equal_count_and_other_ids_are_refused(dumps: DumpDir) -> None:
    ids = SAMPLE.input_ids.copy()
    ids[5] += 1
    refused(dumps, "input_ids at 5", Sample(7, "x", ids, SAMPLE.loss_mask))


@pytest.mark.parametrize("num_tokens", [11, 13])
def test_more_or_fewer_rows_are_refused(dumps: DumpDir, num_tokens: int) -> None:
    refused(dumps, "rows", random_sample(7, num_tokens))


def test_other_boundaries_are_refused(dumps: DumpDir) -> None:
    refused(dumps, "boundaries", want=Expected((1, 3, 4), 16))


def test_swapped_layers_are_refused_by_their_boundaries(tmp_path: Path) -> None:
    write_dump(tmp_path, "d", SAMPLE, boundaries=[3, 1, 5])
    refused(DumpDir(tmp_path), "boundaries")


def test_another_hidden_size_or_a_missing_state_is_refused(dumps: DumpDir) -> None:
    refused(dumps, "shape", want=Expected(BOUNDARIES, 32))
    put_dump(dumps.root, "d", SAMPLE.input_ids, torch.randn(12, 3, 16).to(torch.bfloat16))
    refused(dumps, "shape")


def test_another_dtype_is_refused(tmp_path: Path) -> None:
    write_dump(tmp_path, "d", SAMPLE)
    path = tmp_path / "d/meta.json"
    path.write_text(path.read_text().replace('"bfloat16"', '"float16"'))
    refused(DumpDir(tmp_path), "dtype")


def test_a_flipped_bit_is_refused_by_the_checksum(dumps: DumpDir) -> None:
    path = dumps.root / "d/hidden_states.safetensors"
    data = bytearray(path.read_bytes())
    data[500] ^= 1
    path.write_bytes(data)
    refused(dumps, "checksum")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_one_value_that_is_not_finite_is_refused_with_its_row_and_layer(
    tmp_path: Path, value: float
) -> None:
    states = torch.randn(12, 4, 16).to(torch.bfloat16)
    states[9, 2, 3] = value
    put_dump(tmp_path, "d", SAMPLE.input_ids, states)
    with pytest.raises(DumpError, match=r"boundary 5.*row 9"):
        validate(DumpDir(tmp_path).load("d"), SAMPLE, EXPECTED)


@pytest.mark.parametrize(("value", "check"), [(0.0, "not all zero (final)"), (1.5, "not constant")])
def test_a_layer_of_one_value_is_refused(tmp_path: Path, value: float, check: str) -> None:
    states = torch.randn(12, 4, 16).to(torch.bfloat16)
    states[:, 3] = value
    put_dump(tmp_path, "d", SAMPLE.input_ids, states)
    refused(DumpDir(tmp_path), check)


@pytest.mark.parametrize("error", [0.021, 0.2, 1e9])
def test_a_state_that_its_layer_did_not_read_is_refused(tmp_path: Path, error: float) -> None:
    states = torch.randn(12, 4, 16).to(torch.bfloat16)
    put_dump(tmp_path, "d", SAMPLE.input_ids, states, witness=error)
    refused(DumpDir(tmp_path), "witness (boundary 1)")


def test_a_state_without_a_witness_is_refused_unless_that_is_accepted(tmp_path: Path) -> None:
    states = torch.randn(12, 4, 16).to(torch.bfloat16)
    put_dump(tmp_path, "d", SAMPLE.input_ids, states, witness=float("nan"))
    refused(DumpDir(tmp_path), "witness (boundary 1)")
    limits = (None, None, None, 0.02)
    refused(DumpDir(tmp_path), "witness (final)", want=Expected(BOUNDARIES, 16, tolerances=limits))
    accepted = Expected(BOUNDARIES, 16, tolerances=(None,) * 4)
    validate(DumpDir(tmp_path).load("d"), SAMPLE, accepted)


def test_layers_without_the_final_state_are_a_dump_of_their_own_kind(tmp_path: Path) -> None:
    states = torch.randn(12, 3, 16).to(torch.bfloat16)
    put_dump(tmp_path, "d", SAMPLE.input_ids, states)
    refused(DumpDir(tmp_path), "shape")
    expected = Expected(BOUNDARIES, 16, stores_final=False)
    validate(DumpDir(tmp_path).load("d"), SAMPLE, expected)
    refused(DumpDir(tmp_path), "boundaries", want=Expected((1, 3), 16))


def test_equal_tokens_may_have_equal_states(tmp_path: Path) -> None:
    """A row of one repeated id has one state throughout: that is right, not constant."""
    states = torch.randn(1, 4, 16).to(torch.bfloat16).expand(12, 4, 16)
    put_dump(tmp_path, "d", SAMPLE.input_ids, states)
    validate(DumpDir(tmp_path).load("d"), SAMPLE, EXPECTED)


@pytest.mark.parametrize("size", [0, 10, 700, -4])
def test_a_cut_file_is_refused_though_done_is_there(dumps: DumpDir, size: int) -> None:
    path = dumps.root / "d/hidden_states.safetensors"
    os.truncate(path, size if size >= 0 else path.stat().st_size + size)
    with pytest.raises(DumpError, match="unreadable"):
        dumps.load("d")


def test_tampering_that_mends_the_checksum_is_still_caught_by_the_ids(dumps: DumpDir) -> None:
    rehash(dumps.root, "d")
    refused(dumps, "input_ids at", random_sample(8, 12))


def test_waiting_returns_when_done_appears_late(tmp_path: Path) -> None:
    write_dump(tmp_path, "d", SAMPLE)
    (tmp_path / "d/done").unlink()
    threading.Timer(0.3, (tmp_path / "d/done").touch).start()
    started = time.monotonic()
    DumpDir(tmp_path).wait("d", 5)
    assert time.monotonic() - started >= 0.2


def test_waiting_in_vain_says_what_to_look_at(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match=r"server\.log"):
        DumpDir(tmp_path).wait("d", 0.05)


def test_the_servers_own_error_is_passed_on(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/error.json").write_text(json.dumps({"reason": "rows 5..9 never passed"}))
    with pytest.raises(DumpError, match="never passed"):
        DumpDir(tmp_path).wait("d", 5)


def test_hidden_and_plain_files_are_no_dumps(dumps: DumpDir) -> None:
    (dumps.root / ".tmp-1-x").mkdir()
    (dumps.root / "plugin.json").touch()
    assert dumps.names() == ["d"]


def test_removing_takes_only_names_inside(dumps: DumpDir) -> None:
    for name in ("../d", "/etc", "..", ".lock", "a/b", ""):
        with pytest.raises(DumpError, match="not a dump's name"):
            dumps.remove(name)
    dumps.remove("d")
    assert dumps.names() == []


def test_request_ids_tell_attempts_and_rows_apart() -> None:
    rid = request_id(SAMPLE, 2)
    assert rid == f"hs-7-12-{SAMPLE.digest[:16]}-2"
    others = {request_id(SAMPLE, 1), request_id(random_sample(8, 12), 2)}
    assert rid not in others


def test_a_lock_names_its_owner_and_ends_with_it(tmp_path: Path) -> None:
    with Lock(tmp_path / "lock", "the dump directory"):
        with pytest.raises(JobError, match="in use by another job") as caught:
            Lock(tmp_path / "lock", "the dump directory").acquire()
        assert str(os.getpid()) in caught.value.fields["owner"]
    with Lock(tmp_path / "lock", "the dump directory"):
        pass


def test_a_dump_without_numbers_for_every_state_is_refused(dumps: DumpDir) -> None:
    path = dumps.root / "d/meta.json"
    meta = json.loads(path.read_text())
    path.write_text(json.dumps({**meta, "layers": meta["layers"][:3]}))
    refused(dumps, "numbers of each state")


def test_a_dump_whose_meta_counts_otherwise_is_refused(dumps: DumpDir) -> None:
    path = dumps.root / "d/meta.json"
    path.write_text(path.read_text().replace('"num_tokens": 12', '"num_tokens": 11'))
    refused(dumps, "num_tokens")


def test_a_dump_directory_is_discarded_unless_somebodys_files_lie_there(tmp_path: Path) -> None:
    for name, extra in (("own", ()), ("shared", ("notes.txt",))):
        root = tmp_path / name
        root.mkdir()
        for file in (".lock", "plugin.json", "plugin.dp1.json", *extra):
            (root / file).write_text("{}")
        DumpDir(root).discard()
    assert not (tmp_path / "own").exists()
    assert [path.name for path in (tmp_path / "shared").iterdir()] == ["notes.txt"]
