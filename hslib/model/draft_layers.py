"""The boundaries of a model that a draft reads: its ids, as the tool that wrote them counts.

Pure. A list that can be meant in two ways is an error that shows both; nothing is guessed.
"""

from typing import NamedTuple, Protocol

from hslib.errors import ParameterError
from hslib.model.draft import DFLASH, EAGLE3, Draft, LayerIds
from hslib.model.layers import Boundaries, auto_boundaries, is_default_of_outputs, readings

UNSURE = "whatever it was trained on"


class Target(Protocol):
    """What must be known of the target: :class:`hslib.model.ModelInfo` has it."""

    @property
    def architecture(self) -> str: ...

    @property
    def num_layers(self) -> int: ...

    @property
    def hidden_size(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...


class DraftLayers(NamedTuple):
    """The boundaries that a draft asks for, and how they were found."""

    boundaries: Boundaries
    source: str


def layers_of(draft: Draft, model: Target) -> DraftLayers:
    """The boundaries of ``model`` that a draft reads.

    Raises:
        ParameterError: the draft is for another target; its ids can be meant in two ways, repeat,
            descend or leave the model; or it names none, and its tool has no default.
    """
    _require_target(draft, model)
    if not draft.layer_ids:
        return _default(draft, model.num_layers)
    found = _meanings(draft, model)
    if len(found) > 1:
        raise ParameterError(
            f"its layer ids can be meant in {len(found)} ways: "
            + "; ".join(map(str, draft.layer_ids)),
            readings={how: list(boundaries) for boundaries, how in found.items()},
            fix="find out which it was trained on, and write that as "
            + " or ".join(f'layers = "{layers_text(boundaries)}"' for boundaries in found),
        )
    ((boundaries, how),) = found.items()
    _require_ascending(boundaries, model.num_layers, draft)
    return DraftLayers(boundaries, f"{draft.layer_ids[0]}: {how}")


def _meanings(draft: Draft, model: Target) -> dict[Boundaries, str]:
    """``{boundaries: who reads the ids so}``: what all fields can mean, else what each can."""
    each = [_readings(ids, draft, model) for ids in draft.layer_ids]
    common = {b: how for b, how in each[0].items() if all(b in other for other in each)}
    return common or {b: how for found in each for b, how in found.items()}


def _readings(ids: LayerIds, draft: Draft, model: Target) -> dict[Boundaries, str]:
    num_layers = model.num_layers
    outputs = tuple(i + 1 for i in ids.ids)
    if ids.dialect == "outputs":
        return {outputs: "the outputs of these layers, as every DFlash tool counts"}
    if ids.dialect == "vllm":
        writer = "speculators and vLLM" if draft.is_speculators else "vLLM"
        found = {ids.ids: f"boundaries, as {writer} read this field"}
        if draft.kind in EAGLE3 and is_default_of_outputs(ids.ids, num_layers):
            copied = "SpecForge's and Model-Optimizer's default, which a conversion copies"
            found[outputs] = f"the outputs of these layers: {copied}"
        return found
    named = readings(ids.ids, "eagle_config", num_layers, model.architecture)
    meant = {
        b: ("boundaries" if b == ids.ids else "the outputs of these layers")
        + ("" if how.startswith("each id") else f" ({how})")
        for how, b in named.items()
    }
    return {b: how for b, how in meant.items() if max(b) <= num_layers} or meant


def _default(draft: Draft, num_layers: int) -> DraftLayers:
    """The layers of a draft that names none."""
    unsaid = "its config names no layers; servers give it"
    if draft.kind == "mtp":
        return DraftLayers((num_layers,), "the last layer's output, before the final norm")
    if draft.kind == "eagle":
        return DraftLayers((), "it reads the final state alone")
    if draft.num_states in (0, 3) and (draft.kind in EAGLE3 or draft.is_speculators):
        tools = "speculators'" if draft.is_speculators else "every EAGLE-3 tool's"
        return DraftLayers(auto_boundaries(num_layers), f"{unsaid} {tools} default, {UNSURE}")
    if draft.kind in DFLASH and draft.num_draft_layers:
        ids = dflash_layer_ids(num_layers, draft.num_draft_layers)
        how = f"{unsaid} the DFlash tools' default, the outputs of {list(ids)}, {UNSURE}"
        return DraftLayers(tuple(i + 1 for i in ids), how)
    raise ParameterError(
        f"its config names no layers, and there is no default for a draft of kind {draft.kind!r}"
        + (f" that reads {draft.num_states} states" if draft.num_states else ""),
        fix='write the layers that it was trained on yourself, such as layers = "3,31,59"',
    )


def dflash_layer_ids(num_layers: int, num_draft_layers: int) -> tuple[int, ...]:
    """The layers whose outputs a DFlash draft reads when it names none: spread over ``1 .. n - 3``.

    ``build_target_layer_ids`` of z-lab's DFlash, SpecForge and SGLang.

    Raises:
        ParameterError: the model has too few layers for that.
    """
    if num_draft_layers == 1:
        return (num_layers // 2,)
    step = (num_layers - 4) / (num_draft_layers - 1)
    ids = tuple(round(1 + number * step) for number in range(num_draft_layers))
    if list(ids) != sorted(set(ids)):
        raise ParameterError(
            f"a model of {num_layers} layers has no {num_draft_layers} distinct default layers",
            fix='name them yourself, such as layers = "1,2,3"',
        )
    return ids


def _require_target(draft: Draft, model: Target) -> None:
    """Raises :class:`ParameterError` where the config is of a draft for another model."""
    differing = {
        name: f"{said:,} in the draft's config, {getattr(model, name):,} in the model's"
        for name, said in draft.target.items()
        if said != getattr(model, name)
    }
    if differing:
        name = f" ({draft.target_name})" if draft.target_name else ""
        raise ParameterError(
            f"it is a draft for another target{name} than this {model.architecture}",
            **differing,
            fix="give a draft for this model; if it is one all the same, write its layers as "
            'numbers, such as layers = "3,31,59"',
        )


def _require_ascending(boundaries: Boundaries, num_layers: int, draft: Draft) -> None:
    asked = f"it asks for boundaries {list(boundaries)} ({draft.layer_ids[0]})"
    if any(not 1 <= b <= num_layers for b in boundaries):
        raise ParameterError(
            f"{asked}, of a model with 1..{num_layers}",
            fix="is it a draft for another model? Boundary 0, the embedding, is not captured",
        )
    if list(boundaries) != sorted(set(boundaries)):
        ordered = layers_text(tuple(sorted(set(boundaries))))
        raise ParameterError(
            f"{asked}, which do not ascend: states are captured in the order of execution",
            fix=f'write layers = "{ordered}", and give them to the draft in its order',
        )


def layers_text(boundaries: Boundaries) -> str:
    """Boundaries as the parameter ``layers`` takes them."""
    return ",".join(map(str, boundaries)) or "none"
