"""What a job takes, before it starts."""

import math
from fractions import Fraction
from typing import Annotated, Literal

import typer

from hslib.errors import ParameterError


def _whole(text: str) -> int:
    """``61e6`` as a whole number."""
    try:
        return int(Fraction(text))
    except (ValueError, ZeroDivisionError):
        raise typer.BadParameter(f"{text!r} is not a number") from None


def plan(
    rate: Annotated[float, typer.Option(help="tokens/s that a replica captures")],
    model: Annotated[
        str, typer.Option(help="a model folder, an id of the hub, or a config.json: no weights")
    ] = "",
    hidden_size: Annotated[int, typer.Option(help="without a model at hand")] = 0,
    num_layers: Annotated[int, typer.Option(help="likewise")] = 0,
    layers: Annotated[str, typer.Option(help='boundaries such as "3,31,59", or a draft')] = "auto",
    tokens: Annotated[
        int | None, typer.Option(parser=_whole, help="of all samples together, such as 61e6")
    ] = None,
    dataset: Annotated[
        str, typer.Option(help="count the tokens and samples of these rows instead")
    ] = "",
    samples: Annotated[int, typer.Option(help="with --tokens: files have headers")] = 0,
    longest: Annotated[int, typer.Option(help="tokens of the longest sample")] = 0,
    replicas: Annotated[int, typer.Option(help="servers, each with its own link")] = 1,
    store_gbps: Annotated[
        float, typer.Option(help="GB/s that the store takes of them all")
    ] = math.inf,
    network_gbps: Annotated[
        float, typer.Option(help="GB/s from one replica to the store")
    ] = math.inf,
    encoding: Annotated[
        Literal["plain", "lossless", "fp8", "fp8-aux"],
        typer.Option(help="how the store keeps the states"),
    ] = "plain",
    concurrency: Annotated[int | None, typer.Option(help="requests in flight per replica")] = None,
) -> int:
    """A job's bytes, hours and bottleneck, before it starts.

    GB are 1e9 bytes and GB/s are bytes, not bits: a link of 100 Gbit/s is 12.5.
    """
    from hslib.job import Forecast
    from hslib.parameters import ExtractionParameters

    if (tokens is None) == (not dataset):
        raise typer.BadParameter("give one of --tokens and --dataset")
    num_states, hidden_size, vocab_size = _shape(model, hidden_size, num_layers, layers)
    if tokens is None:
        tokens, samples, found_longest = _count(dataset, vocab_size)
        longest = longest or found_longest
    found = Forecast(
        num_states,
        hidden_size,
        tokens,
        rate,
        ExtractionParameters.from_values(
            {"encoding": encoding} | ({} if concurrency is None else {"concurrency": concurrency})
        ),
        rows=samples,
        longest=longest,
        replicas=replicas,
        store_rate=store_gbps * 1e9,
        link_rate=network_gbps * 1e9,
    )
    for name, value, formula in found.facts():
        print(f"{name:>24}: {value:<18} = {formula}")
    print(f"\n{found.sentence()}")
    return 0


def _shape(model: str, hidden_size: int, num_layers: int, layers: str) -> tuple[int, int, int]:
    """States per token, hidden size, and vocabulary size; of a model if one is named.

    Raises:
        ParameterError: the shape is not known, or said twice.
    """
    from hslib.model import choose_layers, names_a_draft, parse_layers, read_shape

    vocab_size = 2**31
    if model and (hidden_size or num_layers):
        raise ParameterError("the model's shape is said twice", fix="give --model alone")
    if model:
        shape = read_shape(model)
        hidden_size, num_layers = shape.hidden_size, shape.num_layers
        vocab_size = shape.vocab_size
        return len(choose_layers(layers, shape)) + 1, hidden_size, vocab_size
    if hidden_size < 1 or num_layers < 1:
        raise ParameterError(
            "the model's shape is not known", fix="give --model, or --hidden-size and --num-layers"
        )
    if names_a_draft(layers):
        raise ParameterError("a draft's layers are of a model", fix="give --model")
    return len(parse_layers(layers, num_layers)) + 1, hidden_size, vocab_size


def _count(dataset: str, vocab_size: int) -> tuple[int, int, int]:
    """Tokens, samples, and tokens of the longest sample; names the first row left out.

    Raises:
        DatasetError: the dataset can't be read.
    """
    from hslib.dataset import Dataset, Limits
    from hslib.job.plan import rejections_sentence

    survey = Dataset(dataset, Limits(vocab_size, max_tokens=2**31)).survey()
    if survey.rejections:
        print(f"{len(survey.rejections)} rows left out: {rejections_sentence(survey)}")
    longest = max((row.num_tokens for row in survey.rows), default=0)
    return survey.num_tokens, len(survey.rows), longest
