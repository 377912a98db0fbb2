"""``plugin.json``: what the server's plugin says of itself, and what its dumps must look like."""

from dataclasses import dataclass
from typing import Any

import pydantic

TOLERANCE = 0.02  # largest relative witness error in bf16; measured in hs_dump/proof.py


@dataclass(frozen=True)
class Expected:
    """What every dump of a job must look like.

    ``tolerances``: the largest witness error allowed for each stored state; None for a state that
    is accepted without a witness. Empty: :data:`TOLERANCE` for all.
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
    """How one state is captured, and how the first pass proved it."""

    state: str  # "boundary 31" or "final"
    seam: str  # which of the plugin's ways is used; "" when none was proven
    witness: str  # what is recomputed and compared with which reading; "" without a witness
    error: float | None = None  # relative; the largest over the canary's tokens
    tolerance: float = 0.0
    errors: dict[str, float] = {}  # by seam
    reason: str = ""  # why it has no witness


class PluginInfo(pydantic.BaseModel, frozen=True):
    """``plugin.json``, written by the process that hooks the model."""

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
    device: str = ""  # "NVIDIA H200", "cpu"; empty = not recorded
    boundaries: tuple[int, ...] = ()
    stores_final: bool = True
    proven: bool = False  # whether the first pass, the canary's, has been judged
    capture: tuple[StateCapture, ...] = ()
    unwitnessed: dict[str, str] = {}  # state -> reason
    dump_all: bool = False
    budget_bytes: int = 0
    replicas: int = 1
    checked_with_this_sglang: bool = True
    weights: dict[str, str] = {}  # digests of the weights' files; empty = not recorded
    weights_folder: str = ""  # the folder that the loader read
    weights_checked: bool = False  # whether the checkpoint was checked for missing tensors
    accepted_missing: tuple[str, ...] = ()

    @property
    def expected(self) -> Expected:
        """What every dump of this server must look like."""
        tolerances = tuple(
            None if state.state in self.unwitnessed else state.tolerance for state in self.capture
        )
        return Expected(self.boundaries, self.hidden_size, self.stores_final, tolerances)

    def witness_sentence(self) -> str:
        """How the canary's states were proven, in words that are the same on every host."""
        if self.unwitnessed:
            return "NOT WITNESSED: " + "; ".join(f"{s}: {r}" for s, r in self.unwitnessed.items())
        return "each is what its layer read, of every token of the canary request"

    def identity(self) -> dict[str, Any]:
        """Fields that must not change while a job runs, besides the weights' digests."""
        names = (
            *("model_class", "num_layers", "hidden_size", "vocab_size"),
            *("dtype", "boundaries", "stores_final", "unwitnessed", "dump_all"),
            *("sglang_version", "plugin_version"),
        )
        return {name: getattr(self, name) for name in names}
