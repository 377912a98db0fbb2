"""One model's capture: first its candidates are proven, then only what was proven is taken.

Until the first pass that is to be dumped (the kit's canary) every way to take a state is hooked,
and what the layer's modules read. That pass decides, per boundary, which of them is the
state, and which module witnesses it from then on (:mod:`hs_dump.proof`).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from hs_dump.head import Head, head_of
from hs_dump.norms import Norm, norms_within, variants
from hs_dump.proof import SEAMS, TOLERANCE, Choice, Read, Refusal, choose, token_errors
from hs_dump.seams import Hooks, Seen, entering, is_state, stage_of
from hs_dump.stack import Stack
from hs_dump.witness import Check, Testimony, dequantised

FINAL = "final"
_DEPTH = 2  # a mixer is a child of its layer; where that is not called, its projection is
_SAME = 0.01  # bf16: the final norm's output and what the head reads are one tensor


@dataclass(frozen=True)
class FinalChoice:
    """How the final state is taken, and who witnesses it."""

    norm_name: str  # the final norm's, "" when the head's input is taken
    norm: Norm | None  # recomputed from the stream that enters it
    scale: float  # the head reads the state times this
    head: Head | None
    error: float
    reason: str  # why it is not witnessed; "" when it is
    errors: dict[str, float]


@dataclass
class Proof:
    """What the first pass decided. A place is a boundary or ``"final"``."""

    layers: dict[int, Choice | Refusal] = field(default_factory=dict)
    final: FinalChoice | None = None

    def unwitnessed(self) -> dict[str, str]:
        """Reasons, by ``"boundary 3"`` or ``"final"``."""
        found = {
            f"boundary {b}": c.reason for b, c in self.layers.items() if isinstance(c, Refusal)
        }
        if self.final is not None and self.final.reason:
            found[FINAL] = self.final.reason
        return found

    def describe(self) -> list[dict[str, Any]]:
        """For plugin.json: per stored state its seam, its witness and the errors."""
        return [_told(f"boundary {b}", choice) for b, choice in self.layers.items()] + (
            [_told_final(self.final)] if self.final is not None else []
        )


def _told(state: str, choice: Choice | Refusal) -> dict[str, Any]:
    errors = {seam: _number(error) for seam, error in choice.errors.items()}
    if isinstance(choice, Refusal):
        return {"state": state, "seam": "", "witness": "", "reason": choice.reason, "errors": errors}
    return {
        "state": state,
        "seam": choice.seam,
        "witness": f"{choice.norm} as {choice.reader} read it",
        "error": _number(choice.error),
        "tolerance": choice.tolerance,
        "errors": errors,
    }


def _told_final(final: FinalChoice) -> dict[str, Any]:
    told = [f"{final.norm} of the stream that enters it"] if final.norm else []
    told += ["the server's logits"] if final.head else []
    return {
        "state": FINAL,
        "seam": final.norm_name or "head",
        "witness": "" if final.reason else " and ".join(told),
        "reason": final.reason,
        "error": _number(final.error),
        "tolerance": TOLERANCE,
        "errors": {name: _number(error) for name, error in final.errors.items()},
    }


def _number(error: float) -> float:
    return round(float(error), 6) if np.isfinite(error) else 1e9


class Recorder:
    """The hooks in one rank's model.

    Args:
        writes: this rank's states become dumps. Another rank only takes part in what the stages
            of all ranks do together.
        forced_seam: take this one, whatever the witness says of it.
    """

    def __init__(
        self,
        stack: Stack,
        boundaries: tuple[int, ...],
        stores_final: bool,
        sizes: tuple[int, int],
        writes: bool = True,
        forced_seam: str = "",
    ) -> None:
        self.seen = Seen(keeps=writes)
        self.proof: Proof | None = None
        self.stack, self.boundaries, self.stores_final = stack, boundaries, stores_final
        self._hidden_size, self._vocab_size = sizes
        self._seams = (forced_seam,) if forced_seam else SEAMS
        self._stages, self._hooks = Hooks(self.seen), Hooks(self.seen)
        for boundary, layer in self._captured_layers():
            stage = stage_of(layer)
            if stage is not None:
                self._stages.stage(stage, boundary)
        if writes:
            self._hook_everything()

    @property
    def places(self) -> tuple[Any, ...]:
        """What is stored, in order."""
        return (*self.boundaries, *([FINAL] if self.stores_final else []))

    def _captured_layers(self) -> list[tuple[int, torch.nn.Module]]:
        layers = self.stack.layers
        return [(b, layers[b]) for b in self.boundaries if b < len(layers)]

    @property
    def _num_layers(self) -> int:
        return len(self.stack.layers)

    # --- what is hooked ---------------------------------------------------------------------

    def _hook_everything(self) -> None:
        for boundary, layer in self._captured_layers():
            self._hooks.before(layer, self._entrance(boundary, ("sum", "hidden")))
            for name, module in layer.named_modules():
                is_near = name and name.count(".") < _DEPTH
                if is_near and name not in norms_within(layer, self._hidden_size):
                    self._hooks.before(module, self._reading(boundary, name))
        for name, norm in self.stack.final_norms.items():
            self._hooks.before(norm, self._entering_norm(name))
            self._hooks.after(norm, self._output(name))
        for processor in self.stack.processors:
            self._hooks.before(processor, self._head_input(processor, whole=True))

    def _hook_what_is_proven(self) -> None:
        """Only what later passes need; the stages stay, as other ranks rely on them."""
        assert self.proof is not None
        self._hooks.remove()
        for boundary, layer in self._captured_layers():
            choice = self.proof.layers[boundary]
            seam = self._seam_of(choice)
            if seam in ("sum", "hidden"):
                self._hooks.before(layer, self._entrance(boundary, (seam,)))
            if isinstance(choice, Refusal):
                continue
            reader = layer.get_submodule(choice.reader)
            self._hooks.before(reader, self._reading(boundary, choice.reader))
        final = self.proof.final
        if final is not None and final.norm_name:
            norm = self.stack.final_norms[final.norm_name]
            whole = self._num_layers in self.boundaries
            entrance = self._entering_norm if whole else self._entering_rows
            self._hooks.before(norm, entrance(final.norm_name))
            self._hooks.after(norm, self._output(final.norm_name))
        for processor in self.stack.processors:
            whole = final is None or not final.norm_name
            self._hooks.before(processor, self._head_input(processor, whole))

    def _entrance(self, boundary: int, seams: Iterable[str]) -> Callable[[dict[str, Any]], None]:
        def hook(bound: dict[str, Any]) -> None:
            hidden, residual = entering(bound, self.seen.rows)
            if "sum" in seams:
                self.seen.keep(boundary, "sum", self._sum(hidden, residual), owned=True)
            if "hidden" in seams:
                self.seen.keep(boundary, "hidden", hidden, owned=False)

        return hook

    def _sum(self, hidden: Any, residual: Any) -> Any:
        """Fresh storage; None when one of them is not there."""
        if hidden is None or residual is None:
            return None
        return hidden[: self.seen.rows] + residual[: self.seen.rows]

    def _entering_norm(self, name: str) -> Callable[[dict[str, Any]], None]:
        def hook(bound: dict[str, Any]) -> None:
            hidden, residual = entering(bound, self.seen.rows)
            if residual is None:
                self.seen.keep(FINAL, f"norm {name}", hidden, owned=False)
            else:
                self.seen.keep(FINAL, f"norm {name}", self._sum(hidden, residual), owned=True)

        return hook

    def _entering_rows(self, norm_name: str) -> Callable[[dict[str, Any]], None]:
        def hook(bound: dict[str, Any]) -> None:
            hidden, residual = entering(bound, self.seen.rows)
            if hidden is not None:
                self.seen.read(FINAL, f"entering {norm_name}", hidden)
            if residual is not None:
                self.seen.read(FINAL, f"residual of {norm_name}", residual)

        return hook

    def _reading(self, place: Any, reader: str) -> Callable[[dict[str, Any]], None]:
        def hook(bound: dict[str, Any]) -> None:
            if (place, reader) in self.seen.reads:
                return  # its first call; a module of an expert may run many times
            for value in bound.values():
                self.seen.read(place, reader, value)
                if (place, reader) in self.seen.reads:
                    return

        return hook

    def _output(self, name: str) -> Callable[[Any], None]:
        def hook(result: Any) -> None:
            value = result[0] if isinstance(result, tuple) else result
            self.seen.keep(FINAL, f"output {name}", value, owned=False)

        return hook

    def _head_input(self, processor: Any, whole: bool) -> Callable[[dict[str, Any]], None]:
        def hook(bound: dict[str, Any]) -> None:
            hidden = bound.get("hidden_states")
            self.seen.head = (processor, bound.get("lm_head"))
            self.seen.read(FINAL, "head", hidden)
            if whole:
                self.seen.keep(FINAL, "head", hidden, owned=False)

        return hook

    def testimony(self, logits: torch.Tensor | None, last_rows: list[int]) -> Testimony:
        """What was read in the pass, for the states to be held against; on the model's device."""
        assert self.proof is not None
        checks: list[Check] = []
        for number, place in enumerate(self.places):
            choice = self.proof.layers.get(place)
            if isinstance(choice, Choice) and place != self._num_layers:
                found = self.seen.reads.get((place, choice.reader))
                checks.append(Check(number, choice.norm, *(found or (None, None))))
        final = self.proof.final
        if final is None or final.reason:
            return Testimony(tuple(checks), len(self.places))
        head = self.seen.reads.get((FINAL, "head"))
        if self._num_layers in self.boundaries and final.norm is not None:
            number = self.boundaries.index(self._num_layers)
            checks.append(Check(number, final.norm, head[0] if head else None, scale=final.scale))
        if not self.stores_final:
            return Testimony(tuple(checks), len(self.places))
        number = len(self.places) - 1
        checks.append(Check(number, None, head[0] if head else None, scale=final.scale))
        if final.norm is not None:
            entering_rows = self._final_entrance(final.norm_name)
            checks.append(Check(number, final.norm, entering_rows, is_entrance=True))
        if final.head is not None and logits is not None:
            said = logits.index_select(1, final.head.columns)
            checks.append(Check(number, final.head, said, scale=final.scale, rows=last_rows))
        return Testimony(tuple(checks), len(self.places))

    def _final_entrance(self, name: str) -> torch.Tensor | None:
        """The witnessed rows of what entered the final norm, float32."""
        whole = self.seen.states.get((FINAL, f"norm {name}"))
        if whole is not None and self.seen.index is not None:
            return whole.index_select(0, self.seen.index).float()
        hidden = self.seen.reads.get((FINAL, f"entering {name}"))
        residual = self.seen.reads.get((FINAL, f"residual of {name}"))
        if hidden is None:
            return None
        return hidden[0].float() + (residual[0].float() if residual else 0)

    # --- what a pass showed -----------------------------------------------------------------

    def prove(self, logits: torch.Tensor | None, last_rows: list[int], aux: Any) -> Proof:
        """Decide from the first pass; every row of it is witnessed.

        Args:
            logits: ``[R, V]``, the server's, of the rows ``last_rows``.
            aux: SGLang's own aux states side by side, where a seam is forced to them.
        """
        for number, boundary in enumerate(self.boundaries):
            if "aux" in self._seams and is_state(aux, self.seen.rows):
                width = self._hidden_size
                part = aux[:, number * width : (number + 1) * width]
                self.seen.keep(boundary, "aux", part, owned=False)
        proof = Proof()
        if self.stores_final or self._num_layers in self.boundaries:
            proof.final = self._prove_final(logits, last_rows)
        for boundary in self.boundaries:
            proof.layers[boundary] = (
                self._prove_last(proof.final)
                if boundary == self._num_layers
                else self._prove_layer(boundary)
            )
        if not self.stores_final:
            proof.final = proof.final and _only_for_the_last_boundary(proof.final)
        self.proof = proof
        self._hook_what_is_proven()
        return proof

    def _prove_layer(self, boundary: int) -> Choice | Refusal:
        layer = self.stack.layers[boundary]
        reads = [
            Read(reader, dequantised(*value), value[1] is not None)
            for (place, reader), value in self.seen.reads.items()
            if place == boundary and value[0].shape[1] == self._hidden_size
        ]
        norms = [
            norm
            for name, module in norms_within(layer, self._hidden_size).items()
            for norm in variants(name, module)
        ]
        return choose(self._candidates(boundary), reads, norms, self._seams)

    def _candidates(self, place: Any) -> dict[str, np.ndarray]:
        """The witnessed rows of a place's states, float32, by seam."""
        assert self.seen.index is not None
        return {
            seam: value.index_select(0, self.seen.index).float().cpu().numpy()
            for (where, seam), value in self.seen.states.items()
            if where == place and value.shape[1] == self._hidden_size
        }

    def _prove_final(self, logits: torch.Tensor | None, last_rows: list[int]) -> FinalChoice:
        candidates = self._candidates(FINAL)
        read = candidates.get("head")
        if read is None or self.seen.head is None:
            why = "the head was not seen to read all rows (a sharded sequence?)"
            return FinalChoice("", None, 1.0, None, np.inf, why, {})
        name, scale, states = _final_norm(candidates, read)
        errors: dict[str, float] = {}
        norm = None
        entering_rows = candidates.get(f"norm {name}")
        if entering_rows is not None:
            options = list(variants(name, self.stack.final_norms[name]))
            tried = [float(token_errors(n.of(entering_rows), states).max()) for n in options]
            errors["norm"] = min(tried)
            norm = options[tried.index(min(tried))] if min(tried) <= TOLERANCE else None
        processor, lm_head = self.seen.head
        head = head_of(processor, lm_head, self._hidden_size, self._vocab_size)
        why = head if isinstance(head, str) else ""
        if isinstance(head, Head) and logits is not None:
            own = head.logits(states[last_rows] * scale)
            server = logits.index_select(1, head.columns).float().cpu().numpy()
            errors["head"] = float(token_errors(own, server).max())
        used = head if isinstance(head, Head) and "head" in errors else None
        wrong = {n: e for n, e in errors.items() if not e <= TOLERANCE}
        if wrong or not errors:
            told = ", ".join(f"{n} {e:.3g}" for n, e in wrong.items()) or why or "no logits"
            why = f"what was captured is not what the final norm and the head say: {told}"
            return FinalChoice(name, norm, scale, used, max(errors.values(), default=np.inf), why, errors)
        return FinalChoice(name, norm, scale, used, max(errors.values()), "", errors)

    def _prove_last(self, final: FinalChoice | None) -> Choice | Refusal:
        """Boundary n: the stream that enters the final norm, witnessed by the final state."""
        if final is None or not final.norm_name:
            return Refusal("the final norm was not found: nothing says what it was given", {})
        errors = {"sum": final.errors.get("norm", np.inf)}
        if final.norm is None or final.reason:
            why = final.reason or "the final norm of the stream is not the final state"
            return Refusal(why, errors)
        return Choice("sum", "the head", final.norm, errors["sum"], TOLERANCE, errors)

    def _seam_of(self, choice: Choice | Refusal) -> str:
        """The seam that is taken; an unwitnessed state is taken where it usually is."""
        if isinstance(choice, Choice):
            return choice.seam
        return next((s for s in self._seams if s in choice.errors or s == "aux"), "sum")

    def states(self, aux: Any = None) -> list[torch.Tensor]:
        """The stored states of the pass, ``[rows, H]`` each, in order.

        Raises:
            RuntimeError: one was not seen.
        """
        if self.seen.problem:
            raise RuntimeError(f"a hook in the model failed: {self.seen.problem}")
        found = [self._state(place, aux) for place in self.places]
        for place, state in zip(self.places, found, strict=True):
            if state is None or list(state.shape) != [self.seen.rows, self._hidden_size]:
                shape = "none" if state is None else list(state.shape)
                raise RuntimeError(
                    f"{_label(place)}: no whole state was seen in this forward pass ({shape}, needed "
                    f"[{self.seen.rows}, {self._hidden_size}]): was a CUDA graph replayed, or the "
                    "batch split? Start with --disable-prefill-cuda-graph and without "
                    "--enable-two-batch-overlap."
                )
        return [state for state in found if state is not None]

    def _state(self, place: Any, aux: Any) -> torch.Tensor | None:
        assert self.proof is not None
        states, final = self.seen.states, self.proof.final
        if place == FINAL or place == self._num_layers:
            name = final.norm_name if final else ""
            seam = "head" if not name else f"output {name}" if place == FINAL else f"norm {name}"
            return states.get((FINAL, seam))
        choice = self.proof.layers[place]
        seam = self._seam_of(choice)
        if seam == "aux" and is_state(aux, self.seen.rows):
            number, width = self.boundaries.index(place), self._hidden_size
            return aux[: self.seen.rows, number * width : (number + 1) * width].clone()
        if isinstance(choice, Refusal):
            usual = [(place, s) for s in (seam, "stage", "sum", "hidden")]
            return next((states[key] for key in usual if key in states), None)
        return states.get((place, seam))


def _final_norm(
    candidates: dict[str, np.ndarray], read: np.ndarray
) -> tuple[str, float, np.ndarray]:
    """(the norm whose output the head reads, by what it is scaled, the state)."""
    for seam, output in candidates.items():
        if not seam.startswith("output "):
            continue
        scale = float((output * read).sum() / max(float((output * output).sum()), 1e-30))
        if token_errors(output * scale, read).max() <= _SAME:
            scale = 1.0 if abs(scale - 1) < _SAME else scale
            return seam.removeprefix("output "), scale, output
    return "", 1.0, read


def _only_for_the_last_boundary(final: FinalChoice) -> FinalChoice:
    return FinalChoice(final.norm_name, final.norm, final.scale, None, final.error, "", final.errors)


def _label(place: Any) -> str:
    return FINAL if place == FINAL else f"boundary {place}"
