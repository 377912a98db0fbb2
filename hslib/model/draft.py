"""What a draft's ``config.json`` says: its kind, which states it reads, and of what target.

Pure: reads a parsed config, no file. The forms are those of the tools' own code: SafeAILab's EAGLE,
speculators, SpecForge, Model-Optimizer, DeepSpec, z-lab's DFlash, and of SGLang and vLLM, which
serve them. What the ids mean for a model stands in ``draft_layers``.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from hslib.errors import ParameterError

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
EAGLE3 = frozenset({"eagle3", "peagle"})
DFLASH = frozenset({"dflash", "dflash2", "domino", "dspark"})
# Fields with layer ids, and how they count: a dialect of `layers`, or "outputs", the DFlash family
# (transformers' hidden_states[id + 1] in z-lab's, SpecForge's and DeepSpec's code)
_BOUNDARIES = "hslib_boundaries"  # in the configs that this kit's exports write
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
        if self.kind in DFLASH:
            return "z-lab, SpecForge, Model-Optimizer or DeepSpec"
        return "its target" if self.kind == "mtp" else "SafeAILab, SpecForge or Model-Optimizer"

    @property
    def last_state(self) -> LastState:
        if self.is_speculators:
            return "before"
        return "either" if self.kind == "mtp" else "after"


def parse_draft(config: Mapping[str, Any]) -> Draft:
    """A draft's ``config.json``.

    Raises:
        ParameterError: it is not a draft's, or its layer ids are not numbers.
    """
    own = _part(config, "transformer_layer_config") or _part(config, "text_config") or config
    config = {**_part(config, "text_config"), **config}  # a wrapper's head stands in its part
    kind = _kind(config)
    if not kind:
        names = ", ".join(_classes(config)) or "no class"
        raise ParameterError(
            f"it is no draft's config: {names}, and no layer ids",
            fix='give the config of a draft that reads hidden states, or numbers such as "3,31,59"',
        )
    eagle = _part(config, "eagle_config")
    final_alone = kind == "eagle" or eagle.get("use_aux_hidden_state") is False
    verifier = _part(_part(config, "speculators_config"), "verifier")
    return Draft(
        kind=kind if not (final_alone and kind in EAGLE3) else "eagle",
        is_speculators="speculators_model_type" in config,
        layer_ids=() if final_alone else tuple(_layer_ids(config)),
        num_draft_layers=_number(own, "num_hidden_layers"),
        num_states=_number(config, "num_aux_hidden_states"),
        target=dict(_target(config, own, kind)),
        target_name=str(verifier.get("name_or_path") or ""),
    )


def _kind(config: Mapping[str, Any]) -> str:
    """Which kind of draft it is; "" for none."""
    said = config.get("speculators_model_type")
    names = " ".join(_classes(config)).lower()
    of_class = next((kind for part, kind in _CLASSES.items() if part in names), "")
    projector = str(_part(config, "dflash_config").get("projector_type") or "")
    if said:
        return str(said)
    if of_class == "dflash" and projector:
        return projector
    if of_class:
        return of_class
    if any(key.startswith("dspark_") and value is not None for key, value in config.items()):
        return "dspark"
    if _part(config, "dflash_config") or config.get("target_layer_ids"):
        return "dflash"
    eagle3 = ("eagle_config", "eagle_aux_hidden_state_layer_ids", "draft_vocab_size")
    if any(config.get(key) is not None for key in eagle3):
        return "eagle3"  # SafeAILab's name the target's class
    heads = ("num_nextn_predict_layers", "mtp_num_hidden_layers")
    return "mtp" if any(_number(config, name) for name in heads) else ""


def _layer_ids(config: Mapping[str, Any]) -> Iterator[LayerIds]:
    known = {_BOUNDARIES: "boundary"} if config.get(_BOUNDARIES) else _FIELDS
    for field, dialect in known.items():
        outer, _, inner = field.rpartition(".")
        ids = (_part(config, outer) if outer else config).get(inner)
        if ids is None or ids == []:
            continue
        if not isinstance(ids, list) or any(type(i) is not int for i in ids):
            raise ParameterError(
                f"its {field} is no list of layer numbers",
                got=ids,
                fix='mend that field, or write numbers such as layers = "3,31,59"',
            )
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


def _classes(config: Mapping[str, Any]) -> list[str]:
    names = config.get("architectures")
    return [str(name) for name in names] if isinstance(names, list) else []


def _part(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = config.get(name)
    return found if isinstance(found, dict) else {}


def _number(config: Mapping[str, Any], name: str) -> int:
    found = config.get(name)
    return found if type(found) is int else 0
