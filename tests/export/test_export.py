"""The export as a job: resumed, grown, and refused where it can't come out right."""

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from make.rows import demo_samples
from make.stores import model_store
from safetensors.torch import load_file, save_file

from hslib import demo
from hslib.errors import ExportError, JobError, StoreError
from hslib.export import ExportReport, SpecForgeFormat, SpeculatorsFormat, export_store
from hslib.export.export import read_rows
from hslib.export.format import TrainerFormat
from hslib.files import Lock
from hslib.store import Store, StoreWriter
from hslib.terminal import main

BOUNDARIES = (2, 5, 7)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return model_store(tmp_path / "store", demo.model_path(), demo_samples(6, 80), BOUNDARIES)


def export(store: Store, out: Path, trainer: TrainerFormat | None = None) -> ExportReport:
    return export_store(store, out, trainer or SpeculatorsFormat(), demo.model_path())


def contents(out: Path) -> dict[str, bytes]:
    """Row files by name."""
    return {row.file: (out / row.file).read_bytes() for row in read_rows(out).values()}


def test_a_second_run_makes_nothing_again(store: Store, tmp_path: Path) -> None:
    assert export(store, tmp_path / "e").made == 6
    before = {file: (tmp_path / "e" / file).stat().st_mtime_ns for file in contents(tmp_path / "e")}
    assert export(store, tmp_path / "e").made == 0
    after = {file: (tmp_path / "e" / file).stat().st_mtime_ns for file in contents(tmp_path / "e")}
    assert before == after


def _torn_list(out: Path) -> None:
    state = out / "export.jsonl"
    state.write_bytes(state.read_bytes()[:-20])


def _cut_file(out: Path) -> None:
    path = out / read_rows(out)[2].file
    path.write_bytes(path.read_bytes()[:-5])


def _lost_file(out: Path) -> None:
    (out / read_rows(out)[3].file).unlink()


@pytest.mark.parametrize(
    "trainer", [SpeculatorsFormat(), SpecForgeFormat()], ids=lambda t: t.drafter.trainer
)
@pytest.mark.parametrize("harm", [_torn_list, _cut_file, _lost_file])
def test_a_run_after_a_kill_makes_what_is_missing_and_the_same_bytes(
    store: Store, tmp_path: Path, harm: Callable[[Path], None], trainer: TrainerFormat
) -> None:
    out = tmp_path / "e"
    export(store, out, trainer)
    whole = contents(out)
    harm(out)
    assert export(store, out, trainer).made == 1
    assert contents(out) == whole


def test_an_interrupted_export_keeps_what_it_made(store: Store, tmp_path: Path) -> None:
    seen: list[int] = []

    def stop(size_bytes: int) -> None:
        seen.append(size_bytes)
        if len(seen) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_store(
            store, tmp_path / "e", SpeculatorsFormat(), demo.model_path(), workers=1, on_row=stop
        )
    done = len(read_rows(tmp_path / "e"))
    assert 3 <= done < 6
    assert export(store, tmp_path / "e").made == 6 - done


def test_rows_follow_a_store_that_changes(store: Store, tmp_path: Path) -> None:
    """A sample taken back moves the later ones up; nothing stale is left for a trainer to find."""
    out = tmp_path / "e"
    export(store, out, SpecForgeFormat())
    gone = list(store.entries.values())[1]
    with StoreWriter(store.path, store.manifest) as writer:
        writer.revoke(gone, "test")
    fewer = Store(store.path)
    assert export(fewer, out, SpecForgeFormat()).rows == 5
    rows = read_rows(out)
    assert [row.index for row in rows.values()] == list(fewer.entries)
    assert len(list(out.rglob("*.ckpt"))) == 5
    for row in rows.values():
        raw = torch.load(out / row.file, weights_only=True)
        assert torch.equal(raw["input_ids"], fewer[row.index].input_ids)


def test_an_export_of_a_version_that_linked_files_is_gone_on_with(
    store: Store, tmp_path: Path
) -> None:
    export(store, tmp_path / "e")
    listing = tmp_path / "e/export.jsonl"
    listing.write_text(listing.read_text().replace("}", ',"linked":false}'))
    assert export(store, tmp_path / "e").made == 0


def test_a_folder_with_another_export_or_strangers_is_refused(store: Store, tmp_path: Path) -> None:
    export(store, tmp_path / "e")
    with pytest.raises(ExportError, match="another kind: trainer, final, norm differ"):
        export(store, tmp_path / "e", SpecForgeFormat())
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    with pytest.raises(ExportError, match=r"not empty.*thesis\.tex"):
        export(store, tmp_path / "full")


def test_two_exports_at_once_into_one_folder_are_refused(store: Store, tmp_path: Path) -> None:
    export(store, tmp_path / "e")
    with Lock(tmp_path / "e" / ".export.lock", "x"), pytest.raises(JobError, match="in use"):
        export(store, tmp_path / "e")


def test_a_stored_sample_that_rotted_is_not_exported(store: Store, tmp_path: Path) -> None:
    path = store.path / next(iter(store.entries.values())).file
    data = bytearray(path.read_bytes())
    data[900] ^= 1
    path.write_bytes(data)
    with pytest.raises(StoreError, match="checksum"):
        export(store, tmp_path / "e")


def test_an_empty_store_is_refused(tmp_path: Path) -> None:
    empty = model_store(tmp_path / "s", demo.model_path(), [], BOUNDARIES)
    with pytest.raises(ExportError, match="empty"):
        export(empty, tmp_path / "e")


# --- the norm that is undone must be the one that was done -------------------------------------


def changed_model(tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> Path:
    """The demo model with other weights under the same config: another checkpoint."""
    folder = tmp_path / "changed"
    shutil.copytree(demo.model_path(), folder)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def test_another_checkpoints_norm_is_refused(store: Store, tmp_path: Path) -> None:
    model = changed_model(tmp_path, lambda tensors: tensors["model.norm.weight"].mul_(1.1))
    with pytest.raises(ExportError, match="did not come out of this norm"):
        export_store(store, tmp_path / "e", SpeculatorsFormat(), model)
    export_store(store, tmp_path / "f", SpecForgeFormat(), model)  # as stored: no norm is needed


def test_a_norm_with_a_zero_weight_is_refused_with_its_channel(
    store: Store, tmp_path: Path
) -> None:
    def zero(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.norm.weight"][5] = 0

    with pytest.raises(
        ExportError, match=r"zero or not finite in 1 of 96 channels.*channels=\[5\]"
    ):
        export_store(store, tmp_path / "e", SpeculatorsFormat(), changed_model(tmp_path, zero))


def test_another_model_is_refused(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    shutil.copytree(demo.model_path(), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "rope_theta": 1.0}))
    with pytest.raises(ExportError, match="not the model that the store's states came from"):
        export_store(store, tmp_path / "e", SpeculatorsFormat(), folder)


@pytest.mark.parametrize(
    "trainer", [SpeculatorsFormat(), SpecForgeFormat()], ids=lambda t: t.drafter.trainer
)
def test_the_terminal_ends_with_the_command_that_trains(
    store: Store, tmp_path: Path, trainer: TrainerFormat, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "an export"
    named = ["--to", trainer.drafter.trainer, "--model", str(demo.model_path())]
    assert main(["export", str(store.path), str(out), *named]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    program, *arguments = shlex.split(last.removeprefix("next: "))
    assert program in ("bash", "specforge")
    assert Path(arguments[-1]).is_file() and Path(arguments[-1]).is_relative_to(out)


@pytest.mark.parametrize(
    ("unwitnessed", "said"),
    [
        (None, "not witnessed: written before layers were asked what they read"),
        ({"boundary 5": "no input norm"}, "NOT WITNESSED, as accept_unwitnessed allowed: bound"),
        ({}, "witnessed: each is what its layer read"),
    ],
)
def test_an_export_says_in_words_whether_its_states_are_witnessed(
    tmp_path: Path, unwitnessed: dict[str, str] | None, said: str
) -> None:
    samples = demo_samples(1, 80)
    store = model_store(
        tmp_path / "s", demo.model_path(), samples, BOUNDARIES, unwitnessed=unwitnessed
    )
    report = export(store, tmp_path / "e")
    written = json.loads((tmp_path / "e/export.json").read_text())["states"]
    assert written == report.facts()["states"] and written.startswith(said)
