#!/usr/bin/env python3
# Copyright: the contributors of ddtree.fleet
# SPDX-License-Identifier: GPL-3.0-or-later
"""Train the models that the real-server tests serve: a tiny Llama and DFlash drafters for it, in about a minute.

usage: models.py OUT

OUT/tiny-llama          knows a few sentences by heart, so its greedy text is readable and varied
OUT/tiny-dflash         a drafter that agrees with it: most of its drafts are accepted
OUT/tiny-dflash-random  a drafter of random weights whose last norm is zero: it always proposes token 0 (`<s>`), which
                        the target never says. Random logits alone would have one draft in 200 accepted by chance.

Seeds are fixed; the same torch on the same kind of CPU gives the same files.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TEXTS = (
    "The capital of France is Paris and the capital of Italy is Rome. ",
    "Hello, how are you? I am fine, thank you, and how are you today? ",
    "A draft tree offers many words and the target keeps those it would have said. ",
    "One two three four five six seven eight nine ten, and then again. ",
)
SPECIAL_TOKENS = ("<s>", "</s>", "<pad>", "<mask>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VOCAB = 512
HIDDEN = 128
INTERMEDIATE = 2 * HIDDEN
HEADS = 4
KV_HEADS = 2
HEAD_DIM = 32
EPS = 1e-6
TARGET_LAYERS = 4
TARGET_LAYER_IDS = (1, 2)
DRAFT_LAYERS = 2
BLOCK = 8
# transformers 5 moves a config's rope_theta away and SGLang 0.5.11 then falls back to this value without a word.
ROPE_THETA = 1000000.0


def make_tokenizer(out: Path) -> PreTrainedTokenizerFast:
    """Train and save a byte-level BPE over the texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=384,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(list(TEXTS) * 20, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>", mask_token="<mask>"
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.model_max_length = 2048
    fast.save_pretrained(out)
    return fast


def batches(tokenizer: PreTrainedTokenizerFast, length: int, size: int) -> Iterator[Tensor]:
    """Endless batches [size, length] of token ids, each row cut at random from one repeated text."""
    streams = [torch.tensor(tokenizer(text, add_special_tokens=False)["input_ids"] * 60) for text in TEXTS]
    while True:
        rows = []
        for _ in range(size):
            stream = streams[int(torch.randint(len(streams), (1,)))]
            start = int(torch.randint(len(stream) - length, (1,)))
            rows.append(stream[start : start + length])
        yield torch.stack(rows)


def step(optimizer: torch.optim.Optimizer, weights: list[nn.Parameter], loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(weights, 1.0)
    optimizer.step()


def train_target(tokenizer: PreTrainedTokenizerFast, out: Path, steps: int = 250) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=INTERMEDIATE,
        num_hidden_layers=TARGET_LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        max_position_embeddings=2048,
        rope_theta=ROPE_THETA,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
        tie_word_embeddings=False,
        dtype="float32",
    )
    target = LlamaForCausalLM(config).float()
    weights = list(target.parameters())
    optimizer = torch.optim.AdamW(weights, lr=3e-3)
    data = batches(tokenizer, 96, 16)
    for _ in range(steps):
        ids = next(data)
        loss = target(ids, labels=ids).loss
        step(optimizer, weights, loss)
    print(f"tiny-llama: loss {loss.item():.4f}")
    target.eval()
    target.save_pretrained(out)
    return target


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * weight


def rope(x: Tensor, positions: Tensor) -> Tensor:
    half = HEAD_DIM // 2
    angles = positions[..., None] / ROPE_THETA ** (torch.arange(half) * 2 / HEAD_DIM)
    cos, sin = angles.cos().unsqueeze(-2), angles.sin().unsqueeze(-2)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def drafter_weights(layers: int) -> dict[str, nn.Parameter]:
    """Fresh weights of a DFlash drafter, named as SGLang loads them."""

    def random(*shape: int) -> nn.Parameter:
        return nn.Parameter(torch.randn(*shape) * 0.04)

    def ones(size: int) -> nn.Parameter:
        return nn.Parameter(torch.ones(size))

    weights = {
        "fc.weight": random(HIDDEN, len(TARGET_LAYER_IDS) * HIDDEN),
        "hidden_norm.weight": ones(HIDDEN),
        "norm.weight": ones(HIDDEN),
    }
    for i in range(layers):
        layer = {
            "self_attn.q_proj": random(HEADS * HEAD_DIM, HIDDEN),
            "self_attn.k_proj": random(KV_HEADS * HEAD_DIM, HIDDEN),
            "self_attn.v_proj": random(KV_HEADS * HEAD_DIM, HIDDEN),
            "self_attn.o_proj": random(HIDDEN, HEADS * HEAD_DIM),
            "self_attn.q_norm": ones(HEAD_DIM),
            "self_attn.k_norm": ones(HEAD_DIM),
            "mlp.gate_proj": random(INTERMEDIATE, HIDDEN),
            "mlp.up_proj": random(INTERMEDIATE, HIDDEN),
            "mlp.down_proj": random(HIDDEN, INTERMEDIATE),
            "input_layernorm": ones(HIDDEN),
            "post_attention_layernorm": ones(HIDDEN),
        }
        weights.update({f"layers.{i}.{name}.weight": value for name, value in layer.items()})
    return weights


def draft(weights: dict[str, nn.Parameter], features: Tensor, block: Tensor, start: int) -> Tensor:
    """Run a drafter as SGLang does.

    features [B, T, 2 * HIDDEN] are the target's states at positions 0..T-1, block [B, K, HIDDEN] the embeddings of the
    verified token and the masks at start..start+K-1; returns hidden states [B, K, HIDDEN].
    """
    batch, context, _ = features.shape
    size = block.shape[1]
    states = rms_norm(features @ weights["fc.weight"].T, weights["hidden_norm.weight"])
    block_positions = start + torch.arange(size)
    positions = torch.cat([torch.arange(context), block_positions])
    x = block
    for i in range(DRAFT_LAYERS):
        prefix = f"layers.{i}."
        w = {n.removeprefix(prefix).removesuffix(".weight"): v for n, v in weights.items() if n.startswith(prefix)}
        h = rms_norm(x, w["input_layernorm"])
        source = torch.cat([states, h], 1)
        q = (h @ w["self_attn.q_proj"].T).view(batch, size, HEADS, HEAD_DIM)
        k = (source @ w["self_attn.k_proj"].T).view(batch, context + size, KV_HEADS, HEAD_DIM)
        v = (source @ w["self_attn.v_proj"].T).view(batch, context + size, KV_HEADS, HEAD_DIM)
        q = rope(rms_norm(q, w["self_attn.q_norm"]), block_positions)
        k = rope(rms_norm(k, w["self_attn.k_norm"]), positions)
        k, v = (t.repeat_interleave(HEADS // KV_HEADS, 2).transpose(1, 2) for t in (k, v))
        attended = F.scaled_dot_product_attention(q.transpose(1, 2), k, v).transpose(1, 2)
        x = x + attended.reshape(batch, size, -1) @ w["self_attn.o_proj"].T
        h = rms_norm(x, w["post_attention_layernorm"])
        x = x + (F.silu(h @ w["mlp.gate_proj"].T) * (h @ w["mlp.up_proj"].T)) @ w["mlp.down_proj"].T
    return rms_norm(x, weights["norm.weight"])


def train_drafter(
    tokenizer: PreTrainedTokenizerFast, target: LlamaForCausalLM, steps: int = 500
) -> dict[str, nn.Parameter]:
    weights = drafter_weights(DRAFT_LAYERS)
    parameters = list(weights.values())
    optimizer = torch.optim.AdamW(parameters, lr=3e-3)
    embedding = target.get_input_embeddings().weight.detach()
    head = target.lm_head.weight.detach()
    data = batches(tokenizer, 112, 16)
    for number in range(steps):
        ids = next(data)
        with torch.no_grad():
            hidden = target(ids, output_hidden_states=True).hidden_states
            features = torch.cat([hidden[i + 1] for i in TARGET_LAYER_IDS], -1)
        # Every other step keeps the context short: that is where the tests' prompts live.
        start = int(torch.randint(3, 64 if number % 2 else ids.shape[1] - BLOCK, (1,)))
        block = torch.full((ids.shape[0], BLOCK), tokenizer.mask_token_id)
        block[:, 0] = ids[:, start]
        logits = draft(weights, features[:, :start], embedding[block], start)[:, 1:] @ head.T
        wanted = ids[:, start + 1 : start + BLOCK]
        loss = F.cross_entropy(logits.reshape(-1, VOCAB), wanted.reshape(-1))
        step(optimizer, parameters, loss)
    hits = (logits.argmax(-1) == wanted).float().mean().item()
    print(f"tiny-dflash: loss {loss.item():.4f}, {hits:.1%} of the last batch right")
    return weights


def save_drafter(weights: dict[str, nn.Parameter], mask_token_id: int, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    tensors = {name: value.detach().contiguous() for name, value in weights.items()}
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "dtype": "float32",
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": DRAFT_LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "rms_norm_eps": EPS,
        "rope_theta": ROPE_THETA,
        "max_position_embeddings": 2048,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
        "use_cache": True,
        "use_sliding_window": False,
        "sliding_window": None,
        "max_window_layers": DRAFT_LAYERS,
        "block_size": BLOCK,
        "num_target_layers": TARGET_LAYERS,
        "dflash_config": {
            "mask_token": "<mask>",
            "mask_token_id": mask_token_id,
            "target_layer_ids": list(TARGET_LAYER_IDS),
        },
    }
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: models.py OUT")
    root = Path(sys.argv[1])
    torch.manual_seed(0)
    # The operations are tiny: on a busy machine a second thread makes training ten times slower, not faster.
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)

    target_dir = root / "tiny-llama"
    target_dir.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer(target_dir)
    target = train_target(tokenizer, target_dir)
    save_drafter(train_drafter(tokenizer, target), tokenizer.mask_token_id, root / "tiny-dflash")

    random = drafter_weights(DRAFT_LAYERS)
    random["norm.weight"].data.zero_()
    save_drafter(random, tokenizer.mask_token_id, root / "tiny-dflash-random")
    for path in root.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)


if __name__ == "__main__":
    main()
