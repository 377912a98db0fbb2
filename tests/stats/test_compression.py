"""What encodings save is measured on a store's own states, by the codecs that write files."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from make.stores import demo_rows, made_up_rows, write_store

from hslib.errors import StoreError
from hslib.stats.compression import compare_compression, draw_states, recommend_compression
from hslib.store import CODECS, Store, recode_store
from hslib.store.encoding import DecodedStates


def bits(states: torch.Tensor) -> np.ndarray:
    return states.view(torch.int16).numpy().view(np.uint16)


def test_an_encoding_that_changes_a_bit_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        type(CODECS["lossless"]),
        "kept",
        lambda _self, _found, shape, _path: DecodedStates(np.zeros(shape, np.uint16)),
    )
    with pytest.raises(ArithmeticError, match="lossless did not give the same bits back"):
        compare_compression([bits(demo_rows(32)[0][1])])


def test_ratios_and_errors_are_plain_numpys() -> None:
    drawn = [bits(states) for _, states in demo_rows(32)]
    table = compare_compression(drawn).set_index("encoding")
    assert list(table.index) == [name for name in CODECS if name != "plain"]
    hidden = drawn[0].shape[2]
    assert table.loc["fp8", "ratio"] == pytest.approx((hidden + 4) / (2 * hidden))
    values = np.concatenate([states.double().numpy() for _, states in demo_rows(32)])
    scale = np.abs(values).max(axis=2, keepdims=True) / 448
    mantissa, exponent = np.frexp(values / scale)
    step = np.exp2(np.maximum(exponent, -5) - 4.0)  # 3 bits behind the leading one, 2**-9 at least
    rounded = np.round(np.ldexp(mantissa, exponent) / step) * step * scale
    lost = np.linalg.norm(rounded - values, axis=2) / np.linalg.norm(values, axis=2)
    assert table.loc["fp8", "relative_error"] == pytest.approx(lost.max(), rel=0.05)
    assert table.loc["fp8-aux", "relative_error"] == pytest.approx(lost[:, :-1].max(), rel=0.05)
    assert table.loc["lossless", "relative_error"] == 0
    assert table.loc["lossless", "ratio"] <= 0.70, "of the demo's states"
    assert (table[["pack_mb_s", "unpack_mb_s"]] > 0).all().all()


def test_drawn_states_are_whole_tokens_of_the_store_and_the_same_for_a_seed(tmp_path: Path) -> None:
    rows = made_up_rows(20)
    store = write_store(tmp_path / "store", rows)
    drawn = draw_states(store, 1, 50_000)
    again = draw_states(store, 1, 50_000)
    assert all(np.array_equal(a, b) for a, b in zip(drawn, again, strict=True))
    assert 50_000 <= sum(b.nbytes for b in drawn) < 100_000
    stored = {row.tobytes() for _, states in rows for row in bits(states)}
    assert all(row.tobytes() in stored for part in drawn for row in part)


def test_an_empty_store_has_no_states(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", made_up_rows(1))
    store.entries.clear()
    with pytest.raises(StoreError, match="no sample yet"):
        draw_states(store, 0, 1000)


def advice(store: Store, ratio: float) -> str:
    lines = [("lossless", True, ratio, 0.0), ("fp8", False, 0.5, 0.028)]
    columns = ["encoding", "lossless", "ratio", "relative_error"]
    return recommend_compression(pd.DataFrame(lines, columns=columns), store, "runs/a b/store")


def test_the_advice_follows_the_numbers_and_the_store(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", made_up_rows(2))
    good = advice(store, 0.72)
    command = "`python -m hslib recode 'runs/a b/store' OUT --encoding lossless`"
    assert good.startswith(f"Without loss, 28% can be saved: {command}.")
    assert "FP8 saves 50%" in good and "more than 2.8%" in good
    assert advice(store, 0.97).startswith("Compression without loss would save only 3%.")
    recode_store(store, tmp_path / "small", "lossless", 0.05)
    assert advice(Store(tmp_path / "small"), 0.72).startswith(
        "The store's samples are encoded already (lossless"
    )
