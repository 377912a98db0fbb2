"""Reading an export back: what is right passes, and what a trainer would misread is counted."""

from pathlib import Path

import numpy as np
import pytest
import torch
from make.rows import demo_samples
from make.stores import model_store
from safetensors.torch import load_file, save_file

from hslib import demo
from hslib.errors import ExportError
from hslib.export import TRAINERS, ExportReport, export_store, read_back
from hslib.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return model_store(tmp_path / "store", demo.model_path(), demo_samples(4, 80), (2, 5, 7))


def export(store: Store, out: Path, trainer: str) -> ExportReport:
    return export_store(store, out, TRAINERS[trainer](), demo.model_path())


@pytest.mark.parametrize("trainer", ["speculators", "specforge"])
def test_a_right_export_comes_back_whole(store: Store, tmp_path: Path, trainer: str) -> None:
    if trainer == "specforge":
        pytest.importorskip("specforge", reason="SPECFORGE IS ABSENT: its reader was not tried")
    back = read_back(store, export(store, tmp_path / "e", trainer))
    back.require_whole()
    assert (
        back.rows == back.ids_equal == back.masks_equal == back.aux_equal == back.final_equal == 4
    )
    assert back.bit_for_bit is (trainer == "specforge")


def test_one_changed_bit_of_an_aux_state_is_counted(store: Store, tmp_path: Path) -> None:
    report = export(store, tmp_path / "e", "speculators")
    path = tmp_path / "e/hidden_states/hs_2.safetensors"
    tensors = load_file(path)
    tensors["hidden_states"].view(torch.int16)[3, 1, 7] ^= 1
    save_file(tensors, path)
    back = read_back(store, report)
    assert (back.aux_equal, back.final_equal) == (3, 4)
    with pytest.raises(ExportError, match="reads other data than the store holds"):
        back.require_whole()


def test_a_final_state_on_the_wrong_side_of_the_norm_is_counted(
    store: Store, tmp_path: Path
) -> None:
    """The stored state itself in place of the one before the norm: weights are not all one."""
    report = export(store, tmp_path / "e", "speculators")
    path = tmp_path / "e/hidden_states/hs_0.safetensors"
    tensors = load_file(path)
    first = next(iter(store))
    tensors["hidden_states"][:, -1] = first.final
    save_file(tensors, path)
    assert read_back(store, report).final_equal == 3


def test_a_row_that_speculators_would_drop_is_an_error(store: Store, tmp_path: Path) -> None:
    report = export(store, tmp_path / "e", "speculators")
    path = tmp_path / "e/hidden_states/hs_1.safetensors"
    tensors = load_file(path)
    tensors["token_ids"] = torch.from_numpy(np.roll(tensors["token_ids"].numpy(), 1))
    save_file(tensors, path)
    with (
        pytest.warns(UserWarning, match="match input ids"),
        pytest.raises(ExportError, match="speculators drops row 1"),
    ):
        read_back(store, report)
