"""What is taken of each stored sample for a drafter: boundaries, and the last state.

The last state is carried to the side of the final norm that the drafter reads. Where the store
holds boundary n, the last layer's output before the norm, no norm has to be undone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hslib.errors import ExportError
from hslib.export.drafters import ANY, Drafter
from hslib.model import FinalNorm, Side, read_final_norm
from hslib.store import Manifest

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Bridge:
    """Carries one stored state to the side of the norm that the drafter reads."""

    boundary: int | None  # of the stored state; None = final
    stored: Side
    wanted: Side
    norm: FinalNorm | None = None  # None where both sides are the same

    def carried(self, state: "torch.Tensor") -> "torch.Tensor":
        """bf16 [T, H], from the stored side to the wanted one.

        Raises:
            ExportError: this norm can't have made these states.
        """
        if self.norm is None:
            return state
        return self.norm.unnormed(state) if self.wanted == "pre" else self.norm.normed(state)

    def sentence(self) -> str:
        """Where the last state is from, for a table."""
        if self.boundary is None:
            came = " as stored" if self.norm is None else f", from the stored {self.stored}-norm"
        else:
            undone = "no norm was undone" if self.norm is None else "normed here"
            came = f", from the stored boundary {self.boundary}: {undone}"
        return f"{self.wanted}-norm{came}"


@dataclass(frozen=True)
class Reading:
    """What a drafter reads of every stored sample of a store."""

    boundaries: tuple[int, ...]
    columns: tuple[int, ...]  # of these boundaries, in the stored states
    last_column: int  # of the last state
    bridge: Bridge | None  # of the last state; None = it is not read

    def aux(self, states: "torch.Tensor") -> "torch.Tensor":
        """bf16 [T, L, H], as stored -> bf16 [T, K, H], boundaries ascending."""
        start, stop = min(self.columns, default=0), max(self.columns, default=-1) + 1
        if self.columns == tuple(range(start, stop)):
            return states[:, start:stop]  # a view
        return states[:, list(self.columns)]

    def all(self, states: "torch.Tensor") -> "torch.Tensor":
        """bf16 [T, L, H], as stored -> bf16 [T, K + 1, H], the last state last."""
        import torch

        if self.bridge is None:
            return self.aux(states)
        if self.is_as_stored(states.shape[1]):
            return states
        return torch.cat([self.aux(states), self.last(states)[:, None]], 1)

    def last(self, states: "torch.Tensor") -> "torch.Tensor":
        """bf16 [T, L, H], as stored -> bf16 [T, H], on the drafter's side of the norm.

        Raises:
            ExportError: this norm can't have made these states.
        """
        assert self.bridge is not None, "a drafter that reads no last state is not given one"
        return self.bridge.carried(states[:, self.last_column])

    def is_as_stored(self, num_states: int) -> bool:
        """Whether all stored states are read, in their order and unchanged."""
        if self.bridge is None:
            return self.columns == tuple(range(num_states))
        columns = (*self.columns, self.last_column)
        return self.bridge.norm is None and columns == tuple(range(num_states))

    @property
    def state_names(self) -> tuple[str, ...]:
        """``"boundary 31"`` and ``"last"``, in tensor order."""
        return (*(f"boundary {b}" for b in self.boundaries), *(["last"] if self.bridge else []))


def make_reading(
    manifest: Manifest,
    drafter: Drafter,
    model_path: Path,
    boundaries: Sequence[int] | None = None,
    undo_norm: bool = False,
) -> Reading:
    """What ``drafter`` reads of such a store.

    Args:
        boundaries: of the store's; None = all of them.
        undo_norm: take the final state even where boundary n is stored.

    Raises:
        ExportError: the store lacks what the drafter reads, the drafter reads another number of
            layers, or the norm can't be undone.
    """
    chosen = _choose(manifest, drafter, boundaries)
    columns = tuple(manifest.boundaries.index(b) for b in chosen)
    bridge = _bridge(manifest, drafter, model_path, undo_norm)
    last = manifest.num_states - 1
    if bridge is not None and bridge.boundary is not None:
        last = manifest.boundaries.index(bridge.boundary)
    return Reading(chosen, columns, last, bridge)


def _choose(manifest: Manifest, drafter: Drafter, named: Sequence[int] | None) -> tuple[int, ...]:
    stored, wanted = manifest.boundaries, drafter.layers
    chosen = (() if wanted == 0 else stored) if named is None else tuple(named)
    lacking = [boundary for boundary in chosen if boundary not in stored]
    if lacking:
        raise ExportError(
            f"the store lacks boundaries {lacking}",
            stored=list(stored),
            fix="name boundaries that it holds, or extract these layers",
        )
    if list(chosen) != sorted(set(chosen)):
        raise ExportError(
            f"boundaries {list(chosen)} must ascend without repeats",
            fix=f"write {sorted(set(chosen))}: a drafter's layer order is the model's",
        )
    if len(chosen) != wanted and not (wanted == ANY and chosen):
        has = f"the store has {len(chosen)}" if named is None else f"{len(chosen)} are named"
        raise ExportError(
            f"{drafter.title} reads {_number(wanted)}, {has}",
            stored=list(stored),
            fix=_how_to_choose(wanted, stored),
        )
    return chosen


def _number(wanted: int) -> str:
    words = {ANY: "one aux layer or more", 0: "the last state alone"}
    return words.get(wanted, f"exactly {_WORDS.get(wanted, wanted)} aux layers")


def _how_to_choose(wanted: int, stored: Sequence[int]) -> str:
    if wanted == 0:
        return "name no boundaries"
    least = max(wanted, 1)
    if len(stored) < least:
        number = _WORDS.get(wanted, "more")
        return f"extract with {number} boundaries, or choose a drafter that reads any number"
    such = ",".join(map(str, stored[:least]))
    return f'name them, such as boundaries = "{such}"'


_WORDS = {3: "three"}


def _bridge(
    manifest: Manifest, drafter: Drafter, model_path: Path, undo_norm: bool
) -> Bridge | None:
    wanted, num_layers = drafter.last, manifest.num_layers
    if wanted is None:
        return None
    final: Side | None = None
    if manifest.stores_final:
        final = "pre" if manifest.final_norm == "pre" else "post"
    if final == wanted:
        return Bridge(None, wanted, wanted)
    has_n = num_layers in manifest.boundaries
    if has_n and not (undo_norm and final) and (wanted == "pre" or final is None):
        norm = None if wanted == "pre" else read_final_norm(model_path)
        return Bridge(num_layers, "pre", wanted, norm)
    if final is None:
        raise ExportError(
            f"{drafter.title} reads the last state, and the store has no final state",
            stored=list(manifest.boundaries),
            fix="extract with store_final = True, or with boundary "
            f"{num_layers}, the last layer's output before the norm",
        )
    norm = read_final_norm(model_path)
    if wanted == "pre":
        norm.require_invertible()
    return Bridge(None, final, wanted, norm)
