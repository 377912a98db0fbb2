"""Everything that reads a store gets the same from one that is compressed without loss."""

from pathlib import Path

import pandas as pd
import pytest
import torch
from make.rows import demo_samples
from make.stores import model_store

from hslib import demo
from hslib.export import TRAINERS, export_store
from hslib.export.torch_dataset import StoreDataset
from hslib.stats import measure
from hslib.store import Store, recode_store


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Store]:
    """The demo model's states, plain and lossless."""
    root = tmp_path_factory.mktemp("stores")
    plain = model_store(root / "plain", demo.model_path(), demo_samples(12, 80), (2, 5, 7))
    recode_store(plain, root / "lossless", "lossless", 0.05)
    lossless = Store(root / "lossless")
    assert {entry.encoding for entry in lossless.entries.values()} == {"lossless"}
    return plain, lossless


def test_statistics(stores: tuple[Store, Store], tmp_path: Path) -> None:
    for store, name in zip(stores, ("plain", "lossless"), strict=True):
        measure(store).write(tmp_path / name)
    tables = {path.name for path in (tmp_path / "plain").iterdir()}
    assert len(tables) > 5
    for name in tables:
        plain, lossless = (pd.read_csv(tmp_path / d / name) for d in ("plain", "lossless"))
        pd.testing.assert_frame_equal(plain, lossless)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_exports(stores: tuple[Store, Store], tmp_path: Path, trainer: str) -> None:
    rows = []
    for number, store in enumerate(stores):
        out = tmp_path / str(number)
        export_store(store, out, TRAINERS[trainer](), demo.model_path())
        files = [*out.rglob("hs_*"), *out.rglob("*.ckpt")]
        rows.append({str(path.relative_to(out)): path.read_bytes() for path in files})
    assert len(rows[0]) == 12
    assert rows[0] == rows[1]


def test_batches_for_training_and_single_layers(stores: tuple[Store, Store]) -> None:
    plain, lossless = (StoreDataset(store.path) for store in stores)
    for mine, theirs in zip(lossless, plain, strict=True):
        assert mine.sample_index == theirs.sample_index
        assert all(torch.equal(a, b) for a, b in zip(mine[1:], theirs[1:], strict=True))
    index = max(stores[0].entries)
    for boundary in (2, 5, 7):
        a, b = (store[index].layer(boundary) for store in stores)
        assert torch.equal(a, b)
    assert torch.equal(stores[0][index].final, stores[1][index].final)
