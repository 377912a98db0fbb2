"""speculators' own EAGLE-3 drafter, trained on an export on the CPU for about a minute.

It shows whether a drafter learns from the data; a real one is trained by ``train.sh`` in the
export. Loader, shifting, model and losses are speculators'; the loop and the counting are here.
Acceptance at position k: the share of trained tokens of held-out rows for which the drafter's
first k proposals all are the model's own first choices (speculators' ``full_acc``).
"""

import logging
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from hslib.errors import ExportError
from hslib.model import read_model

if TYPE_CHECKING:
    import torch

    from hslib.export.torch_dataset import TokenBatches

POSITIONS = 3  # proposals a step, speculators' ttt_steps
TOKENS_PER_STEP = 512  # a longer row is a step of its own
_PEAK_LR, _WARMUP_STEPS = 3e-3, 20
_HELD_OUT = 0.1  # of the rows, the last ones
_INPUTS = (
    "hidden_states",
    "input_ids",
    "document_ids",
    "loss_mask",
    "position_ids",
    "verifier_last_hidden_states",
)


@dataclass(frozen=True)
class Point:
    """A drafter after some steps of its training."""

    step: int
    loss: float  # of the training batch, KL in nats summed over positions
    acceptance: tuple[float, ...]  # on held-out rows, by position


@dataclass(frozen=True)
class Training:
    """A finished training, and the folder of its drafter."""

    points: tuple[Point, ...]
    checkpoint: Path

    @property
    def acceptance(self) -> tuple[float, ...]:
        """On held-out rows at the end, by position."""
        return self.points[-1].acceptance


def train_drafter(
    export: Path,
    judged_on: Path,
    model_path: Path,
    checkpoint: Path,
    num_steps: int,
    seed: int = 0,
    on_point: Callable[[Point], None] = lambda _point: None,
    num_points: int = 10,
) -> Training:
    """Train on one export's rows, judge on the held-out rows of another, save the drafter.

    Args:
        export, judged_on: folders written by ``export_store`` for speculators; two different
            ones for data that is broken on purpose.
        num_points: how often it is judged, the last time at its end.
        checkpoint: a folder that ``Eagle3DraftModel.from_pretrained`` can load.

    Raises:
        ExportError: a folder is no export for speculators.
    """
    import torch

    with _quiet(), _one_thread(), torch.random.fork_rng():
        torch.manual_seed(seed)
        model = make_drafter(export, model_path)
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=_PEAK_LR, betas=(0.9, 0.95))
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer,
            _PEAK_LR,
            total_steps=num_steps,
            pct_start=min(0.5, _WARMUP_STEPS / num_steps),
        )
        judges = list(_batches(judged_on, "val", seed).one_epoch())
        points = []
        shown = {num_steps * part // num_points for part in range(1, num_points + 1)}
        batches = _batches(export, "train", seed).forever()
        for step, batch in zip(range(1, num_steps + 1), batches, strict=False):
            _, loss, _ = _forward(model, batch)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            if step in shown:
                points.append(Point(step, float(loss.detach()), acceptance(model, judges)))
                on_point(points[-1])
        model.save_pretrained(checkpoint)
    return Training(tuple(points), checkpoint)


def make_drafter(export: Path, model_path: Path) -> Any:
    """An untrained float32 ``Eagle3DraftModel`` for an export, with the model's head and norm.

    As ``speculators train`` makes it, but with an attention that has a CPU backward.
    """
    import numpy as np
    import torch
    from speculators.models.eagle3 import Eagle3DraftModel
    from speculators.train.cli import create_transformer_layer_config

    kind = _kind(export)
    maps: dict[str, Any] = {"d2t": None, "t2d": None}
    size = read_model(model_path).vocab_size
    if (export / "d2t.npy").exists():
        maps = {name: torch.from_numpy(np.load(export / f"{name}.npy")) for name in maps}
        size = len(maps["d2t"])
    layer = create_transformer_layer_config(
        verifier_name_or_path=str(model_path),
        num_layers=1,
        draft_arch="llama",
        hidden_act=None,
        sliding_window=2048,
        full_attention_indices=[0],
    )
    return Eagle3DraftModel.from_training_args(
        layer,
        **maps,
        draft_vocab_size=size,
        target_layer_ids=kind["boundaries"],
        norm_before_residual=True,
        norm_before_fc=True,
        norm_output=True,
        ttt_steps=POSITIONS,
        draft_attn_impl="eager",
        verifier_name_or_path=str(model_path),
    ).float()


def judge(
    checkpoint: Path,
    judged_on: Path,
    seed: int = 0,
    random_tokens: bool = False,
) -> tuple[float, ...]:
    """Acceptance by position of a saved drafter on an export's held-out rows.

    Args:
        random_tokens: replace the drafter's input tokens; a drafter that reads them loses
            acceptance, one that ignores them does not.
    """
    import torch
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig

    with _quiet(), _one_thread():
        config = Eagle3SpeculatorConfig.from_pretrained(checkpoint)
        config.transformer_layer_config._attn_implementation = "eager"
        model = Eagle3DraftModel.from_pretrained(checkpoint, config=config).float()
        batches = list(_batches(judged_on, "val", seed).one_epoch())
        if random_tokens:
            generator = torch.Generator().manual_seed(seed)
            size = model.embed_tokens.num_embeddings
            for batch in batches:
                batch["input_ids"] = torch.randint(
                    size, batch["input_ids"].shape, generator=generator
                )
        return acceptance(model, batches)


def acceptance(model: Any, batches: Sequence[dict[str, Any]]) -> tuple[float, ...]:
    """By position, over all trained tokens of the batches."""
    import torch

    totals: Counter[str] = Counter()
    model.eval()
    with torch.no_grad():
        for batch in batches:
            _, _, metrics = _forward(model, batch)
            totals.update({name: float(value) for name, value in metrics.items()})
    model.train()
    return tuple(
        totals[f"full_acc_{k}_sum"] / max(totals[f"full_acc_{k}_total"], 1.0)
        for k in range(POSITIONS)
    )


def _forward(model: Any, batch: dict[str, Any]) -> "tuple[Any, torch.Tensor, dict[str, Any]]":
    from speculators.losses.eager import kl_div_loss

    given = {name: batch[name] for name in _INPUTS}
    found: tuple[Any, torch.Tensor, dict[str, Any]] = model(
        **given, ttt_steps=POSITIONS, loss_config={"kl_div": (kl_div_loss, 1.0)}
    )
    return found


@dataclass(frozen=True)
class _Batches:
    """One split of an export, through speculators' dataset, shift and collate."""

    dataset: Any
    groups: "TokenBatches"
    hidden_size: int
    num_aux: int

    def one_epoch(self) -> Iterator[dict[str, Any]]:
        for group in self.groups:
            yield self._collate([self.dataset[position] for position in group])

    def forever(self) -> Iterator[dict[str, Any]]:
        while True:
            yield from self.one_epoch()
            self.groups.epoch += 1

    def _collate(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        import torch
        from speculators.models.eagle3.data import shift_batch
        from speculators.train.data import CollateFn

        tokens = sum(len(row["input_ids"]) - 1 for row in rows)  # shifting drops one per row
        collate = CollateFn(tokens, self.hidden_size, self.num_aux, torch.float32, shift_batch)
        return dict(collate(rows))


def _batches(export: Path, split: str, seed: int) -> _Batches:
    from hslib.export.fp8 import open_dataset
    from hslib.export.torch_dataset import TokenBatches

    kind = _kind(export)
    dataset = open_dataset(export, train_ratio=1 - _HELD_OUT, split=split)
    groups = TokenBatches(
        dataset.approx_lengths,
        TOKENS_PER_STEP,
        seed,
        shuffle=split == "train",
        long_alone=True,
    )
    return _Batches(dataset, groups, kind["hidden_size"], len(kind["boundaries"]))


def _kind(export: Path) -> dict[str, Any]:
    path = export / "export.json"
    kind = dict(orjson.loads(path.read_bytes())) if path.is_file() else {}
    if kind.get("trainer") != "speculators":
        raise ExportError(
            f"{export} is no export for speculators", fix="python -m hslib export --to speculators"
        )
    return kind


@contextmanager
def _one_thread() -> Iterator[None]:
    import torch

    # For a drafter of the demo's width one is as fast as two, and nine times as fast on a busy
    # machine, where threads wait for each other at every small product.
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the libraries' warnings, which are about real trainings."""
    import transformers
    from loguru import logger

    logger.disable("speculators")
    transformers.utils.logging.disable_progress_bar()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
