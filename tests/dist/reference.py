"""The same training by one process in plain torch: whole weights, autograd, torch's own optimizer. The oracle of the exactness tests.

Takes from lurcher only what defines the job: tensor shapes, initial values and micro-batches.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from lurcher.config import JobConfig, ModelSection
from lurcher.runtime.data import Loader, MicroBatch
from lurcher.runtime.initial import initial_values
from lurcher.runtime.shapes import VOCAB_SIZE, Held, tensor_specs

State = dict[str, torch.Tensor]


class Trained(NamedTuple):
    """After `iterations`: values by kind and tensor ("exp_avg/head"), gradients those of the last iteration before clipping."""

    state: State
    losses: list[float]
    norms: list[float]
    rates: list[float]


def train(config: JobConfig, iterations: int) -> Trained:
    """Train the whole model by the job's definition, all micro-batches of an iteration as one batch."""
    dtype = torch.float64 if config.job.dtype == "float64" else torch.float32
    model, optim, num = config.model, config.optim, config.layout.num_microbatches
    specs = tensor_specs(model)
    weights = {
        spec.name: torch.from_numpy(initial_values(model, config.job.seed, Held(spec, 0, spec.num_atoms))).to(dtype).requires_grad_()
        for spec in specs
    }
    groups = [
        {"params": [w for name, w in weights.items() if w.dim() > 1], "weight_decay": optim.weight_decay},
        {"params": [w for name, w in weights.items() if w.dim() == 1], "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(groups, lr=optim.lr, betas=(optim.beta1, optim.beta2), eps=optim.eps)
    warmup = torch.optim.lr_scheduler.LambdaLR(adamw, lambda k: min(1.0, (k + 1) / optim.warmup_iterations))
    loader = Loader(config.job.corpus, config.job.seed, model.seq_len, num, bucketed=config.job.bucketed)
    losses, norms, rates, state = [], [], [], {}
    for iteration in range(iterations):
        adamw.zero_grad(set_to_none=True)
        loss = loss_of(weights, model, [loader.microbatch(iteration, microbatch) for microbatch in range(num)])
        loss.backward()
        state = {f"grad/{name}": w.grad.clone() for name, w in weights.items()}
        norms.append(float(torch.nn.utils.clip_grad_norm_(weights.values(), optim.clip_norm)))
        losses.append(loss.item())
        rates.append(warmup.get_last_lr()[0])
        adamw.step()
        warmup.step()
    for name, w in weights.items():
        state[f"param/{name}"] = w.detach()
        state[f"exp_avg/{name}"] = adamw.state[w]["exp_avg"]
        state[f"exp_avg_sq/{name}"] = adamw.state[w]["exp_avg_sq"]
    return Trained(state, losses, norms, rates)


def loss_of(weights: State, model: ModelSection, batches: list[MicroBatch]) -> torch.Tensor:
    """Mean over the packed sequences of their mean cross-entropy. Shapes: x [M, S, H]."""
    tokens, targets, positions, documents = (torch.from_numpy(np.stack([batch[i] for batch in batches])) for i in range(4))
    mask = (documents[:, None, :, None] == documents[:, None, None, :]) & torch.ones(model.seq_len, model.seq_len, dtype=torch.bool).tril()
    embed = weights["embed"].reshape(-1, model.hidden)
    x = F.embedding(tokens, embed)
    for layer in range(model.num_layers):
        attn, ffn = f"layers.{layer}.attn", f"layers.{layer}.ffn"
        x = x + _attention(weights[f"{attn}.wqkv"], weights[f"{attn}.wo"], model, _rms(x, weights[f"{attn}.norm"]), positions, mask)
        x = x + _feed_forward(weights[f"{ffn}.gate_up"], weights[f"{ffn}.down"], model, _rms(x, weights[f"{ffn}.norm"]))
    head = weights["embed" if model.tied else "head"].reshape(-1, model.hidden)[:VOCAB_SIZE]
    logits = _rms(x, weights["final_norm"]) @ head.T
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())  # all sequences have the same length, so one mean is both


def _rms(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, weight.shape, weight, 1e-6)


def _attention(
    wqkv: torch.Tensor, wo: torch.Tensor, model: ModelSection, x: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Three ordinary matrices for query, key and value, keys and values repeated for every query head of their group."""
    size, per_group = model.hidden // model.num_heads, model.num_heads // model.num_kv_heads
    wq, wk, wv = wqkv.split([per_group * size, size, size], dim=1)
    query, key, value = ((x @ w.reshape(-1, model.hidden).T).unflatten(2, (-1, size)).transpose(1, 2) for w in (wq, wk, wv))
    query, key = _rotate(query, positions, model.rope_base), _rotate(key, positions, model.rope_base)
    key, value = key.repeat_interleave(per_group, dim=1), value.repeat_interleave(per_group, dim=1)
    heads = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    return heads.transpose(1, 2).flatten(2) @ wo.reshape(-1, model.hidden)


def _rotate(x: torch.Tensor, positions: torch.Tensor, base: float) -> torch.Tensor:
    """Neighbouring elements (2i, 2i + 1) turned by position * base^(-2i / size), written with sine and cosine; x [M, heads, S, size]."""
    size = x.shape[-1]
    speeds = torch.tensor([math.pow(base, -2 * i / size) for i in range(size // 2)], dtype=torch.float64)
    angle = positions[:, None, :, None] * speeds
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


def _feed_forward(gate_up: torch.Tensor, down: torch.Tensor, model: ModelSection, x: torch.Tensor) -> torch.Tensor:
    """down(silu(gate) * up) with three ordinary matrices."""
    gate, up = (w.reshape(-1, model.hidden) for w in gate_up.split(model.ffn_block_size, dim=1))
    return (F.silu(x @ gate.T) * (x @ up.T)) @ down.reshape(-1, model.hidden)
