"""Which drafters speculators 0.9.0 and SpecForge 0.2.0 train from files, and what each reads.

As their own readers and models have it: ``speculators.train.data.ArrowDataset`` and
``speculators.models``, ``specforge.algorithms``.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from hslib.errors import ExportError
from hslib.model import Side

ANY = -1  # one layer or more


@dataclass(frozen=True)
class Drafter:
    """What one drafter of one trainer reads of a row.

    ``layers``: how many boundaries, ``ANY`` = one or more. ``last``: the side of the final norm of
    the last state, None = it is not read. ``schema``: drafters of one schema read the same files.
    ``refused``: why its trainer can't read it from files; "" = it can.
    """

    trainer: str
    name: str
    layers: int = ANY
    last: Side | None = None
    schema: str = ""
    takes_vocabulary: bool = False  # a draft vocabulary smaller than the model's
    needs_pair: bool = False  # a row without two trained tokens in a row stops the training
    remark: str = ""
    refused: str = ""

    @property
    def title(self) -> str:
        """``"speculators' dflash2"``"""
        return f"{_TITLES[self.trainer]} {self.name}"

    @property
    def tensors(self) -> tuple[str, ...]:
        """The names of the states in a row's file: aux first, then the last one if it is apart."""
        return _TENSORS[self.trainer, self.schema]


_TENSORS = {
    ("speculators", ""): ("hidden_states",),  # the last state is its last layer
    ("specforge", ""): ("aux_hidden_state", "hidden_state"),
    ("specforge", "dflash"): ("hidden_states",),
    ("specforge", "dspark"): ("hidden_states", "target_last_hidden_states"),
}
_TITLES = {"speculators": "speculators'", "specforge": "SpecForge's"}

DRAFTERS = (
    Drafter("speculators", "eagle3", last="pre", takes_vocabulary=True),
    Drafter("speculators", "peagle", last="pre", takes_vocabulary=True),
    Drafter("speculators", "dflash", last="pre", takes_vocabulary=True),
    Drafter("speculators", "dflash2", last="pre"),
    Drafter("speculators", "dspark", last="pre", takes_vocabulary=True),
    Drafter("speculators", "xpress", last="pre", takes_vocabulary=True),
    Drafter(
        "speculators",
        "mtp",
        layers=0,
        last="pre",
        remark="goes on with the model's own `mtp.*` layer (Qwen3-Next, Qwen3.5)",
    ),
    Drafter("specforge", "eagle3", layers=3, last="post", takes_vocabulary=True),
    Drafter(
        "specforge",
        "peagle",
        layers=3,
        last="post",
        takes_vocabulary=True,
        refused="SpecForge 0.2.0 has no reader of files for peagle: it trains it beside a running "
        "server",
    ),
    Drafter("specforge", "dflash", schema="dflash", needs_pair=True),
    Drafter("specforge", "domino", schema="dflash", needs_pair=True),
    Drafter("specforge", "dspark", last="post", schema="dspark", needs_pair=True),
)


def find_drafter(trainer: str, name: str) -> Drafter:
    """One row of the table.

    Raises:
        ExportError: the trainer lacks this drafter, or can't read it from files.
    """
    others = [d.trainer for d in DRAFTERS if d.name == name and d.trainer != trainer]
    elsewhere = f"trainer {others[0]!r} has it" if others else ""
    for drafter in DRAFTERS:
        if (drafter.trainer, drafter.name) == (trainer, name):
            if drafter.refused:
                raise ExportError(drafter.refused, fix=elsewhere or "choose another drafter")
            return drafter
    known = ", ".join(d.name for d in DRAFTERS if d.trainer == trainer and not d.refused)
    raise ExportError(
        f"{trainer} has no drafter {name!r}",
        fix=f"choose one of its own: {known}" + (f"; {elsewhere}" if elsewhere else ""),
    )


def table_lines() -> Iterator[str]:
    """The table in Markdown."""
    yield "| trainer | drafter | boundaries | last state | draft vocabulary | states in a row | |"
    yield "|---|---|---|---|---|---|---|"
    for drafter in DRAFTERS:
        cells = (drafter.trainer, drafter.name, *_cells(drafter))
        yield f"| {' | '.join(cells)} |".replace("|  |", "| |")


def _cells(drafter: Drafter) -> Iterator[str]:
    yield {ANY: "one or more", 0: "none"}.get(drafter.layers, f"exactly {drafter.layers}")
    yield f"{drafter.last}-norm" if drafter.last else "not read"
    yield "any size" if drafter.takes_vocabulary else "the model's"
    yield ", ".join(f"`{name}`" for name in drafter.tensors)
    pair = "rows without two trained tokens in a row are left out" if drafter.needs_pair else ""
    yield f"refused: {drafter.refused}" if drafter.refused else drafter.remark or pair
