"""Take each request's rows out of a forward pass and hand them to the writer."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from hs_dump.names import Name, parse_rid
from hs_dump.writer import Chunk, Writer

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Rows:
    """One request's part of a forward pass."""

    name: Name | None  # None: its id must not become a path
    offset: int  # first row in the forward's tensors
    count: int
    start: int  # first row in the request
    total: int  # tokens of the request


class Capture:
    """Splits forward passes by request.

    Args:
        dump_all: dump foreign requests too, under the counter ``req_{n}``.
        dp_rank, replicas: data-parallel replicas count in steps, so names stay unique.
    """

    def __init__(
        self,
        writer: Writer,
        hidden_size: int,
        boundaries: tuple[int, ...],
        dump_all: bool,
        dp_rank: int = 0,
        replicas: int = 1,
    ) -> None:
        self._writer, self._hidden_size, self._boundaries = writer, hidden_size, boundaries
        self._dump_all, self._counter, self._step = dump_all, dp_rank, replicas
        self._counted: dict[str, str] = {}
        self._ignored_rids = 0

    def describe(self) -> dict[str, Any]:
        """What plugin.json says of the capture."""
        return {
            "boundaries": list(self._boundaries),
            "dump_all": self._dump_all,
            "budget_bytes": self._writer.budget.limit_bytes,
            "replicas": self._step,
        }

    def take(self, forward_batch: Any, logits_output: Any) -> None:
        """Capture one forward pass; cheap when it holds nothing that is dumped."""
        wanted = [(rows, self._directory(rows)) for rows in split_rows(forward_batch)]
        wanted = [(rows, directory) for rows, directory in wanted if directory]
        if not wanted:
            return
        aux, final = self._states(logits_output, forward_batch)
        deadline = self._writer.budget.deadline()
        for rows, directory in wanted:
            assert rows.name is not None
            if rows.name.claimed_tokens not in (None, rows.total):
                reason = (
                    f"the id says {rows.name.claimed_tokens} tokens, the request has {rows.total}"
                )
                self._writer.fail(rows.name, directory, reason)
                continue
            if rows.start == 0:
                self._writer.expect(rows.name, directory)
                size = self._writer.size_bytes(rows.total)
                reason = self._writer.budget.reserve(directory, size, deadline)
                if reason:
                    self._writer.fail(rows.name, directory, reason)
                    continue
            part = slice(rows.offset, rows.offset + rows.count)
            tensors = (forward_batch.input_ids[part], aux[part], final[part])
            (ids, aux_rows, final_rows), wait = to_host(tensors)
            self._writer.put(
                Chunk(rows.name, directory, rows.total, rows.start, ids, aux_rows, final_rows, wait)
            )

    def fail_all(self, forward_batch: Any, reason: str) -> None:
        """Give every request of a forward its error.json; used when the split itself failed."""
        for rid in forward_batch.rids or []:
            name = parse_rid(rid)
            if name is not None and name.claimed_tokens is not None:
                self._writer.fail(name, name.rid, reason)

    def _directory(self, rows: Rows) -> str:
        """Where this request's dump appears; "" when it is not to be dumped."""
        if rows.name is None:
            self._ignored_rids += 1
            logger.warning("hs_dump: ignored %d requests with unusable ids", self._ignored_rids)
            return ""
        if rows.start >= rows.total:
            return ""  # a decode step in a mixed forward
        if rows.name.claimed_tokens is not None:
            return rows.name.rid
        if not self._dump_all:
            return ""
        if rows.start == 0:
            self._counted[rows.name.rid] = f"req_{self._counter}"
            self._counter += self._step
        directory = self._counted.get(rows.name.rid, "")
        if rows.start + rows.count >= rows.total:
            self._counted.pop(rows.name.rid, None)
        return directory

    def _states(self, logits_output: Any, forward_batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        aux = getattr(logits_output, "hidden_states", None)
        final = getattr(logits_output, "last_hidden_states", None)
        if aux is None or final is None:
            raise RuntimeError("this forward returned no hidden states: aux capture is off")
        needed = sum(forward_batch.extend_seq_lens_cpu)
        widths = (len(self._boundaries) * self._hidden_size, self._hidden_size)
        for tensor, width in zip((aux, final), widths, strict=True):
            if tensor.shape[0] < needed or tensor.shape[1] != width:
                raise RuntimeError(
                    f"states of shape {list(tensor.shape)}, needed [{needed}, {width}]"
                )
        return aux, final


def split_rows(forward_batch: Any) -> Iterator[Rows]:
    """Each request's rows in a prefill forward; nothing for decode and dummy forwards."""
    if not forward_batch.rids or forward_batch.forward_mode.name not in ("EXTEND", "MIXED"):
        return
    offset = 0
    columns = (
        forward_batch.rids,
        forward_batch.extend_prefix_lens_cpu,
        forward_batch.extend_seq_lens_cpu,
        forward_batch.hs_dump_totals,
    )
    for rid, start, count, total in zip(*columns, strict=True):
        yield Rows(parse_rid(rid), offset, count, start, total)
        offset += count


def to_host(
    tensors: tuple[torch.Tensor, ...],
) -> tuple[list[torch.Tensor], Callable[[], None]]:
    """Copies on the CPU, and a function that waits until they hold their values.

    CUDA: asynchronous copies into pinned memory, ordered on the current stream, so before
    anything that reuses the device buffers; PyTorch's host allocator recycles the pinned
    blocks. CPU: the tensors themselves; a forward's outputs are fresh and are not written
    again.
    """
    if not tensors[0].is_cuda:
        return list(tensors), lambda: None
    copies = [torch.empty(t.shape, dtype=t.dtype, pin_memory=True) for t in tensors]
    for copy, tensor in zip(copies, tensors, strict=True):
        copy.copy_(tensor, non_blocking=True)
    event = torch.cuda.Event()
    event.record()
    return copies, event.synchronize
