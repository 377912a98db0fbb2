"""Boundaries, the kit's layer numbers, and their translation into other tools' layer ids.

Boundary b is the index into transformers' ``hidden_states``: the residual stream that enters
decoder layer b. The final state, after the model's last norm, has no number.

Other tools count otherwise. What an id means may depend on the model and on the ids beside it. A
list that can be meant in two ways is an error that shows both; nothing is guessed.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from hslib.errors import ParameterError

Boundaries = tuple[int, ...]
# How a tool reads a list of ids:
#   boundary             as boundaries
#   after                the output of that layer: id + 1
#   after_if_first_is_1  all + 1 when the first id is 1, else all as they are
#   verbatim_if_final    all as they are when one of them is num_layers, else all + 1
Rule = Literal["boundary", "after", "after_if_first_is_1", "verbatim_if_final"]

# SGLang's rules: `set_eagle3_layers_to_capture` in its model files, of this version
SGLANG_VERSION = "0.5.23"
_SGLANG_AFTER_IF_FIRST_IS_1 = frozenset(
    {
        "DeepseekV2ForCausalLM",
        "DeepseekV3ForCausalLM",
        "DeepseekV32ForCausalLM",
        "Glm4MoeLiteForCausalLM",
        "GlmMoeDsaForCausalLM",
        "KimiK25ForConditionalGeneration",
        "MistralLarge3ForCausalLM",
    }
)
_SGLANG_VERBATIM_IF_FINAL = frozenset({"GptOssForCausalLM"})
_SGLANG_AFTER = frozenset(
    {
        "ApertusForCausalLM",
        "ExaoneMoEForCausalLM",
        "Gemma3ForCausalLM",
        "Gemma3ForConditionalGeneration",
        "Gemma4ForCausalLM",
        "Gemma4ForConditionalGeneration",
        "Glm4MoeForCausalLM",
        "Llama4ForConditionalGeneration",
        "LlamaForCausalLM",
        "LongcatFlashForCausalLM",
        "MiniMaxM2ForCausalLM",
        "MiniMaxM3SparseForCausalLM",
        "MiniMaxM3SparseForConditionalGeneration",
        "Ministral3ForCausalLM",
        "MistralForCausalLM",
        "Phi3ForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen2MoeForCausalLM",
        "Qwen2_5_VLForConditionalGeneration",
        "Qwen3ForCausalLM",
        "Qwen3MoeForCausalLM",
        "Qwen3NextForCausalLM",
        "Qwen3VLForConditionalGeneration",
        "Qwen3_5ForCausalLM",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5MoeForConditionalGeneration",
    }
)


class Dialect(NamedTuple):
    """A tool that counts layers; ``rule`` None: SGLang's, which depends on the model class."""

    tool: str
    rule: Rule | None


DIALECTS = {
    "boundary": Dialect("this kit, transformers' hidden_states", "boundary"),
    "sglang": Dialect(
        f"SGLang --return-aux-hidden-state-layer-ids (rules of {SGLANG_VERSION})", None
    ),
    "vllm": Dialect("vLLM, eagle_aux_hidden_state_layer_ids", "boundary"),
    "speculators": Dialect("speculators --target-layer-ids", "boundary"),
    "specforge": Dialect("SpecForge model.aux_hidden_state_layer_ids", "after"),
    "modelopt": Dialect("Model-Optimizer, DeepSpec", "after"),
    "eagle_config": Dialect(
        "a draft's config.json, eagle_config.eagle_aux_hidden_state_layer_ids", None
    ),
}


class TableRow(NamedTuple):
    """A tool's default layers for a model, and the ids that mean given boundaries to it."""

    tool: str
    default_ids: str  # "" where the tool has no default of its own
    default_boundaries: str
    ids: str  # for the boundaries asked for, or why there are none


def auto_boundaries(num_layers: int) -> Boundaries:
    """EAGLE-3's customary three: ``2, n // 2, n - 3`` (SGLang's own default for EAGLE-3).

    Raises:
        ParameterError: the model is so small that they coincide.
    """
    chosen = _customary(num_layers)
    if _collides(chosen):
        raise ParameterError(
            f"a model of {num_layers} layers has no three distinct default boundaries",
            fix='name them yourself, such as layers = "1,2,3"',
            num_layers=num_layers,
        )
    return chosen


def _customary(num_layers: int) -> Boundaries:
    return (2, num_layers // 2, num_layers - 3)


def is_default_of_outputs(ids: Sequence[int], num_layers: int) -> bool:
    """Whether ids are the default of the tools that count outputs: ``1, n // 2 - 1, n - 4``."""
    return tuple(ids) == tuple(b - 1 for b in _customary(num_layers))


def _collides(ids: Sequence[int]) -> bool:
    return list(ids) != sorted(set(ids))


def parse_layers(text: str, num_layers: int) -> Boundaries:
    """The parameter ``layers`` as ascending boundaries in ``1 .. num_layers``.

    ``"auto"``, ``"none"`` (the final state alone), ``"all"``, or numbers such as ``"3,31,59"``.
    Negative ones count from the end, as in transformers' ``hidden_states``: -1 is ``num_layers``,
    the last layer's output before the final norm.

    Raises:
        ParameterError: not numbers, not ascending, or outside the model.
    """
    word = text.strip()
    if word in ("auto", "none", "all"):
        every = tuple(range(1, num_layers + 1))
        return {"none": (), "all": every}[word] if word != "auto" else auto_boundaries(num_layers)
    try:
        given = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ParameterError(
            f"layers {text!r} is not a list of numbers",
            fix='write "auto", "none", "all" or such as "3,31,59"',
        ) from None
    boundaries = tuple(b if b >= 0 else num_layers + 1 + b for b in given)
    outside = [g for g, b in zip(given, boundaries, strict=True) if not 1 <= b <= num_layers]
    if outside:
        raise ParameterError(
            f"layers {outside} are outside 1..{num_layers} of this model",
            fix="a layer number is the index into transformers' hidden_states; 0 is the "
            f"embedding, {num_layers} the last layer's output before the final norm",
            num_layers=num_layers,
        )
    if _collides(boundaries):
        raise ParameterError(
            f"layers {text!r} must ascend, each once: states are stored in the order of execution",
            fix=f'write "{",".join(map(str, sorted(set(boundaries))))}"',
        )
    return boundaries


def sglang_rule(architecture: str) -> Rule | None:
    """How SGLang reads ids for a model class; None for classes without an EAGLE-3 setter."""
    if architecture in _SGLANG_AFTER_IF_FIRST_IS_1:
        return "after_if_first_is_1"
    if architecture in _SGLANG_VERBATIM_IF_FINAL:
        return "verbatim_if_final"
    return "after" if architecture in _SGLANG_AFTER else None


def apply_rule(rule: Rule, ids: Sequence[int], num_layers: int) -> Boundaries:
    """The boundaries that ``ids`` mean by a rule. Pure."""
    as_they_are = (
        rule == "boundary"
        or (rule == "after_if_first_is_1" and (not ids or ids[0] != 1))
        or (rule == "verbatim_if_final" and num_layers in ids)
    )
    return tuple(ids) if as_they_are else tuple(i + 1 for i in ids)


def readings(
    ids: Sequence[int], dialect: str, num_layers: int, architecture: str = ""
) -> dict[str, Boundaries]:
    """``{who reads ids so: the boundaries}``: one, unless the dialect is ambiguous. Pure.

    Args:
        architecture: the model class of config.json; only SGLang's dialects depend on it.

    Raises:
        ParameterError: there is no such dialect.
    """
    if dialect not in DIALECTS:
        raise ParameterError(f"unknown dialect {dialect!r}", fix=f"known are {list(DIALECTS)}")
    verbatim = {"each id is a boundary": tuple(ids)}
    after = {"each id is the layer whose output is meant": tuple(i + 1 for i in ids)}
    fixed = DIALECTS[dialect].rule
    if fixed is not None:
        return verbatim if fixed == "boundary" else after
    if dialect == "eagle_config" and is_default_of_outputs(ids, num_layers):
        return {"SpecForge's and Model-Optimizer's default": tuple(i + 1 for i in ids)}
    rule = sglang_rule(architecture)
    if rule is None:
        return verbatim | after
    taken = apply_rule(rule, ids, num_layers)
    others: dict[str, Boundaries] = {}
    if dialect == "eagle_config":
        others = verbatim
    elif (rule == "after_if_first_is_1" and ids and ids[0] == 1) or (
        rule == "verbatim_if_final" and num_layers in ids
    ):
        # one id changes the meaning of all of them, which their author may not have known
        others = verbatim | after
    differing = {reader: read for reader, read in others.items() if read != taken}
    return {f"SGLang {SGLANG_VERSION} serving {architecture}": taken} | differing


def to_boundaries(
    ids: Sequence[int], dialect: str, num_layers: int, architecture: str = ""
) -> Boundaries:
    """A tool's layer ids as boundaries, in the same order.

    Raises:
        ParameterError: ids that can be meant in two ways (``readings`` holds both), that repeat
            or descend, or that lie outside the model.
    """
    found = readings(ids, dialect, num_layers, architecture)
    if len(found) > 1:
        raise ParameterError(
            f"layer ids {list(ids)} of dialect {dialect!r} can be meant in {len(found)} ways",
            readings={reader: list(read) for reader, read in found.items()},
            architecture=architecture,
            fix="decide which is meant and write it in boundaries; on a running server, read "
            "plugin.json, or measure with notebooks/05_layer_probe.ipynb",
        )
    (boundaries,) = found.values()
    if _collides(boundaries) or any(not 0 <= b <= num_layers for b in boundaries):
        raise ParameterError(
            f"layer ids {list(ids)} of dialect {dialect!r} are boundaries {list(boundaries)}, "
            f"which do not ascend within 0..{num_layers}",
            fix="name distinct ascending layers of this model",
        )
    return boundaries


def from_boundaries(
    boundaries: Sequence[int], dialect: str, num_layers: int, architecture: str = ""
) -> Boundaries:
    """The ids that mean ``boundaries`` to a tool, and nothing else.

    Raises:
        ParameterError: the tool has no unambiguous ids for them.
    """
    verbatim, after = tuple(boundaries), tuple(b - 1 for b in boundaries)
    for ids in (verbatim, after):
        if min(ids, default=0) < 0:
            continue
        found = readings(ids, dialect, num_layers, architecture)
        if list(found.values()) == [tuple(boundaries)]:
            return ids
    raise ParameterError(
        f"boundaries {list(boundaries)} have no unambiguous ids in dialect {dialect!r}"
        + (f" for {architecture}" if architecture else ""),
        fix="the plugin sets boundaries on the model itself, whatever the server's flag can say; "
        "for a trainer, choose others",
    )


def dialect_table(
    num_layers: int, architecture: str, boundaries: Sequence[int] | None = None
) -> list[TableRow]:
    """Each tool's default for a model, and how to ask it for ``boundaries`` (None = auto's)."""
    chosen = tuple(boundaries) if boundaries is not None else auto_boundaries(num_layers)
    customary = _customary(num_layers)
    # SGLang's vision MiniMax-M3 adds 1 to its default too
    shift = int(architecture == "MiniMaxM3SparseForConditionalGeneration")
    rows = []
    for name, (tool, rule) in DIALECTS.items():
        ids = tuple(b - (rule == "after") for b in customary) if rule else ()
        means = customary if rule else tuple(b + shift for b in customary)
        try:
            said = _text(from_boundaries(chosen, name, num_layers, architecture))
        except ParameterError as error:
            said = f"none: {error.message}"
        rows.append(
            TableRow(tool, _text(ids), _text(means if name != "eagle_config" else ()), said)
        )
    return rows


def _text(ids: Boundaries) -> str:
    """``"2, 30, 58"``, with a remark if they repeat or do not ascend."""
    return ", ".join(map(str, ids)) + (" (collide: name others)" if _collides(ids) else "")
