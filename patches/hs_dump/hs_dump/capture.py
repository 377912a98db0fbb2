"""Take each request's rows out of a forward pass and hand them to the writer."""

import logging
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hs_dump.names import Name, parse_rid
from hs_dump.proof import Proof
from hs_dump.recorder import Recorder
from hs_dump.witness import TOKENS, pick_rows
from hs_dump.writer import Chunk, Pass, Writer

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Rows:
    """One request's part of a forward pass."""

    name: Name | None  # None: its id must not become a path
    offset: int  # first row in the forward's tensors
    count: int
    start: int  # first row in the request
    total: int  # tokens of the request


def is_dumped(forward_batch: Any, dump_all: bool) -> bool:
    """Whether a pass has rows to dump; every rank sees the same batch and answers the same."""
    if not forward_batch.rids or forward_batch.forward_mode.name not in ("EXTEND", "MIXED"):
        return False
    names = [parse_rid(rid) for rid in forward_batch.rids]
    return any(n is not None and (dump_all or n.claimed_tokens is not None) for n in names)


class Capture:
    """Splits forward passes by request.

    Args:
        dump_all: dump requests without the kit's ids too, as ``req_{n}``.
        accept_unwitnessed: dump states that no layer confirms, marked as such.
        on_proof: called once, when the first pass has been judged.
        dp_rank, replicas: replica r of n counts r, r + n, r + 2n, so names stay unique.
    """

    def __init__(
        self,
        writer: Writer,
        recorder: Recorder,
        dump_all: bool,
        accept_unwitnessed: bool = False,
        on_proof: Callable[[Proof], None] = lambda _proof: None,
        dp_rank: int = 0,
        replicas: int = 1,
    ) -> None:
        self._writer, self._recorder, self._on_proof = writer, recorder, on_proof
        self._accept_unwitnessed = accept_unwitnessed
        self._dump_all, self._counter, self._step = dump_all, dp_rank, replicas
        self._counted: dict[str, str] = {}
        self._ignored_rids = 0
        self._draw = random.Random()
        self._wanted: list[tuple[Rows, str]] = []
        self._picked: list[int] = []  # the witnessed rows of the pass, ascending

    def describe(self) -> dict[str, Any]:
        """What plugin.json says of the capture."""
        return {
            "boundaries": list(self._recorder.boundaries),
            "stores_final": self._recorder.stores_final,
            "dump_all": self._dump_all,
            "budget_bytes": self._writer.budget.limit_bytes,
            "replicas": self._step,
        }

    def begin(self, forward_batch: Any) -> None:
        """Before a pass: choose the rows that are witnessed."""
        named = [(rows, self._directory(rows)) for rows in split_rows(forward_batch)]
        self._wanted = [(rows, directory) for rows, directory in named if directory]
        if not self._wanted:
            return
        self._picked = [row for rows, _ in self._wanted for row in self._pick(rows)]
        device = forward_batch.input_ids.device
        index = torch.tensor(self._picked, dtype=torch.int64, pin_memory=device.type == "cuda")
        self._recorder.seen.index = index.to(device, non_blocking=True)

    def _pick(self, rows: Rows) -> list[int]:
        everything = self._recorder.proof is None or (rows.name is not None and rows.name.is_canary)
        return pick_rows(rows.offset, rows.count, 0 if everything else TOKENS, self._draw)

    def take(self, forward_batch: Any, output: Any) -> None:
        """After a pass: hand its states to the writer; returns at once if none is dumped."""
        if not self._wanted:
            return
        logits_output = output.logits_output
        logits = getattr(logits_output, "next_token_logits", None)
        aux = getattr(logits_output, "hidden_states", None)
        logits, last_rows = self._last_rows(forward_batch, logits)
        if self._recorder.proof is None:
            self._on_proof(self._recorder.prove(logits, last_rows, aux))
        assert self._recorder.proof is not None
        unwitnessed = self._recorder.proof.unwitnessed()
        if unwitnessed and not self._accept_unwitnessed:
            raise RuntimeError(f"not witnessed: {unwitnessed}")
        states = self._recorder.states(aux)
        testimony = self._recorder.testimony(logits, last_rows)
        tensors = [forward_batch.input_ids, *states, *testimony.tensors()]
        copies, wait = to_host(tensors)
        ids, copies = copies[0], copies[1:]
        forward = Pass(
            copies[: len(states)], self._picked, testimony.on_host(copies[len(states) :]), wait
        )
        deadline = self._writer.budget.deadline()
        for rows, directory in self._wanted:
            assert rows.name is not None
            reason = self._refusal(rows, directory, deadline)
            if reason:
                self._writer.fail(rows.name, directory, reason)
                continue
            part = ids[rows.offset : rows.offset + rows.count]
            self._writer.put(
                Chunk(rows.name, directory, rows.total, rows.start, part, forward, rows.offset)
            )

    def _refusal(self, rows: Rows, directory: str, deadline: float) -> str:
        """Reserve a request's bytes; returns why it can't be dumped, or ""."""
        assert rows.name is not None
        if rows.name.claimed_tokens not in (None, rows.total):
            return f"the id says {rows.name.claimed_tokens} tokens, the request has {rows.total}"
        if rows.start:
            return ""
        self._writer.expect(rows.name, directory)
        size = self._writer.size_bytes(rows.total)
        return self._writer.budget.reserve(directory, size, deadline)

    def _last_rows(
        self, forward_batch: Any, logits: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, list[int]]:
        """Logits [R, V] of the last rows that are witnessed, and their places among these."""
        if logits is None or logits.shape[0] != len(forward_batch.rids):
            return None, []
        at = {row: number for number, row in enumerate(self._picked)}
        numbers, offset = [], 0
        for number, count in enumerate(forward_batch.extend_seq_lens_cpu):
            offset += count
            if offset - 1 in at:
                numbers.append((number, at[offset - 1]))
        chosen = torch.tensor([n for n, _ in numbers], device=logits.device)
        return logits.index_select(0, chosen), [row for _, row in numbers]

    def end(self) -> None:
        """The pass is over, however it ended."""
        self._wanted, self._picked = [], []
        self._recorder.seen.clear()

    def fail_all(self, forward_batch: Any, reason: str) -> None:
        """Write an error.json for each of the kit's requests in a pass."""
        for rid in forward_batch.rids or []:
            name = parse_rid(rid)
            if name is not None and name.claimed_tokens is not None:
                self._writer.fail(name, name.rid, reason)

    def _directory(self, rows: Rows) -> str:
        """The directory of this request's dump; "" when it is not dumped."""
        if rows.name is None:
            self._ignored_rids += 1
            logger.warning("hs_dump: ignored %d requests with unusable ids", self._ignored_rids)
            return ""
        if rows.start >= rows.total:
            return ""  # a decode step in a mixed pass
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


def split_rows(forward_batch: Any) -> Iterator[Rows]:
    """Each request's rows in a prefill pass; none for decode and dummy passes."""
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


def to_host(tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], Callable[[], None]]:
    """Copies on the CPU, and a function that waits until they hold their values.

    CUDA: asynchronous copies into pinned memory on the current stream, so they are made before
    anything there reuses the device buffers; PyTorch's host allocator recycles the pinned blocks.
    CPU: the tensors themselves, which nothing writes to again.
    """
    if not tensors[0].is_cuda:
        return list(tensors), lambda: None
    copies = [torch.empty(t.shape, dtype=t.dtype, pin_memory=True) for t in tensors]
    for copy, tensor in zip(copies, tensors, strict=True):
        copy.copy_(tensor, non_blocking=True)
    event = torch.cuda.Event()
    event.record()
    return copies, event.synchronize
