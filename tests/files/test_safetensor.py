"""Tensor files: what is written is what the safetensors library reads, and the other way round."""

from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from hslib.files import TensorFileError, header_bytes, open_tensors


def test_a_written_header_is_read_by_the_safetensors_library(tmp_path: Path) -> None:
    ids, mask = np.arange(3, dtype="<i8"), np.array([1, 0, 1], "u1")
    states = torch.randn(3, 2, 8).to(torch.bfloat16)
    header = header_bytes(
        {
            "hidden_states": ("BF16", (3, 2, 8)),
            "input_ids": ("I64", (3,)),
            "loss_mask": ("U8", (3,)),
        },
        {"format": "x"},
    )
    assert len(header) % 8 == 0
    path = tmp_path / "x.safetensors"
    path.write_bytes(
        header + states.view(torch.int16).numpy().tobytes() + ids.tobytes() + mask.tobytes()
    )
    loaded = safetensors.torch.load_file(path)
    assert torch.equal(loaded["hidden_states"], states)
    assert loaded["input_ids"].tolist() == [0, 1, 2]
    assert loaded["loss_mask"].tolist() == [1, 0, 1]


def test_a_file_of_the_safetensors_library_is_read_here(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(4, 3).to(torch.bfloat16), "b": torch.arange(5)}
    safetensors.torch.save_file(tensors, tmp_path / "x.safetensors", {"k": "v"})
    file = open_tensors(tmp_path / "x.safetensors")
    assert file.metadata == {"k": "v"}
    assert torch.equal(torch.from_numpy(file.arrays["a"].copy()).view(torch.bfloat16), tensors["a"])
    assert file.arrays["b"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("cut", [0, 4, 20, -1])
def test_a_cut_file_is_an_error_and_never_short_data(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "x.safetensors"
    safetensors.torch.save_file({"a": torch.arange(50)}, path)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(TensorFileError):
        open_tensors(path)


def test_bytes_behind_the_tensors_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    safetensors.torch.save_file({"a": torch.arange(50)}, path)
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(TensorFileError, match="longer"):
        open_tensors(path)
