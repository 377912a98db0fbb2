"""speculators' fp8 layout: its own bits, its own reader, and an error that is measured and said."""

from pathlib import Path

import pytest
import torch
from hs_connectors.fp8_utils import dequantize_fp8_tensor, quantize_tensor_to_fp8
from make.rows import demo_samples
from make.stores import model_store
from make.training import command, speculators_step
from safetensors.torch import load_file, save_file

from hslib import demo, terminal
from hslib.drafter.eagle3 import make_drafter
from hslib.errors import ExportError
from hslib.export import SpecForgeFormat, SpeculatorsFormat, export_store, fp8, read_back
from hslib.store import Store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    path = tmp_path_factory.mktemp("fp8") / "store"
    return model_store(path, demo.model_path(), demo_samples(3, 80), (2, 5, 7))


def _with_one_loud_layer(states: torch.Tensor) -> torch.Tensor:
    """One boundary of a hundred thousand times the others' norm."""
    return torch.cat([states[:, :1], 1e5 * states[:, 1:2], states[:, 2:]], 1)


def test_our_rounding_is_speculators_own_bit_for_bit() -> None:
    torch.manual_seed(0)
    states = (torch.randn(60, 4, 96) * torch.logspace(-3, 3, 4)[:, None]).bfloat16()
    states[7] = 0
    packed, scales = fp8.quantise(states)
    theirs, their_scales = quantize_tensor_to_fp8(states)
    assert torch.equal(packed.view(torch.uint8), theirs.view(torch.uint8))
    assert torch.equal(scales, their_scales)
    read = fp8.dequantise(packed, scales)
    assert torch.equal(read, dequantize_fp8_tensor(theirs, their_scales))
    assert not read[7].any()


def test_speculators_reads_it_and_the_error_is_said(store: Store, tmp_path: Path) -> None:
    report = export_store(store, tmp_path / "e", SpeculatorsFormat(dtype="fp8"), demo.model_path())
    tensors = load_file(tmp_path / "e/hidden_states/hs_0.safetensors")
    tokens = len(tensors["token_ids"])
    assert tensors["hidden_states"].dtype == torch.float8_e4m3fn
    assert tensors["hidden_states"].shape == (tokens, 4, 96)
    assert tensors["hidden_states_scales"].shape == (tokens, 1, 1)
    back = read_back(store, report)
    back.require_whole()
    assert back.bit_for_bit
    assert list(back.fp8_errors) == ["boundary 2", "boundary 5", "boundary 7", "last"]
    assert all(0.01 < error < 0.06 for error in back.fp8_errors.values())
    assert report.fp8_errors == pytest.approx(back.fp8_errors)
    assert "boundary 7: " in report.facts()["fp8, relative error"]
    assert "aux states equal, as fp8 rounds them" in back.facts()


def test_it_takes_half_the_bytes(store: Store, tmp_path: Path) -> None:
    plain = export_store(store, tmp_path / "p", SpeculatorsFormat(), demo.model_path())
    small = export_store(store, tmp_path / "s", SpeculatorsFormat(dtype="fp8"), demo.model_path())
    tokens = sum(entry.num_tokens for entry in store.entries.values())
    states, scale = 4 * 96, 4
    assert plain.size_bytes - small.size_bytes == pytest.approx(tokens * (states - scale), rel=0.01)


def test_a_loud_layer_costs_the_others_and_it_is_seen(tmp_path: Path) -> None:
    """One scale a token for all its states: the finest steps of the quiet ones are lost."""
    loud = model_store(
        tmp_path / "s", demo.model_path(), demo_samples(2, 60), (2, 5, 7), _with_one_loud_layer
    )
    trainer = SpeculatorsFormat(dtype="fp8")
    errors = export_store(loud, tmp_path / "e", trainer, demo.model_path()).fp8_errors
    assert errors["boundary 5"] < 0.04
    assert errors["boundary 2"] > 2 * errors["boundary 5"]


def test_one_other_bit_is_counted(store: Store, tmp_path: Path) -> None:
    report = export_store(store, tmp_path / "e", SpeculatorsFormat(dtype="fp8"), demo.model_path())
    path = tmp_path / "e/hidden_states/hs_1.safetensors"
    tensors = load_file(path)
    tensors["hidden_states"].view(torch.uint8)[3, 1, 7] ^= 1
    save_file(tensors, path)
    assert read_back(store, report).aux_equal == 2


def test_its_command_reads_it_and_the_model_trains(store: Store, tmp_path: Path) -> None:
    trainer = SpeculatorsFormat("dflash", "fp8")
    report = export_store(store, tmp_path / "e", trainer, demo.model_path())
    words = command(report.path)
    assert words[words.index("--hidden-states-backend") + 1] == "fp8"
    step = speculators_step(report.path)
    assert step.gradients_finite and step.changed > 0


def test_pieces_of_a_long_row_join(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = SpeculatorsFormat(dtype="fp8")
    whole = export_store(store, tmp_path / "a", trainer, demo.model_path()).path
    monkeypatch.setattr("hslib.export.speculators._TOKENS_AT_ONCE", 7)
    pieces = export_store(store, tmp_path / "b", trainer, demo.model_path()).path
    for file in (whole / "hidden_states").iterdir():
        assert (pieces / "hidden_states" / file.name).read_bytes() == file.read_bytes()


def test_a_folder_of_the_other_dtype_is_refused(store: Store, tmp_path: Path) -> None:
    export_store(store, tmp_path / "e", SpeculatorsFormat(), demo.model_path())
    with pytest.raises(ExportError, match="another kind: dtype differ"):
        export_store(store, tmp_path / "e", SpeculatorsFormat(dtype="fp8"), demo.model_path())


def test_specforge_has_no_such_layout() -> None:
    with pytest.raises(ExportError, match="bf16 alone"):
        SpecForgeFormat(dtype="fp8")


def test_the_terminal_says_the_error(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["export", str(store.path), "--to", "speculators", str(tmp_path / "e")]
    named = ["--dtype", "fp8", "--drafter", "peagle", "--boundaries", "2,7"]
    assert terminal.main([*command, *named]) == 0
    shown = capsys.readouterr().out
    assert "fp8, relative error: boundary 2: " in shown
    assert "speculators, peagle" in shown


def test_the_drafter_of_notebook_06_reads_it(store: Store, tmp_path: Path) -> None:
    from hslib.drafter import eagle3

    trainer = SpeculatorsFormat(dtype="fp8")
    out = export_store(store, tmp_path / "e", trainer, demo.model_path()).path
    with eagle3._quiet():
        batch = next(eagle3._batches(out, "train", 0).one_epoch())
        _, loss, _ = eagle3._forward(make_drafter(out, demo.model_path()), batch)
    assert bool(loss.isfinite())
