"""What a draft's ``config.json`` asks for of its target: which states, and of what model.

Pure: reads a parsed config, no file. The forms and their counts are those of the tools' own code:
SafeAILab's EAGLE, speculators, SpecForge, Model-Optimizer, DeepSpec, z-lab's DFlash, and of SGLang
and vLLM, which serve them. A list that can be meant in two ways is an error that shows both.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from hslib.errors import ParameterError
from hslib.model.folder import ModelInfo
from hslib.model.layers import Boundaries, auto_boundaries, is_default_of_outputs, readings

# The last state that its training or its input wants: before or after the final norm. A head for
# multi-token prediction gets either, by its family.
LastState = Literal["before", "after", "either"]

# A part of a class's name, and the kind of draft; the first that fits counts.
_CLASSES = {
    "peagle": "peagle",
    "eagle3": "eagle3",
    "dflash2": "dflash2",
    "dspark": "dspark",
    "domino": "domino",
    "dflash": "dflash",
    "nextn": "mtp",
    "mtp": "mtp",
    "eagle": "eagle",
}
_EAGLE3 = frozenset({"eagle3", "peagle"})
_DFLASH = frozenset({"dflash", "dflash2", "domino", "dspark"})
# Fields with layer ids, and how they count: a dialect of `layers`, or "outputs", the DFlash family
# (transformers' hidden_states[id + 1] in z-lab's, SpecForge's and DeepSpec's code)
_FIELDS = {
    "eagle_config.eagle_aux_hidden_state_layer_ids": "eagle_config",
    "eagle_aux_hidden_state_layer_ids": "vllm",
    "aux_hidden_state_layer_ids": "vllm",
    "dflash_config.target_layer_ids": "outputs",
    "dspark_config.target_layer_ids": "outputs",
    "dspark_target_layer_ids": "outputs",
    "target_layer_ids": "outputs",
}


class LayerIds(NamedTuple):
    """The ids in one field of a config."""

    field: str
    ids: tuple[int, ...]
    dialect: str

    def __str__(self) -> str:
        return f"{self.field} {list(self.ids)}"


@dataclass(frozen=True)
class Draft:
    """A draft model as its config describes it.

    ``target``: what the config says of the target: some of ``hidden_size``, ``vocab_size`` and
    ``num_layers``.
    """

    kind: str  # eagle, eagle3, peagle, dflash, dflash2, domino, dspark, xpress, mtp
    is_speculators: bool  # the config has speculators' form
    layer_ids: tuple[LayerIds, ...]
    num_draft_layers: int
    num_states: int  # that it reads, 0 = not said
    target: Mapping[str, int]
    target_name: str  # "" = not said

    @property
    def form(self) -> str:
        """Whose form the config has."""
        if self.is_speculators:
            return "speculators"
        if self.kind in _DFLASH:
            return "z-lab, SpecForge, Model-Optimizer or DeepSpec"
        return "its target" if self.kind == "mtp" else "SafeAILab, SpecForge or Model-Optimizer"

    @property
    def last_state(self) -> LastState:
        if self.is_speculators:
            return "before"
        return "either" if self.kind == "mtp" else "after"


class DraftLayers(NamedTuple):
    """The boundaries that a draft asks for, and how they were found."""

    boundaries: Boundaries
    source: str


def parse_draft(config: Mapping[str, Any]) -> Draft:
    """A draft's ``config.json``.

    Raises:
        ParameterError: it is not a draft's, or its layer ids are not numbers.
    """
    kind = _kind(config)
    if not kind:
        names = ", ".join(map(str, config.get("architectures") or ["no class"]))
        raise ParameterError(
            f"it is no draft's config: {names}, and no layer ids",
            fix='give the config of a draft that reads hidden states, or numbers such as "3,31,59"',
        )
    eagle = _part(config, "eagle_config")
    final_alone = kind == "eagle" or eagle.get("use_aux_hidden_state") is False
    own = _part(config, "transformer_layer_config") or _part(config, "text_config") or config
    verifier = _part(_part(config, "speculators_config"), "verifier")
    return Draft(
        kind=kind if not (final_alone and kind in _EAGLE3) else "eagle",
        is_speculators="speculators_model_type" in config,
        layer_ids=() if final_alone else tuple(_layer_ids(config)),
        num_draft_layers=_number(own, "num_hidden_layers"),
        num_states=_number(config, "num_aux_hidden_states"),
        target=dict(_target(config, own, kind)),
        target_name=str(verifier.get("name_or_path") or ""),
    )


def layers_of(draft: Draft, model: ModelInfo) -> DraftLayers:
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
            "its layer ids can be meant in two ways: " + "; ".join(map(str, draft.layer_ids)),
            readings={how: list(boundaries) for boundaries, how in found.items()},
            fix="find out which it was trained on, and write that as "
            + " or ".join(f'layers = "{_text(boundaries)}"' for boundaries in found),
        )
    ((boundaries, how),) = found.items()
    _require_ascending(boundaries, model.num_layers, draft)
    return DraftLayers(boundaries, f"{draft.layer_ids[0]}: {how}")


def _meanings(draft: Draft, model: ModelInfo) -> dict[Boundaries, str]:
    """``{boundaries: who reads the ids so}``: what all fields can mean, else what each can."""
    each = [_readings(ids, draft, model) for ids in draft.layer_ids]
    common = {b: how for b, how in each[0].items() if all(b in other for other in each)}
    return common or {b: how for found in each for b, how in found.items()}


def _readings(ids: LayerIds, draft: Draft, model: ModelInfo) -> dict[Boundaries, str]:
    num_layers = model.num_layers
    outputs = tuple(i + 1 for i in ids.ids)
    if ids.dialect == "outputs":
        return {outputs: "the outputs of these layers, as every DFlash tool counts"}
    if ids.dialect == "vllm":
        writer = "speculators and vLLM" if draft.is_speculators else "vLLM"
        found = {ids.ids: f"boundaries, as {writer} read this field"}
        if draft.kind in _EAGLE3 and is_default_of_outputs(ids.ids, num_layers):
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
    unsaid = "its config names no layers; this is"
    if draft.kind == "mtp":
        return DraftLayers((num_layers,), "the last layer's output, before the final norm")
    if draft.kind == "eagle":
        return DraftLayers((), "it reads the final state alone")
    if draft.num_states in (0, 3) and (draft.kind in _EAGLE3 or draft.is_speculators):
        tools = "speculators'" if draft.is_speculators else "every EAGLE-3 tool's"
        return DraftLayers(auto_boundaries(num_layers), f"{unsaid} {tools} default")
    if draft.kind in _DFLASH and draft.num_draft_layers:
        ids = dflash_layer_ids(num_layers, draft.num_draft_layers)
        how = f"{unsaid} the DFlash tools' default, the outputs of {list(ids)}"
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


def _require_target(draft: Draft, model: ModelInfo) -> None:
    """Raises :class:`ParameterError` where the config is of a draft for another model."""
    differing = {
        name: f"{said:,} in the draft's config, {getattr(model, name):,} in the model's"
        for name, said in draft.target.items()
        if said != getattr(model, name)
    }
    if differing:
        name = f" ({draft.target_name})" if draft.target_name else ""
        raise ParameterError(
            f"it is a draft for another target{name} than {model.path}",
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
        ordered = _text(tuple(sorted(set(boundaries))))
        raise ParameterError(
            f"{asked}, which do not ascend: states are captured in the order of execution",
            fix=f'write layers = "{ordered}", and give them to the draft in its order',
        )


def _kind(config: Mapping[str, Any]) -> str:
    """Which kind of draft it is; "" for none."""
    said = config.get("speculators_model_type")
    names = " ".join(map(str, config.get("architectures") or ())).lower()
    of_class = next((kind for part, kind in _CLASSES.items() if part in names), "")
    projector = str(_part(config, "dflash_config").get("projector_type") or "")
    if said:
        return str(said)
    if of_class == "dflash" and projector:
        return projector
    if of_class:
        return of_class
    dspark = any(key.startswith("dspark_") for key in config)
    if dspark or config.get("dflash_config") or config.get("target_layer_ids"):
        return "dspark" if dspark else "dflash"
    eagle3 = ("eagle_config", "eagle_aux_hidden_state_layer_ids", "draft_vocab_size")
    if any(config.get(key) is not None for key in eagle3):
        return "eagle3"  # SafeAILab's name the target's class
    own = _part(config, "text_config") or config
    heads = _number(own, "num_nextn_predict_layers") + _number(own, "mtp_num_hidden_layers")
    return "mtp" if heads else ""


def _layer_ids(config: Mapping[str, Any]) -> Iterator[LayerIds]:
    for field, dialect in _FIELDS.items():
        outer, _, inner = field.rpartition(".")
        ids = (_part(config, outer) if outer else config).get(inner)
        if ids is None or ids == []:
            continue
        if not isinstance(ids, list) or any(type(i) is not int for i in ids):
            raise ParameterError(f"its {field} is no list of layer numbers", got=ids, fix="mend it")
        yield LayerIds(field, tuple(ids), dialect)


def _target(
    config: Mapping[str, Any], own: Mapping[str, Any], kind: str
) -> Iterator[tuple[str, int]]:
    """What the config says of the target, as :class:`ModelInfo` names it."""
    dflash = _part(config, "dflash_config")
    # speculators' MTP keeps the target's own config, others that of a single layer
    whole = own if kind == "mtp" and "speculators_model_type" in config else {}
    said = {
        "hidden_size": _number(config, "target_hidden_size") or _number(own, "hidden_size"),
        "vocab_size": _number(own, "vocab_size"),
        "num_layers": _number(dflash, "num_target_layers")
        or _number(config, "num_target_layers")
        or _number(whole, "num_hidden_layers"),
    }
    yield from ((name, value) for name, value in said.items() if value)


def _part(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = config.get(name)
    return found if isinstance(found, dict) else {}


def _number(config: Mapping[str, Any], name: str) -> int:
    found = config.get(name)
    return found if type(found) is int else 0


def _text(boundaries: Boundaries) -> str:
    return ",".join(map(str, boundaries))
