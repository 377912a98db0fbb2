"""Boundary numbers: the only unit for layers in this kit's code, files and parameters.

Boundary b is the index into transformers' ``hidden_states``: the residual stream that
enters decoder layer b. The final state, after the model's last norm, is implied.
"""

from hslib.errors import ParameterError


def auto_boundaries(num_layers: int) -> tuple[int, ...]:
    """EAGLE-3's customary three: ``2, n // 2, n - 3`` (SGLang's own default for EAGLE-3).

    Raises:
        ParameterError: for models so small that they coincide.
    """
    chosen = (2, num_layers // 2, num_layers - 3)
    if len(set(chosen)) < 3 or list(chosen) != sorted(chosen):
        raise ParameterError(
            f"a model of {num_layers} layers has no three distinct default boundaries",
            fix='name them yourself, such as layers = "1,2,3"',
            num_layers=num_layers,
        )
    return chosen


def parse_layers(text: str, num_layers: int) -> tuple[int, ...]:
    """``"auto"`` or ``"3,31,59"`` -> ascending boundaries in ``1 .. num_layers - 1``.

    Raises:
        ParameterError: not numbers, not ascending, or outside the model.
    """
    if text.strip() == "auto":
        return auto_boundaries(num_layers)
    try:
        boundaries = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ParameterError(
            f"layers {text!r} is not a list of numbers", fix='write "auto" or such as "3,31,59"'
        ) from None
    if list(boundaries) != sorted(set(boundaries)):
        raise ParameterError(
            f"layers {text!r} must ascend without repeats: execution order decides tensor order",
            fix=f'write "{",".join(map(str, sorted(set(boundaries))))}"',
        )
    outside = [b for b in boundaries if not 1 <= b < num_layers]
    if outside:
        raise ParameterError(
            f"layers {outside} are outside 1..{num_layers - 1} of this model",
            fix="a layer number is the index into transformers' hidden_states; "
            f"0 is the embedding, {num_layers} in its normed form is stored as final anyway",
            num_layers=num_layers,
        )
    return boundaries
