"""Make the demo's model and train it on generated dialogues, on a CPU."""

import math
import time
from collections.abc import Iterator
from random import Random
from typing import TYPE_CHECKING, NamedTuple

import torch
from make.demo.dialogues import TRAINING_WEIGHTS, dialogue
from make.demo.tokenizer import SPECIAL_TOKENS, ChatEncoder
from torch.nn import functional
from transformers import AttentionInterface, DeepseekV3Config, DeepseekV3ForCausalLM
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

if TYPE_CHECKING:
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import (
        DeepseekV3Experts,
        DeepseekV3TopkRouter,
    )

LENGTHS = (96, 192, 384, 768, 1536)  # tokens in a sequence
LENGTH_SHARES = (0.45, 0.35, 0.14, 0.04, 0.02)  # of the steps
OTHER_WEIGHT = 0.1  # of a token outside the answers, in the loss
BALANCE_RATE = 1e-3


class Settings(NamedTuple):
    """What a training run depends on."""

    steps: int = 2600
    tokens_per_step: int = 1536
    peak_lr: float = 3e-3
    warmup_steps: int = 100
    weight_decay: float = 0.05
    seed: int = 0


class Batch(NamedTuple):
    """Sequences of one length, without padding."""

    input_ids: torch.Tensor  # int64 [B, T]
    loss_mask: torch.Tensor  # float32 [B, T], 1 on the assistant's tokens


def make_config(vocab_size: int) -> DeepseekV3Config:
    """Kimi-K2's architecture at a thousandth of its width."""
    return DeepseekV3Config(
        vocab_size=vocab_size,
        hidden_size=96,
        intermediate_size=288,
        moe_intermediate_size=32,
        num_hidden_layers=10,
        num_attention_heads=4,
        num_key_value_heads=4,
        n_shared_experts=1,
        n_routed_experts=6,
        num_experts_per_tok=2,
        first_k_dense_replace=1,
        routed_scaling_factor=1.5,
        norm_topk_prob=True,
        n_group=1,
        topk_group=1,
        q_lora_rank=48,
        kv_lora_rank=32,
        qk_nope_head_dim=16,
        qk_rope_head_dim=16,
        v_head_dim=24,
        max_position_embeddings=4096,
        rms_norm_eps=1e-6,
        initializer_range=0.05,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 2.0,
            "original_max_position_embeddings": 2048,
            "beta_fast": 1.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
        num_mtp_layers=0,
        tie_word_embeddings=False,
        bos_token_id=SPECIAL_TOKENS.index("[BOS]"),
        eos_token_id=SPECIAL_TOKENS.index("<|im_end|>"),
        pad_token_id=SPECIAL_TOKENS.index("[PAD]"),
    )


def dense_experts(
    module: "DeepseekV3Experts",
    hidden_states: torch.Tensor,  # [N, H]
    top_k_index: torch.Tensor,  # [N, k]
    top_k_weights: torch.Tensor,  # [N, k]
) -> torch.Tensor:
    """All experts as one wide MLP, gated by the router: more arithmetic, no loop."""
    gates = hidden_states.new_zeros(hidden_states.shape[0], module.num_experts)
    gates = gates.scatter(1, top_k_index, top_k_weights.to(gates.dtype))
    wide = hidden_states @ module.gate_up_proj.flatten(0, 1).T
    gate, up = wide.unflatten(1, (module.num_experts, 2, -1)).unbind(2)  # [N, E, I] each
    inner = functional.silu(gate) * up * gates.unsqueeze(-1)
    mixed: torch.Tensor = inner.flatten(1) @ module.down_proj.transpose(1, 2).flatten(0, 1)
    return mixed


def padded_attention(
    _module: torch.nn.Module,
    query: torch.Tensor,  # [B, heads, T, qk width]
    key: torch.Tensor,
    value: torch.Tensor,  # [B, heads, T, v width]
    _attention_mask: torch.Tensor | None,
    scaling: float,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """Causal attention; PyTorch's fast CPU kernel wants values as wide as keys."""
    width = value.shape[-1]
    value = functional.pad(value, (0, query.shape[-1] - width))
    mixed = functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=scaling
    )
    return mixed[..., :width].transpose(1, 2).contiguous(), None


ALL_EXPERTS_FUNCTIONS.register("dense", dense_experts)
AttentionInterface.register("padded", padded_attention)


def make_model(config: DeepseekV3Config, seed: int) -> DeepseekV3ForCausalLM:
    """An untrained float32 model; its output projections start small, as depth asks for."""
    torch.manual_seed(seed)
    config._experts_implementation = "dense"
    config._attn_implementation = "padded"
    model = DeepseekV3ForCausalLM(config)
    scale = 1 / math.sqrt(2 * config.num_hidden_layers)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight", "down_proj")):
                parameter.mul_(scale)
    return model


def batches(encoder: ChatEncoder, settings: Settings) -> Iterator[Batch]:
    """Fresh dialogues without end, cut at the sequence length."""
    rng = Random(settings.seed)
    while True:
        length = rng.choices(LENGTHS, LENGTH_SHARES)[0]
        rows = [sequence(encoder, rng, length) for _ in range(settings.tokens_per_step // length)]
        ids, masks = zip(*rows, strict=True)
        yield Batch(torch.tensor(ids), torch.tensor(masks, dtype=torch.float32))


def sequence(encoder: ChatEncoder, rng: Random, length: int) -> tuple[list[int], list[int]]:
    """Exactly `length` tokens of one or more dialogues, and their mask."""
    ids: list[int] = []
    mask: list[int] = []
    while len(ids) < length:
        target = rng.choice((40, length, length + 40))
        made = dialogue(rng, encoder.cost, target, TRAINING_WEIGHTS)
        part = encoder.conversation(made.messages())
        ids += part.input_ids
        mask += part.loss_mask
    return ids[:length], mask[:length]


def loss_of(model: DeepseekV3ForCausalLM, batch: Batch) -> torch.Tensor:
    """Cross entropy of the next token, the answers' tokens weighted most."""
    logits = model(input_ids=batch.input_ids[:, :-1], use_cache=False).logits
    weights = OTHER_WEIGHT + (1 - OTHER_WEIGHT) * batch.loss_mask[:, 1:].flatten()
    losses = functional.cross_entropy(
        logits.flatten(0, 1), batch.input_ids[:, 1:].flatten(), reduction="none"
    )
    return (losses * weights).sum() / weights.sum()


def balance_experts(model: DeepseekV3ForCausalLM) -> None:
    """After each forward, raise the bias of experts used too little (noaux_tc)."""

    def update(
        router: "DeepseekV3TopkRouter", _inputs: object, outputs: tuple[torch.Tensor, ...]
    ) -> None:
        if router.training:
            load = torch.bincount(outputs[2].flatten(), minlength=router.num_experts).float()
            router.e_score_correction_bias.add_((load.mean() - load).sign(), alpha=BALANCE_RATE)

    for layer in model.model.layers[model.config.first_k_dense_replace :]:
        layer.mlp.gate.register_forward_hook(update)


def make_optimizer(model: DeepseekV3ForCausalLM, settings: Settings) -> torch.optim.AdamW:
    """AdamW, without decay on norms."""
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    groups = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=settings.peak_lr, betas=(0.9, 0.98), fused=True)


def learning_rate(step: int, settings: Settings) -> float:
    """Linear warm-up, then a cosine down to 1 % of the peak."""
    if step < settings.warmup_steps:
        return settings.peak_lr * (step + 1) / settings.warmup_steps
    done = (step - settings.warmup_steps) / max(1, settings.steps - settings.warmup_steps)
    return settings.peak_lr * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * done)))


def train(model: DeepseekV3ForCausalLM, encoder: ChatEncoder, settings: Settings) -> int:
    """Train in place; returns the number of tokens seen."""
    optimizer = make_optimizer(model, settings)
    balance_experts(model)
    model.train()
    num_tokens, started = 0, time.perf_counter()
    for step, batch in zip(range(settings.steps), batches(encoder, settings), strict=False):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, settings)
        loss = loss_of(model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        num_tokens += batch.input_ids.numel()
        if step % 50 == 0 or step == settings.steps - 1:
            rate = num_tokens / (time.perf_counter() - started)
            print(f"step {step}: loss {loss.item():.3f}, {rate:.0f} tokens/s", flush=True)
    return num_tokens
