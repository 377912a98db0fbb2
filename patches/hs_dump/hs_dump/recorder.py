"""The capture in one rank's model: the first pass proves what the later ones take.

For the first dumped pass (the kit's canary) every way to take a state is hooked, and every module's
input. That pass decides, per boundary, which tensor is the state and which module's input is its
witness (:mod:`hs_dump.proof`). Then only these stay hooked.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from hs_dump.head import Head, head_of
from hs_dump.norms import norms_within, variants
from hs_dump.proof import (
    FINAL,
    SEAMS,
    Choice,
    Proof,
    Read,
    Refusal,
    choose,
    choose_final,
    choose_last,
    label,
)
from hs_dump.seams import Hook, Hooks, Seen, entering, is_state, stage_of
from hs_dump.stack import Stack
from hs_dump.witness import Check, Testimony, dequantised

_DEPTH = 2  # hook a layer's children, and theirs: a mixer may not be called, but its projection


class Recorder:
    """The hooks in one rank's model.

    Args:
        sizes: hidden size, vocabulary.
        writes: this rank's states become dumps. The other ranks only take part in the sums that
            a stage's capture completes over all ranks.
        forced_seam: take this seam, even if the witness refuses it.
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
        """The stored states in order: boundaries, then :data:`FINAL`."""
        return (*self.boundaries, *([FINAL] if self.stores_final else []))

    @property
    def _num_layers(self) -> int:
        return len(self.stack.layers)

    @property
    def _stores_last(self) -> bool:
        return self._num_layers in self.boundaries

    def _captured_layers(self) -> list[tuple[int, torch.nn.Module]]:
        layers = self.stack.layers
        return [(b, layers[b]) for b in self.boundaries if b < len(layers)]

    # --- what is hooked ---------------------------------------------------------------------

    def _hook_everything(self) -> None:
        for boundary, layer in self._captured_layers():
            self._hooks.before(layer, self._entrance(boundary, ("sum", "hidden")))
            norms = norms_within(layer, self._hidden_size)
            for name, module in layer.named_modules():
                if name and name.count(".") < _DEPTH and name not in norms:
                    self._hooks.before(module, self._reading(boundary, name))
        for name, norm in self.stack.final_norms.items():
            self._hooks.before(norm, self._entering_norm(name))
            self._hooks.after(norm, self._output(name))
        for processor in self.stack.processors:
            self._hooks.before(processor, self._head_input(processor, whole=True))

    def _hook_what_is_proven(self, proof: Proof) -> None:
        """Hook only what later passes need; the stages stay, as other ranks rely on them."""
        self._hooks.remove()
        for boundary, layer in self._captured_layers():
            choice = proof.layers[boundary]
            seam = self._seam_of(choice)
            if seam in ("sum", "hidden"):
                self._hooks.before(layer, self._entrance(boundary, (seam,)))
            if isinstance(choice, Choice):
                reader = layer.get_submodule(choice.reader)
                self._hooks.before(reader, self._reading(boundary, choice.reader))
        name = proof.final.norm_name if proof.final else ""
        if name:
            norm = self.stack.final_norms[name]
            hook = self._entering_norm if self._stores_last else self._entering_rows
            self._hooks.before(norm, hook(name))
            self._hooks.after(norm, self._output(name))
        for processor in self.stack.processors:
            self._hooks.before(processor, self._head_input(processor, whole=not name))

    def _entrance(self, boundary: int, seams: Iterable[str]) -> Hook:
        def hook(bound: dict[str, Any]) -> None:
            hidden, residual = entering(bound, self.seen.rows)
            if "sum" in seams:
                self.seen.keep(boundary, "sum", self._sum(hidden, residual), owned=True)
            if "hidden" in seams:
                self.seen.keep(boundary, "hidden", hidden, owned=False)

        return hook

    def _sum(self, hidden: Any, residual: Any) -> Any:
        """Their sum in storage of its own; None when one of them is None."""
        if hidden is None or residual is None:
            return None
        return hidden[: self.seen.rows] + residual[: self.seen.rows]

    def _entering_norm(self, name: str) -> Hook:
        def hook(bound: dict[str, Any]) -> None:
            hidden, residual = entering(bound, self.seen.rows)
            if residual is None:
                self.seen.keep(FINAL, f"norm {name}", hidden, owned=False)
            else:
                self.seen.keep(FINAL, f"norm {name}", self._sum(hidden, residual), owned=True)

        return hook

    def _entering_rows(self, name: str) -> Hook:
        def hook(bound: dict[str, Any]) -> None:
            hidden, residual = entering(bound, self.seen.rows)
            if hidden is not None:
                self.seen.read(FINAL, f"entering {name}", hidden)
            if residual is not None:
                self.seen.read(FINAL, f"residual of {name}", residual)

        return hook

    def _reading(self, boundary: int, reader: str) -> Hook:
        def hook(bound: dict[str, Any]) -> None:
            for value in bound.values():
                if (boundary, reader) in self.seen.reads:
                    return  # only its first call counts; an expert's module may run many times
                self.seen.read(boundary, reader, value)

        return hook

    def _output(self, name: str) -> Callable[[Any], None]:
        def hook(result: Any) -> None:
            value = result[0] if isinstance(result, tuple) else result
            self.seen.keep(FINAL, f"output {name}", value, owned=False)

        return hook

    def _head_input(self, processor: Any, whole: bool) -> Hook:
        def hook(bound: dict[str, Any]) -> None:
            hidden = bound.get("hidden_states")
            self.seen.head = (processor, bound.get("lm_head"))
            self.seen.read(FINAL, "head", hidden)
            if whole:
                self.seen.keep(FINAL, "head", hidden, owned=False)

        return hook

    # --- the first pass ---------------------------------------------------------------------

    def prove(self, logits: torch.Tensor | None, last_rows: list[int], aux: Any) -> Proof:
        """Decide from the first pass; every row of it is witnessed.

        Args:
            logits: the server's, ``[R, V]``, of the rows ``last_rows``.
            aux: SGLang's own aux states side by side; used only when that seam is forced.
        """
        if "aux" in self._seams:
            for boundary in self.boundaries:
                self.seen.keep(boundary, "aux", self._aux(boundary, aux), owned=False)
        proof = Proof(self.stores_final)
        if self.stores_final or self._stores_last:
            proof.final = self._prove_final(logits, last_rows)
        for boundary in self.boundaries:
            is_last = boundary == self._num_layers and proof.final is not None
            proof.layers[boundary] = (
                choose_last(proof.final)
                if is_last and proof.final is not None
                else self._prove_layer(boundary)
            )
        self.proof = proof
        self._hook_what_is_proven(proof)
        return proof

    def _prove_layer(self, boundary: int) -> Choice | Refusal:
        reads = [
            Read(reader, dequantised(*value), value[1] is not None)
            for (place, reader), value in self.seen.reads.items()
            if place == boundary and value[0].shape[1] == self._hidden_size
        ]
        modules = norms_within(self.stack.layers[boundary], self._hidden_size)
        norms = [norm for name, module in modules.items() for norm in variants(name, module)]
        return choose(self._witnessed_rows(boundary), reads, norms, self._seams)

    def _prove_final(self, logits: torch.Tensor | None, last_rows: list[int]) -> Any:
        found = self._witnessed_rows(FINAL)
        of_kind = {
            kind: {n.removeprefix(kind): v for n, v in found.items() if n.startswith(kind)}
            for kind in ("output ", "norm ")
        }
        norms = {name: list(variants(name, m)) for name, m in self.stack.final_norms.items()}
        head: Head | str = "no head was seen"
        if self.seen.head is not None:
            head = head_of(*self.seen.head, self._hidden_size, self._vocab_size)
        said = None
        if isinstance(head, Head) and logits is not None:
            columns = logits.index_select(1, head.columns)
            said = (columns.float().cpu().numpy(), last_rows)
        outputs, entrances = of_kind["output "], of_kind["norm "]
        return choose_final(outputs, entrances, found.get("head"), norms, head, said)

    def _witnessed_rows(self, place: Any) -> dict[str, np.ndarray]:
        """The witnessed rows of a place's states, float32 ``[S, H]``, by seam."""
        index = self.seen.index
        assert index is not None
        return {
            seam: value.index_select(0, index).float().cpu().numpy()
            for (where, seam), value in self.seen.states.items()
            if where == place and value.shape[1] == self._hidden_size
        }

    # --- every pass -------------------------------------------------------------------------

    def states(self, aux: Any = None) -> list[torch.Tensor]:
        """The stored states of the pass, ``[rows, H]`` each, in order.

        Raises:
            RuntimeError: one was not seen.
        """
        if self.seen.problem:
            raise RuntimeError(f"a hook in the model failed: {self.seen.problem}")
        wanted = [self.seen.rows, self._hidden_size]
        found = []
        for place in self.places:
            state = self._state(place, aux)
            if state is None or list(state.shape) != wanted:
                shape = None if state is None else list(state.shape)
                raise RuntimeError(
                    f"{label(place)}: a state of shape {wanted} was not seen in this forward pass "
                    f"(seen: {shape}). Was a CUDA graph replayed, or the batch split? Start with "
                    "--disable-prefill-cuda-graph and without --enable-two-batch-overlap."
                )
            found.append(state)
        return found

    def _state(self, place: Any, aux: Any) -> torch.Tensor | None:
        assert self.proof is not None
        states, final = self.seen.states, self.proof.final
        if place in (FINAL, self._num_layers):
            name = final.norm_name if final else ""
            seam = "head" if not name else f"output {name}" if place == FINAL else f"norm {name}"
            return states.get((FINAL, seam))
        choice = self.proof.layers[place]
        seam = self._seam_of(choice)
        if seam == "aux" and (place, seam) not in states:
            self.seen.keep(place, seam, self._aux(place, aux), owned=False)
        if isinstance(choice, Refusal):
            usual = [(place, s) for s in (seam, *SEAMS) if (place, s) in states]
            return states[usual[0]] if usual else None
        return states.get((place, seam))

    def _seam_of(self, choice: Choice | Refusal) -> str:
        """The seam that is taken; of an unwitnessed state the first that was there."""
        if isinstance(choice, Choice):
            return choice.seam
        return next((s for s in self._seams if s in choice.errors), self._seams[0])

    def _aux(self, boundary: int, aux: Any) -> Any:
        """SGLang's own aux states of a boundary, None when they are not there."""
        if not is_state(aux, self.seen.rows):
            return None
        start = self.boundaries.index(boundary) * self._hidden_size
        return aux[:, start : start + self._hidden_size]

    def testimony(self, logits: torch.Tensor | None, last_rows: list[int]) -> Testimony:
        """What the witnesses read in the pass, on the model's device."""
        assert self.proof is not None
        checks = []
        for number, place in enumerate(self.places):
            choice = self.proof.layers.get(place)
            if isinstance(choice, Choice) and place != self._num_layers:
                read = self.seen.reads.get((place, choice.reader), (None, None))
                checks.append(Check(number, choice.norm, *read))
        checks += self._final_checks(logits, last_rows)
        return Testimony(tuple(checks), len(self.places))

    def _final_checks(self, logits: torch.Tensor | None, last_rows: list[int]) -> list[Check]:
        final = self.proof.final if self.proof else None
        if final is None or final.reason:
            return []
        read, _ = self.seen.reads.get((FINAL, "head"), (None, None))
        checks = []
        if self._stores_last and final.norm is not None:
            number = self.boundaries.index(self._num_layers)
            checks.append(Check(number, final.norm, read, scale=final.scale))
        if not self.stores_final:
            return checks
        number = len(self.places) - 1
        checks.append(Check(number, None, read, scale=final.scale))
        if final.norm is not None:
            entering_rows = self._final_entrance(final.norm_name)
            checks.append(Check(number, final.norm, entering_rows, is_entrance=True))
        if final.head is not None and logits is not None:
            said = logits.index_select(1, final.head.columns)
            checks.append(Check(number, final.head, said, scale=final.scale, rows=last_rows))
        return checks

    def _final_entrance(self, name: str) -> torch.Tensor | None:
        """The witnessed rows of the stream that entered the final norm."""
        whole = self.seen.states.get((FINAL, f"norm {name}"))
        if whole is not None and self.seen.index is not None:
            return whole.index_select(0, self.seen.index)
        hidden, _ = self.seen.reads.get((FINAL, f"entering {name}"), (None, None))
        residual, _ = self.seen.reads.get((FINAL, f"residual of {name}"), (None, None))
        if hidden is None or residual is None:
            return hidden
        return hidden.float() + residual.float()
