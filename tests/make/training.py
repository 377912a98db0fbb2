"""One training step of a trainer's own model on an export, on the CPU, through its own code.

What the trainers' commands do, in their order, up to the first optimizer step. Taken in place of
what wants a GPU: eager or SDPA attention for flex attention, which has no CPU backward; the eager
losses of speculators for its fused ones; SpecForge's own reference for its Triton loss.
"""

import argparse
import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

_TOKENS = 96  # at most, of SpecForge's rows


class Step(NamedTuple):
    """What one step did."""

    loss: float
    gradients_finite: bool
    changed: int  # tensors


def command(export: Path) -> list[str]:
    """``train.sh`` as the words of a command line."""
    text = (export / "train.sh").read_text()
    return shlex.split(text.replace("\\\n", " ").replace('"$@"', ""), comments=True)


def speculators_step(export: Path, *more: str) -> Step:
    """``speculators train`` by the export's own script; ``more``: further flags."""
    from hs_connectors import HiddenStatesBackend
    from speculators.model import SpeculatorModel
    from speculators.models.eagle3.data import shift_batch
    from speculators.models.mtp.data import shift_batch_mtp
    from speculators.train import cli
    from speculators.train.config import TrainConfig
    from speculators.train.data import ArrowDataset, CollateFn

    words = command(export)[2:]
    is_mtp = "mtp" in words
    if not is_mtp:
        words += ["--draft-attn-impl", "eager", "--loss-implementation", "eager"]
        words += ["--max-anchors", "4"]
    args = argparse.Namespace(**TrainConfig.resolve([*words, *more]).flatten())
    d2t, t2d, size = (None, None, None) if is_mtp else cli.parse_vocab_mappings(args)
    kind = SpeculatorModel.registry[args.speculator_type]
    model = cli.build_draft_model(args, kind, t2d, d2t, size).float()
    if is_mtp:
        args.num_speculative_steps = model.config.num_speculative_steps
    backend = HiddenStatesBackend.registry[args.hidden_states_backend]
    dataset = ArrowDataset(
        args.total_seq_len,
        args.data_path,
        transfer=backend.from_train_args(args, args.data_path),
        on_missing=args.on_missing,
    )
    preprocess = {"eagle3": shift_batch, "peagle": shift_batch, "mtp": shift_batch_mtp}
    shift = preprocess.get(args.speculator_type, lambda row: row)
    rows = [shift(dataset[row]) for row in (0, 1)]
    collate = CollateFn(
        sum(len(row["input_ids"]) for row in rows),  # padding is NaN in eager attention
        model.config.transformer_layer_config.hidden_size,
        len(model.target_layer_ids),
        torch.float32,
    )
    batch = collate(rows)
    batch.pop("error_records")
    options, _ = kind.get_trainer_kwargs(**vars(args))
    return _step(model, lambda: model(**batch, **options)[1])


def specforge_step(export: Path, model_path: Path) -> Step:
    """``specforge train`` by the export's own config, with SDPA and in float32."""
    import transformers
    from specforge.application import resolve_run
    from specforge.config import load_config
    from specforge.runtime.contracts import TrainBatch
    from specforge.runtime.data_plane.feature_store import LocalFeatureStore
    from specforge.training.model_loading import resolve_draft_config

    overrides = ["training.attention_backend=sdpa", "model.torch_dtype=float32"]
    overrides += ["training.ttt_length=2", "training.num_anchors=4"]
    overrides.append(f"data.max_length={_TOKENS}")
    if not (model_path / "tokenizer.json").is_file():
        overrides.append("model.mask_token_id=3")
    config = load_config(str(export / "specforge.yaml"), overrides)
    providers = resolve_run(config).algorithm.providers
    draft_config = resolve_draft_config(config, provider=providers.model.draft_config)
    draft = providers.model.build_draft(config, draft_config)
    target = transformers.AutoConfig.from_pretrained(model_path)
    tokenizer = (
        transformers.AutoTokenizer.from_pretrained(model_path)
        if providers.model.needs_input_tools(config, draft)
        else None
    )
    parts = providers.model.build_training_model(config, draft, draft_config, target, tokenizer)
    head = parts.target_head.float() if parts.target_head is not None else None
    step = providers.step.build(parts.model, target_head=head, **providers.step.options(config))
    offline, features = providers.offline_for("text"), LocalFeatureStore()
    read = offline.build_reader(
        config.data.hidden_states_path, run_id="step", ttt_length=2, max_len=_TOKENS
    ).read(limit=2)
    normalise = offline.build_normalizer(_TOKENS)
    tensors = offline.build_collator()([normalise(features.get(ref)[0]) for ref in read])
    floats = {
        name: tensor.float() if tensor.is_floating_point() else tensor
        for name, tensor in tensors.items()
    }
    batch = TrainBatch(
        [ref.sample_id for ref in read],
        config.training.strategy,
        floats,
        {"target_repr": read[0].metadata["target_repr"]},
    )
    with _without_triton():
        return _step(parts.model, lambda: step.forward_loss(batch).loss)


@contextmanager
def _without_triton() -> Iterator[None]:
    """EAGLE-3's loss as SpecForge's own reference implementation, uncompiled."""
    from specforge.algorithms.eagle3 import model
    from specforge.core import loss

    class Reference:
        apply = staticmethod(loss._compute_loss)

    before = model.LogSoftmaxLoss
    model.LogSoftmaxLoss = Reference
    try:
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        model.LogSoftmaxLoss = before


def _step(model: Any, forward: Callable[[], torch.Tensor]) -> Step:
    trained = [p for p in model.parameters() if p.requires_grad]
    before = [p.detach().clone() for p in trained]
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    with torch.random.fork_rng(), _one_thread():
        torch.manual_seed(0)
        loss = forward()
        loss.backward()
        optimizer.step()
    gradients = [p.grad for p in trained if p.grad is not None]
    finite = bool(gradients) and all(bool(g.isfinite().all()) for g in gradients)
    pairs = zip(before, trained, strict=True)
    return Step(float(loss.detach()), finite, sum(not torch.equal(a, b) for a, b in pairs))


@contextmanager
def _one_thread() -> Iterator[None]:
    """Which is as fast for tiny models, and much faster on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def with_index(folder: Path) -> Path:
    """Give a model's folder of one file the index that SpecForge's EAGLE-3 looks for."""
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", "pt") as file:
        weights = dict.fromkeys(file.keys(), "model.safetensors")
    index = {"metadata": {}, "weight_map": weights}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def with_mtp_layer(folder: Path) -> Path:
    """Give a tiny Qwen3 the MTP layer that published ones have: ``mtp.*``, random."""
    from safetensors.torch import load_file, save_file

    generator = torch.Generator().manual_seed(11)
    tensors = load_file(folder / "model.safetensors")
    layer = {
        f"mtp.layers.0.{name.removeprefix('model.layers.0.')}": tensor.clone()
        for name, tensor in tensors.items()
        if name.startswith("model.layers.0.")
    }
    size = tensors["model.norm.weight"].numel()
    weight = torch.randn(size, 2 * size, generator=generator) / 8
    norms = ("norm", "pre_fc_norm_hidden", "pre_fc_norm_embedding")
    added = {f"mtp.{name}.weight": torch.ones(size).bfloat16() for name in norms}
    added |= layer | {"mtp.fc.weight": weight.bfloat16()}
    save_file(tensors | added, folder / "model.safetensors", {"format": "pt"})
    return folder
