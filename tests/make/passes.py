"""Forward passes as the plugin's hooks see them, with states that name their row."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hs_dump.capture import Capture
from hs_dump.proof import Proof
from hs_dump.seams import Seen
from hs_dump.witness import Check, Testimony
from hs_dump.writer import Budget, Writer

from hslib.dataset import Sample
from hslib.errors import DumpError
from hslib.server.dumps import DumpDir, request_id
from hslib.server.plugin_info import Expected
from hslib.server.validate import validate

HIDDEN, BOUNDARIES = 16, (1, 3)

EXPECTED = Expected(BOUNDARIES, HIDDEN)

META = {
    "boundaries": list(BOUNDARIES),
    "pid": os.getpid(),
    "plugin_version": "1",
    "sglang_version": "0",
}


class Recorded:
    """Stands in for a model's hooks: states that a test made, each testified to by itself."""

    def __init__(self) -> None:
        self.seen, self.proof = Seen(), Proof(stores_final=True)
        self.boundaries, self.stores_final, self.places = BOUNDARIES, True, (*BOUNDARIES, "final")

    def states(self, _aux: Any = None) -> list[torch.Tensor]:
        """Those that :func:`forward` put beside the logits."""
        return list(self.made)

    def testimony(self, _logits: Any, _rows: list[int]) -> Testimony:
        assert self.seen.index is not None
        checks = [Check(n, None, state[self.seen.index]) for n, state in enumerate(self.made)]
        return Testimony(tuple(checks), len(self.made))


def make_capture(root: Path, limit: int = 1 << 20, wait_s: float = 5.0, **kw: Any) -> Capture:
    writer = Writer(root, len(BOUNDARIES) + 1, HIDDEN, Budget(root, limit, wait_s), META)
    return Capture(writer, Recorded(), kw.pop("dump_all", False), **kw)  # type: ignore[arg-type]


def run(capture: Capture, batch: Any, output: Any) -> None:
    """A forward pass as the hooks see it."""
    capture._recorder.seen.begin(sum(batch.extend_seq_lens_cpu))
    capture._recorder.made = output.states  # type: ignore[attr-defined]
    try:
        capture.begin(batch)
        capture.take(batch, output)
    finally:
        capture.end()


def forward(
    *parts: tuple[str, Sample, int, int], mode: str = "EXTEND", extra_rows: int = 0
) -> tuple[Any, Any]:
    """A forward pass over ``(rid, sample, first row, rows)`` with states that name their row."""
    ids = torch.cat([torch.from_numpy(s.input_ids[a : a + n].astype("i8")) for _, s, a, n in parts])
    rows = len(ids)
    states = torch.arange(rows * 3 * HIDDEN).view(rows, 3, HIDDEN).remainder(251)
    states = states.to(torch.bfloat16)
    batch = SimpleNamespace(
        rids=[rid for rid, *_ in parts],
        forward_mode=SimpleNamespace(name=mode),
        extend_prefix_lens_cpu=[a for *_, a, _n in parts],
        extend_seq_lens_cpu=[n for *_, n in parts],
        hs_dump_totals=[s.num_tokens for _, s, *_ in parts],
        input_ids=torch.cat([ids, torch.zeros(extra_rows, dtype=torch.int64)]),
    )
    made = [state.contiguous() for state in states.unbind(1)]
    logits = SimpleNamespace(next_token_logits=None, hidden_states=None)
    return batch, SimpleNamespace(logits_output=logits, states=made)


def received(root: Path, sample: Sample, attempt: int = 1) -> torch.Tensor:
    dumps, rid = DumpDir(root), request_id(sample, attempt)
    dumps.wait(rid, 5)
    dump = dumps.load(rid)
    validate(dump, sample, EXPECTED)
    return torch.from_numpy(dump.hidden_states.copy()).view(torch.bfloat16)


def server_error(root: Path, sample: Sample) -> str:
    with pytest.raises(DumpError) as caught:
        DumpDir(root).wait(request_id(sample, 1), 5)
    assert not list(root.glob(".tmp-*")), "a failed dump must leave nothing behind"
    return caught.value.message
