"""The store as a torch dataset: every token once, at its place, whatever the batching."""

import random
from pathlib import Path

import pytest
import torch
from make.dumps import EXPECTED
from make.rows import random_sample
from make.stores import store_samples
from torch.utils.data import DataLoader

from hslib.errors import ParameterError
from hslib.export.torch_dataset import StoreDataset, TokenBatches, collate_packed, pack

LENGTHS = (5, 17, 1, 9, 30, 2, 12)


@pytest.fixture
def dataset(tmp_path: Path) -> StoreDataset:
    samples = [random_sample(2 * i, n) for i, n in enumerate(LENGTHS)]  # indices with holes
    store_samples(tmp_path / "store", tmp_path / "dumps", samples)
    return StoreDataset(tmp_path / "store")


def test_items_are_the_stored_samples(dataset: StoreDataset) -> None:
    assert len(dataset) == len(LENGTHS)
    assert dataset.lengths == list(LENGTHS)
    for position in range(len(dataset)):
        item, sample = dataset[position], dataset.store[2 * position]
        assert item.sample_index == 2 * position
        assert torch.equal(item.input_ids, sample.input_ids)
        assert torch.equal(item.hidden_states, sample.hidden_states[:, :-1])
        assert torch.equal(item.final, sample.final)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_gives_every_token_once_at_its_place(dataset: StoreDataset, workers: int) -> None:
    batches = TokenBatches(dataset.lengths, max_tokens=32, seed=1)
    loader = DataLoader(
        dataset, batch_sampler=batches, collate_fn=collate_packed, num_workers=workers
    )
    seen = []
    for batch in loader:
        assert batch.input_ids.shape[1] == int(batch.lengths.sum()) <= 32
        assert batch.hidden_states.shape[2:] == (len(EXPECTED.boundaries), EXPECTED.hidden_size)
        start = 0
        for number, (index, length) in enumerate(
            zip(batch.indices.tolist(), batch.lengths.tolist(), strict=True)
        ):
            here, sample = slice(start, start + length), dataset.store[index]
            assert torch.equal(batch.input_ids[0, here], sample.input_ids)
            assert torch.equal(batch.loss_mask[0, here], sample.loss_mask.long())
            assert torch.equal(batch.hidden_states[0, here], sample.hidden_states[:, :-1])
            assert torch.equal(batch.final[0, here], sample.final)
            assert batch.position_ids[0, here].tolist() == list(range(length))
            assert set(batch.document_ids[0, here].tolist()) == {number}
            start += length
            seen.append(index)
    assert sorted(seen) == [2 * i for i in range(len(LENGTHS))]


def test_padding_belongs_to_no_document_and_trains_nothing(dataset: StoreDataset) -> None:
    batch = collate_packed([dataset[0], dataset[2]], pad_to=10)
    assert batch.input_ids.shape == (1, 10)
    assert batch.document_ids[0].tolist() == [0] * 5 + [1] + [-1] * 4
    assert batch.loss_mask[0, 6:].sum() == 0 and not batch.final[0, 6:].any()
    with pytest.raises(ParameterError, match="do not fit"):
        collate_packed([dataset[1]], pad_to=10)


def test_packing_keeps_every_row_whole_and_within_the_budget() -> None:
    rng = random.Random(0)
    for _ in range(50):
        lengths = [rng.randint(1, 100) for _ in range(rng.randint(1, 80))]
        order = rng.sample(range(len(lengths)), len(lengths))
        batches = pack(lengths, 128, order)
        assert sorted(p for batch in batches for p in batch) == list(range(len(lengths)))
        assert all(sum(lengths[p] for p in batch) <= 128 for batch in batches)
        one_a_batch = len(lengths)
        assert len(batches) <= max(1, min(one_a_batch, 2 * sum(lengths) // 128 + 2)), "it packs"


def test_a_row_longer_than_a_batch_is_refused_or_alone_but_never_cut() -> None:
    with pytest.raises(ParameterError, match="the longest row has 9 tokens"):
        pack([3, 9, 2], 8, [0, 1, 2])
    assert pack([3, 9, 2], 8, [0, 1, 2], long_alone=True) == [[0, 2], [1]]


def test_order_depends_on_seed_and_epoch_alone() -> None:
    def order(seed: int, epoch: int) -> list[list[int]]:
        batches = TokenBatches([4] * 40, 16, seed)
        batches.epoch = epoch
        return list(batches)

    assert order(0, 0) == order(0, 0)
    assert order(0, 0) != order(0, 1)
    assert order(0, 0) != order(1, 0)
    assert list(TokenBatches([4] * 4, 8, shuffle=False)) == [[0, 1], [2, 3]]


@pytest.mark.parametrize("world_size", [2, 3, 64])
def test_ranks_share_an_epoch_and_have_the_same_number_of_batches(world_size: int) -> None:
    """Different numbers would leave one rank waiting in an all-reduce for ever."""
    lengths = [5 + 7 * (n % 13) for n in range(200)]
    whole = list(TokenBatches(lengths, 300, seed=3))
    ranks = [
        list(TokenBatches(lengths, 300, seed=3, rank=rank, world_size=world_size))
        for rank in range(world_size)
    ]
    counts = {len(batches) for batches in ranks}
    assert counts == {-(-len(whole) // world_size)}
    dealt = [batch for step in zip(*ranks, strict=True) for batch in step]
    assert dealt[: len(whole)] == whole
    assert all(batch in whole for batch in dealt[len(whole) :])
    assert len(dealt) - len(whole) < world_size


def test_a_rank_that_is_none_is_refused() -> None:
    with pytest.raises(ParameterError, match=r"rank 2 is not one of 0\.\.1"):
        TokenBatches([3], 8, rank=2, world_size=2)
