"""The dump directory: what the server wrote for a request, and whether it is right.

Names are opaque here except in :func:`request_id`; a dump is whatever directory holds a
``done`` marker. Knows nothing of HTTP or of the store.
"""

import json
import os
import re
import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pydantic
import xxhash

from hslib.dataset import Sample
from hslib.errors import DumpError
from hslib.files import TensorFileError, open_tensors

_DUMP_FILES = ("done", "error.json", "meta.json", "hidden_states.safetensors")
TOLERANCE = 0.02  # of a witness in bf16; hs_dump's proof.py says why
DUMP_SHARE = 0.8  # of what the dump directory has free; the rest is small files and others
DUMP_TOKEN_BYTES, _DUMP_BYTES = 4, 512  # int32 id; header and small files, as the plugin counts
_EXPONENT = 0x7F80  # a bf16 whose exponent bits are all set is inf or nan


def dump_bytes(num_tokens: int, num_rows: int, state_bytes_per_token: int) -> int:
    """What a request's dumps take in the dump directory."""
    return num_tokens * (state_bytes_per_token + DUMP_TOKEN_BYTES) + num_rows * _DUMP_BYTES


class LayerNumbers(pydantic.BaseModel, frozen=True):
    """What the server measured of one state over a sample."""

    finite: bool
    absmax: float | None
    mean_l2: float | None
    zero_share: float
    witness: float | None = None  # largest error over the witnessed tokens; None: no witness


class DumpMeta(pydantic.BaseModel, frozen=True):
    """``meta.json`` of a dump."""

    rid: str
    num_tokens: int
    boundaries: tuple[int, ...]
    hidden_size: int
    dtype: str
    chunks: tuple[tuple[int, int], ...]  # (first row, rows) of each forward pass
    checksums: dict[str, str]  # tensor -> xxh3-64
    layers: tuple[LayerNumbers, ...]  # of each stored state in order
    stores_final: bool = True
    witnessed_tokens: int = 0
    pid: int
    plugin_version: str
    sglang_version: str


@dataclass(frozen=True)
class Expected:
    """What every dump of a job must look like.

    ``tolerances``: the largest witness error of each stored state; None for a state that is
    accepted without a witness. Empty: :data:`TOLERANCE` for all.
    """

    boundaries: tuple[int, ...]
    hidden_size: int
    stores_final: bool = True
    tolerances: tuple[float | None, ...] = ()

    @property
    def num_states(self) -> int:
        return len(self.boundaries) + self.stores_final

    @property
    def limits(self) -> tuple[float | None, ...]:
        return self.tolerances or (TOLERANCE,) * self.num_states


class StateCapture(pydantic.BaseModel, frozen=True):
    """How one state is taken, and how that was proven at start."""

    state: str  # "boundary 31" or "final"
    seam: str  # which of the plugin's ways to take it; "" when none was proven
    witness: str  # what is recomputed, and against whose reading; "" without a witness
    error: float | None = None  # the largest over the canary's tokens
    tolerance: float = 0.0
    errors: dict[str, float] = {}  # of every way that was there
    reason: str = ""  # why it has no witness


class PluginInfo(pydantic.BaseModel, frozen=True):
    """``plugin.json``: the process that really hooks the model, in its own words."""

    pid: int
    plugin_version: str
    sglang_version: str
    written_at: float  # unix seconds
    problems: tuple[str, ...] = ()
    model_path: str = ""
    model_class: str = ""
    num_layers: int = 0
    hidden_size: int = 0
    vocab_size: int = 0
    dtype: str = ""
    boundaries: tuple[int, ...] = ()
    stores_final: bool = True
    proven: bool = False  # whether a pass has been judged; the canary is the first
    capture: tuple[StateCapture, ...] = ()
    unwitnessed: dict[str, str] = {}  # state -> reason
    dump_all: bool = False
    budget_bytes: int = 0
    replicas: int = 1
    checked_with_this_sglang: bool = True
    weights: dict[str, str] = {}  # digests of the weights' files; empty = not recorded
    weights_folder: str = ""  # that the loader read
    weights_checked: bool = False  # that the checkpoint lacks no tensor
    accepted_missing: tuple[str, ...] = ()

    @property
    def expected(self) -> Expected:
        """What every dump of this server must look like."""
        tolerances = tuple(
            None if state.state in self.unwitnessed else state.tolerance for state in self.capture
        )
        return Expected(self.boundaries, self.hidden_size, self.stores_final, tolerances)

    def witness_sentence(self) -> str:
        """How the canary's states were proven, in words, with figures that differ by no host."""
        if self.unwitnessed:
            return "NOT WITNESSED: " + "; ".join(f"{s}: {r}" for s, r in self.unwitnessed.items())
        return "each is what its layer read, of every token of the canary request"

    def identity(self) -> dict[str, Any]:
        """What must not change while a job runs, besides the model's weights and states."""
        names = (
            *("model_class", "num_layers", "hidden_size", "vocab_size"),
            *("dtype", "boundaries", "stores_final", "unwitnessed", "dump_all"),
            *("sglang_version", "plugin_version"),
        )
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, eq=False)
class Dump:
    """A complete dump, memory-mapped.

    ``input_ids`` int32 [T]; ``hidden_states`` uint16 [T, L, H], the bits of bfloat16,
    boundaries ascending and the final state last.
    """

    name: str
    path: Path
    input_ids: np.ndarray
    hidden_states: np.ndarray
    meta: DumpMeta

    def layer_numbers(self) -> list[dict[str, Any]]:
        """What the server measured of each state, for the journal."""
        return [layer.model_dump() for layer in self.meta.layers]


def request_id(sample: Sample, attempt: int) -> str:
    """``hs-{index}-{num_tokens}-{16 hex of the digest}-{attempt}``; the plugin reads it.

    Args:
        attempt: a number that no earlier try at this sample had, in this run or another:
            SGLang refuses an id that is still in flight, of a killed job for instance.
    """
    return f"hs-{sample.index}-{sample.num_tokens}-{sample.digest[:16]}-{attempt}"


class DumpDir:
    """Clear, scan, read and remove dumps below one directory."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    def names(self) -> list[str]:
        """Directories that hold nothing but a dump's files, sorted; hidden ones are the server's.

        Whatever else lies in the directory is somebody's, and none of our business.
        """
        try:
            found = [e.name for e in os.scandir(self.root) if e.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            return []
        return sorted(n for n in found if not n.startswith(".") and self._is_dump(n))

    def _is_dump(self, name: str) -> bool:
        try:
            return {entry.name for entry in os.scandir(self.root / name)} <= set(_DUMP_FILES)
        except FileNotFoundError:  # removed meanwhile
            return False

    def clear(self, names: Iterable[str]) -> None:
        for name in names:
            self.remove(name)

    def remove(self, name: str) -> None:
        """Remove one dump. The marker goes first: a half-removed dump is never complete."""
        path = self._inside(name)
        if path.is_symlink() or not path.is_dir():
            return
        for part in _DUMP_FILES:
            (path / part).unlink(missing_ok=True)
        try:
            path.rmdir()
        except FileNotFoundError:
            return
        except OSError:  # it holds more than a dump's files
            shutil.rmtree(path, ignore_errors=True)

    def is_complete(self, name: str) -> bool:
        return (self.root / name / "done").exists()

    def wait(self, name: str, timeout_s: float) -> None:
        """Return when the dump is complete.

        Raises:
            DumpError: the server's own ``error.json``, or nothing complete in time.
        """
        deadline, pause = time.monotonic() + timeout_s, 0.0005
        while not self.is_complete(name):
            self.raise_server_error(name)
            if not self.root.is_dir():
                raise DumpError("the dump directory is gone", check="done", path=str(self.root))
            if time.monotonic() > deadline:
                raise DumpError(
                    f"no complete dump within {timeout_s:g} s of the answer",
                    check="done",
                    path=str(self.root / name),
                    fix="see server.log; is the dump directory full, or another server's?",
                )
            time.sleep(pause)
            pause = min(pause * 1.5, 0.02)

    def raise_server_error(self, name: str) -> None:
        """Raise what the server said in ``error.json``, if it did."""
        path = self.root / name / "error.json"
        try:
            reason = json.loads(path.read_text())["reason"]
        except FileNotFoundError:
            return
        raise DumpError(
            f"the server could not dump it: {reason}", check="error.json", path=str(path)
        )

    def load(self, name: str) -> Dump:
        """Map a complete dump.

        Raises:
            DumpError: unreadable or cut short.
        """
        path = self.root / name
        try:
            meta = DumpMeta.model_validate_json((path / "meta.json").read_bytes())
            file = open_tensors(path / "hidden_states.safetensors")
            arrays = file.arrays
            return Dump(name, path, arrays["input_ids"], arrays["hidden_states"], meta)
        except (TensorFileError, pydantic.ValidationError, FileNotFoundError, KeyError) as error:
            raise DumpError(
                f"unreadable dump: {error}", check="readable", path=str(path)
            ) from error

    def plugin(self) -> PluginInfo | None:
        """``plugin.json``, or None when no plugin has written it."""
        try:
            return PluginInfo.model_validate_json((self.root / "plugin.json").read_bytes())
        except FileNotFoundError:
            return None

    def plugin_mark(self) -> tuple[int, int]:
        """Changes when ``plugin.json`` does, which a server writes before it serves; cheap."""
        try:
            found = os.stat(self.root / "plugin.json")
        except FileNotFoundError:
            return (0, 0)
        return (found.st_ino, found.st_mtime_ns)

    def free_bytes(self) -> int:
        """Bytes that the directory's file system has free."""
        found = os.statvfs(self.root)
        return found.f_bavail * found.f_frsize

    def _inside(self, name: str) -> Path:
        if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", name):
            raise DumpError(f"{name!r} is not a dump's name", path=str(self.root))
        return self.root / name


def validate(dump: Dump, sample: Sample, expected: Expected) -> "xxhash.xxh3_64":
    """Prove that a dump is this sample's states; the one gate before anything is stored.

    Returns:
        The running xxh3-64 over the states' bytes, so that the store need not read them again.

    Raises:
        DumpError: with the check's name, what was expected and what came.
    """
    _check_tokens(dump, sample)
    shape = (sample.num_tokens, expected.num_states, expected.hidden_size)
    for check, wanted, got in (
        ("boundaries", expected.boundaries, dump.meta.boundaries),
        ("shape", shape, dump.hidden_states.shape),
        ("dtype", "bfloat16", dump.meta.dtype),
        ("num_tokens", sample.num_tokens, dump.meta.num_tokens),
        ("numbers of each state", expected.num_states, len(dump.meta.layers)),
        ("final", expected.stores_final, dump.meta.stores_final),
    ):
        if wanted != got:
            _fail(dump, sample, check, wanted, got)
    states_hash = xxhash.xxh3_64(dump.hidden_states.data)
    if states_hash.hexdigest() != dump.meta.checksums.get("hidden_states"):
        promised = dump.meta.checksums.get("hidden_states")
        _fail(dump, sample, "checksum", promised, states_hash.hexdigest())
    _check_values(dump, sample, expected)
    _check_witness(dump, sample, expected)
    return states_hash


def _check_tokens(dump: Dump, sample: Sample) -> None:
    if len(dump.input_ids) != sample.num_tokens:
        _fail(dump, sample, "rows", sample.num_tokens, len(dump.input_ids))
    differs = np.flatnonzero(dump.input_ids != sample.input_ids)
    if len(differs):
        at = int(differs[0])
        wanted, got = int(sample.input_ids[at]), int(dump.input_ids[at])
        _fail(dump, sample, f"input_ids at {at}", wanted, got)


def _check_values(dump: Dump, sample: Sample, expected: Expected) -> None:
    """Finite, and no state all zero or constant: by the server's numbers on these very bytes."""
    for number, layer in enumerate(dump.meta.layers):
        label = state_label(number, expected.boundaries)
        if not layer.finite:
            row = first_non_finite(dump.hidden_states[:, number])
            _fail(dump, sample, f"finite ({label})", "finite values", f"inf or nan in row {row}")
        if layer.zero_share == 1.0:
            _fail(dump, sample, f"not all zero ({label})", "values", "only zeros")
        first = dump.hidden_states[0, number]
        if (first == first[0]).all() and (dump.hidden_states[:, number] == first[0]).all():
            _fail(dump, sample, f"not constant ({label})", "values", "one value throughout")


def _check_witness(dump: Dump, sample: Sample, expected: Expected) -> None:
    """Each state is what its layer read: by the server's recomputation of a few of its tokens."""
    limits = zip(dump.meta.layers, expected.limits, strict=True)
    for number, (layer, limit) in enumerate(limits):
        if limit is None:
            continue
        label = state_label(number, expected.boundaries)
        got = layer.witness if dump.meta.witnessed_tokens else None
        if got is None or not got <= limit:
            wanted = f"an error up to {limit:g}"
            _fail(dump, sample, f"witness ({label})", wanted, "no witness" if got is None else got)


def first_non_finite(states: np.ndarray) -> int:
    """First row of uint16 [T, H] (bf16 bits) that holds inf or nan; -1 when none does."""
    rows = np.flatnonzero(((states & _EXPONENT) == _EXPONENT).any(axis=-1))
    return int(rows[0]) if len(rows) else -1


def state_label(number: int, boundaries: Sequence[int]) -> str:
    """``"boundary 31"`` or ``"final"`` for the ``number``-th stored state."""
    return f"boundary {boundaries[number]}" if number < len(boundaries) else "final"


def _fail(dump: Dump, sample: Sample, check: str, expected: Any, got: Any) -> None:
    raise DumpError(
        f"dump {dump.name} is not sample {sample.index}'s states: {check}",
        index=sample.index,
        check=check,
        expected=expected,
        got=got,
        path=str(dump.path),
    )
