"""The store as a torch dataset, for a trainer of one's own; no copy is made.

::

    dataset = StoreDataset("runs/demo/store")
    batches = TokenBatches(dataset.lengths, max_tokens=8192, seed=0)
    loader = DataLoader(dataset, batch_sampler=batches, collate_fn=collate_packed)
    for epoch in range(3):
        batches.epoch = epoch
        for batch in loader: ...

Nothing is shifted: position t of ``hidden_states`` and ``final`` belongs to token t, and
``final[t]`` predicts token t + 1.
"""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch.utils.data import Dataset, Sampler

from hslib.errors import ParameterError
from hslib.store import Store

_OPEN_BATCHES = 16  # a row may join one of the latest so many


class Item(NamedTuple):
    """One stored sample; a NamedTuple, so that DataLoader can pin its tensors."""

    sample_index: int
    input_ids: torch.Tensor  # int64 [T]
    loss_mask: torch.Tensor  # int64 [T]
    hidden_states: torch.Tensor  # bf16 [T, K, H], boundaries ascending
    final: torch.Tensor  # bf16 [T, H], after the model's last norm


class PackedBatch(NamedTuple):
    """Samples side by side on one axis of N tokens; padding, if any, is at the end."""

    indices: torch.Tensor  # int64 [samples]
    lengths: torch.Tensor  # int64 [samples]
    input_ids: torch.Tensor  # int64 [1, N]
    loss_mask: torch.Tensor  # int64 [1, N], 0 on padding
    position_ids: torch.Tensor  # int64 [1, N], from 0 in each sample
    document_ids: torch.Tensor  # int64 [1, N], number of the sample; -1 on padding
    hidden_states: torch.Tensor  # bf16 [1, N, K, H]
    final: torch.Tensor  # bf16 [1, N, H]


class StoreDataset(Dataset[Item]):
    """Items in index order; their tensors are views of memory-mapped files.

    Picklable, for workers of any start method.

    Raises:
        StoreError: no store there; or, for an item, its file is not whole.
    """

    def __init__(self, store: str | Path) -> None:
        self.store = Store(store)
        self._indices = list(self.store.entries)
        self.lengths = [entry.num_tokens for entry in self.store.entries.values()]

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, position: int) -> Item:
        sample = self.store[self._indices[position]]
        return Item(
            sample.entry.index,
            sample.input_ids,
            sample.loss_mask.long(),
            sample.hidden_states[:, :-1],
            sample.final,
        )


def pack(
    lengths: Sequence[int], max_tokens: int, order: Sequence[int], long_alone: bool = False
) -> list[list[int]]:
    """Group positions, taken in ``order``, into batches of at most ``max_tokens``. Pure.

    Every position is in exactly one batch. First fit among the latest few batches.

    Args:
        long_alone: a row longer than ``max_tokens`` is a batch of its own.

    Raises:
        ParameterError: there is such a row without ``long_alone``; rows are never cut.
    """
    longest = max(lengths, default=0)
    if longest > max_tokens and not long_alone:
        raise ParameterError(
            f"the longest row has {longest} tokens, a batch at most {max_tokens}",
            fix=f"set max_tokens to {longest} or more, or long_alone; rows are never cut",
        )
    batches: list[list[int]] = []
    room: list[int] = []
    for position in order:
        length = lengths[position]
        latest = range(max(0, len(batches) - _OPEN_BATCHES), len(batches))
        fitting = next((number for number in latest if room[number] >= length), None)
        if fitting is None:
            batches.append([position])
            room.append(max_tokens - length)
        else:
            batches[fitting].append(position)
            room[fitting] -= length
    return batches


class TokenBatches(Sampler[list[int]]):
    """A batch sampler: rows in an order of (seed, epoch), packed up to ``max_tokens``.

    Set ``epoch`` before each epoch to shuffle anew. ``shuffle=False`` keeps the index order.

    Args:
        rank, world_size: of the process among those that train together: each has every
            ``world_size``-th batch, and all have the same number. Where they don't come out even,
            the last ranks get one of the epoch's first batches again, as
            ``torch.utils.data.DistributedSampler`` does.

    Raises:
        ParameterError: no such rank; or, when batches are made, a row is longer than a batch.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        max_tokens: int,
        seed: int = 0,
        shuffle: bool = True,
        long_alone: bool = False,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if not 0 <= rank < world_size:
            raise ParameterError(
                f"rank {rank} is not one of 0..{world_size - 1}", fix="ranks count from 0"
            )
        self._rank, self._world_size = rank, world_size
        self._lengths, self._max_tokens = list(lengths), max_tokens
        self._seed, self._shuffle, self._long_alone = seed, shuffle, long_alone
        self.epoch = 0

    def _batches(self) -> list[list[int]]:
        order = torch.arange(len(self._lengths))
        if self._shuffle:
            generator = torch.Generator().manual_seed(hash((self._seed, self.epoch)) % 2**63)
            order = torch.randperm(len(self._lengths), generator=generator)
        batches = pack(self._lengths, self._max_tokens, order.tolist(), self._long_alone)
        missing = -len(batches) % self._world_size
        again = itertools.islice(itertools.cycle(batches), missing)
        return [*batches, *again][self._rank :: self._world_size]

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self._batches())

    def __len__(self) -> int:
        """Batches of this rank in this epoch; how rows pack differs a little between epochs."""
        return len(self._batches())


def collate_packed(items: Sequence[Item], pad_to: int = 0) -> PackedBatch:
    """Concatenate items along the tokens; with ``pad_to``, fill up with zeros to that many.

    Raises:
        ParameterError: more tokens than ``pad_to``.
    """
    lengths = torch.tensor([len(item.input_ids) for item in items])
    padding = max(pad_to - int(lengths.sum()), 0)
    if pad_to and int(lengths.sum()) > pad_to:
        raise ParameterError(
            f"{int(lengths.sum())} tokens do not fit into pad_to = {pad_to}",
            fix="give the batch sampler the same max_tokens",
        )

    def joined(tensors: list[torch.Tensor], fill: int = 0) -> torch.Tensor:
        first = tensors[0]
        tail = first.new_full((padding, *first.shape[1:]), fill)
        return torch.cat([*tensors, tail]).unsqueeze(0)

    return PackedBatch(
        torch.tensor([item.sample_index for item in items]),
        lengths,
        joined([item.input_ids for item in items]),
        joined([item.loss_mask for item in items]),
        joined([torch.arange(len(item.input_ids)) for item in items]),
        joined([torch.full_like(item.input_ids, n) for n, item in enumerate(items)], fill=-1),
        joined([item.hidden_states for item in items]),
        joined([item.final for item in items]),
    )
