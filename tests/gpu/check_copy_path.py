"""Check the plugin's device-to-host path on a machine with a CUDA GPU: torch alone, no SGLang.

    python tests/gpu/check_copy_path.py

What a forward pass does, on a stream of its own: compute states, hand them to the plugin,
and at once overwrite the device buffers with the next forward's. Every dump must hold the
states of its own forward, bit by bit. Prints one line a check and the copy rates; exit code
0 only if all are right. The negative control copies without waiting and must be seen to fail
or be reported as not shown.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "patches" / "hs_dump"))

from hs_dump.capture import Capture, to_host
from hs_dump.dump_file import header_bytes
from hs_dump.proof import Proof
from hs_dump.seams import Seen
from hs_dump.witness import Check, Testimony
from hs_dump.writer import Budget, Writer

HIDDEN, STATES, TOKENS, FORWARDS = 7168, 4, 1024, 24


def states_of(shape: torch.Size, number: int, device: str) -> torch.Tensor:
    """Values of forward ``number``: small integers, exact in bfloat16."""
    count = shape.numel()
    return (torch.arange(count, device=device).view(shape) % 199 + number).to(torch.bfloat16)


def fill(buffer: torch.Tensor, number: int) -> None:
    """States of forward ``number``, in place, behind work that keeps the stream busy."""
    busy = torch.ones(2048, 2048, device=buffer.device)
    for _ in range(8):
        busy = busy @ busy * 1e-3
    buffer.copy_(states_of(buffer.shape, number, "cuda"))


class Buffers:
    """Stands in for a model's hooks: device buffers that the next forward overwrites."""

    boundaries, stores_final, places = (1, 2, 3), True, (1, 2, 3, "final")

    def __init__(self) -> None:
        self.seen, self.proof = Seen(), Proof(stores_final=True)
        shape = (STATES, TOKENS, HIDDEN)
        self.buffers = torch.empty(shape, dtype=torch.bfloat16, device="cuda")

    def run(self, number: int) -> None:
        """A forward: each layer's state is taken, and what it read is remembered."""
        fill(self.buffers, number)
        for place, buffer in zip(self.places, self.buffers, strict=True):
            self.seen.keep(place, "stage", buffer, owned=False)
            self.seen.read(place, "mixer", buffer)

    def states(self, _aux: object) -> list[torch.Tensor]:
        return [self.seen.states[place, "stage"] for place in self.places]

    def testimony(self, _logits: object, _rows: object) -> Testimony:
        reads = [self.seen.reads[place, "mixer"][0] for place in self.places]
        return Testimony(tuple(Check(n, None, read) for n, read in enumerate(reads)), STATES)


def check_dumps(root: Path) -> bool:
    """Forwards back to back into the same device buffers, each dumped."""
    writer = Writer(root, STATES, HIDDEN, Budget(root, 8 << 30, 60.0), {"boundaries": [1, 2, 3]})
    model = Buffers()
    capture = Capture(writer, model, dump_all=False)  # type: ignore[arg-type]
    stream = torch.cuda.Stream()
    ids = torch.empty(TOKENS, dtype=torch.int64, device="cuda")
    names = [f"hs-{i}-{TOKENS}-{i:016x}-1" for i in range(FORWARDS)]
    started = time.perf_counter()
    with torch.cuda.stream(stream):
        for number, name in enumerate(names):
            ids.fill_(number)
            batch = SimpleNamespace(
                rids=[name],
                forward_mode=SimpleNamespace(name="EXTEND"),
                extend_prefix_lens_cpu=[0],
                extend_seq_lens_cpu=[TOKENS],
                hs_dump_totals=[TOKENS],
                input_ids=ids,
            )
            model.seen.begin(TOKENS)
            capture.begin(batch)
            model.run(number)
            nothing = SimpleNamespace(next_token_logits=None, hidden_states=None)
            capture.take(batch, SimpleNamespace(logits_output=nothing))
            capture.end()
    enqueued = time.perf_counter() - started
    wrong = [n for n, name in enumerate(names) if not is_right(root, name, n)]
    took = time.perf_counter() - started
    size = FORWARDS * TOKENS * STATES * HIDDEN * 2
    print(f"  {FORWARDS} forwards enqueued in {enqueued:.2f} s, all dumped after {took:.2f} s")
    print(f"  {size / 1e9:.2f} GB: {size / took / 1e9:.2f} GB/s from device to verified file")
    print(f"  wrong dumps: {wrong or 'none'}")
    return not wrong


def is_right(root: Path, name: str, number: int) -> bool:
    path = root / name
    deadline = time.monotonic() + 60
    while not (path / "done").exists():
        if time.monotonic() > deadline or (path / "error.json").exists():
            return False
        time.sleep(0.002)
    offset = len(header_bytes(TOKENS, STATES, HIDDEN))
    data = (path / "hidden_states.safetensors").read_bytes()
    count = TOKENS * STATES * HIDDEN
    states = torch.frombuffer(bytearray(data), dtype=torch.bfloat16, offset=offset, count=count)
    states = states.view(TOKENS, STATES, HIDDEN).transpose(0, 1)
    wanted = states_of(torch.Size((STATES, TOKENS, HIDDEN)), number, "cpu")
    layers = json.loads((path / "meta.json").read_text())["layers"]
    return torch.equal(states, wanted) and all(layer["witness"] == 0 for layer in layers)


def check_asynchrony() -> bool:
    """The hand-over must return while the device still works, into pinned memory."""
    source = torch.empty(8192, 3 * HIDDEN, dtype=torch.bfloat16, device="cuda")
    torch.cuda.synchronize()
    fill(source, 0)
    started = time.perf_counter()
    (copy,), wait = to_host((source,))
    handed_over = time.perf_counter() - started
    wait()
    took = time.perf_counter() - started
    size = copy.numel() * 2
    print(f"  handed over in {handed_over * 1e3:.2f} ms, copied after {took * 1e3:.2f} ms")
    print(f"  pinned: {copy.is_pinned()}; {size / took / 1e9:.1f} GB/s with the kernel before it")
    return copy.is_pinned() and torch.equal(copy, source.cpu())


def show_that_waiting_matters() -> None:
    """Negative control: what is read before ``wait`` can be unfinished."""
    source = torch.empty(8192, 3 * HIDDEN, dtype=torch.bfloat16, device="cuda")
    fill(source, 5)
    (copy,), wait = to_host((source,))
    early = copy.clone()
    wait()
    seen = not torch.equal(early, copy)
    print(f"  reading early gave unfinished states: {'yes' if seen else 'not shown this time'}")


def main() -> int:
    if not torch.cuda.is_available():
        print("no CUDA device here: nothing was checked")
        return 2
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    print("asynchronous copy into pinned memory")
    good = check_asynchrony()
    print("negative control")
    show_that_waiting_matters()
    print("dumps of forwards that reuse their device buffers at once")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as root:
        good = check_dumps(Path(root)) and good
    print("all right" if good else "WRONG")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
