"""Compression is measured on a store's bytes: lossless methods give them back, FP8 nearly."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from make.stores import demo_rows, made_up_rows, write_store

from hslib.errors import StoreError
from hslib.stats import compression
from hslib.stats.compression import (
    compare_compression,
    draw_states,
    methods,
    recommend_compression,
)


def bits(states: torch.Tensor) -> np.ndarray:
    return states.view(torch.int16).numpy().view(np.uint16)


def awkward() -> np.ndarray:
    """Every bf16 there is, NaN and infinities too."""
    return np.arange(1 << 16, dtype=np.uint16).reshape(64, 4, 256)


@pytest.mark.parametrize("method", [m for m in methods() if m.is_lossless], ids=lambda m: m.name)
@pytest.mark.parametrize(
    "draw", [awkward, lambda: awkward()[:1, :1], lambda: bits(demo_rows(32)[0][1])]
)
def test_lossless_methods_give_every_byte_back(
    method: compression.Method, draw: Callable[[], np.ndarray]
) -> None:
    states = draw()
    parts = method.pack(states)
    assert np.array_equal(method.unpack(parts, states.shape), states)


def test_a_method_that_changes_a_byte_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = compression.Method(
        "broken", True, lambda b: (b.tobytes(),), lambda _, shape: np.zeros(shape, np.uint16)
    )
    monkeypatch.setattr(compression, "methods", lambda: (broken,))
    with pytest.raises(ArithmeticError, match="broken did not give the same bytes back"):
        compare_compression([bits(demo_rows(32)[0][1])])


def test_ratios_and_errors_are_plain_numpys() -> None:
    drawn = [bits(states) for _, states in demo_rows(32)]
    table = compare_compression(drawn).set_index("method")
    fp8 = table.loc["FP8 per token"]
    hidden = drawn[0].shape[2]
    assert fp8["ratio"] == pytest.approx((hidden + 4) / (2 * hidden)), "a byte, and a float32 scale"
    values = np.concatenate([states.double().numpy() for _, states in demo_rows(32)])
    scale = np.abs(values).max(axis=2, keepdims=True) / 448
    mantissa, exponent = np.frexp(values / scale)
    step = np.exp2(np.maximum(exponent, -5) - 4.0)  # 3 bits behind the leading one, 2**-9 at least
    rounded = np.round(np.ldexp(mantissa, exponent) / step) * step * scale
    error = np.linalg.norm(rounded - values) / np.linalg.norm(values)
    assert fp8["relative_error"] == pytest.approx(error, rel=0.01)
    assert (table[table["lossless"]]["relative_error"] == 0).all()
    assert table.loc["byte planes + zstd", "ratio"] < table.loc["zstd", "ratio"] < 1
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


def advice(best: float, plain: float) -> str:
    names = ["zstd", "byte planes + zstd", "FP8 per token"]
    return recommend_compression(
        pd.DataFrame(
            {
                "method": names,
                "lossless": [True, True, False],
                "ratio": [plain, best, 0.5],
                "relative_error": [0.0, 0.0, 0.026],
            }
        )
    )


def test_the_advice_follows_the_numbers() -> None:
    good = advice(best=0.72, plain=0.94)
    assert good.startswith("Without loss, byte planes + zstd saves 28%. Plain zstd saves 6%")
    assert "FP8 per token saves 50% at a relative error of 3%" in good
    poor = advice(best=0.97, plain=1.01)
    assert poor.startswith("Not worth it without loss: the best, byte planes + zstd, saves 3%.")
