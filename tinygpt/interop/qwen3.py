"""tinygpt's modern family in the terms of `transformers`' Qwen3: the same model under other names."""

from typing import Any

import torch
from torch import Tensor

from tinygpt.errors import UserError
from tinygpt.model.modern import Modern

FAMILY = Modern
ARCHITECTURE = "Qwen3ForCausalLM"

# What their configuration may say of a model that ours can be; the first is what it means where it says nothing.
FIXED: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "swish"),
    "attention_bias": (False,),
    "use_sliding_window": (False,),
}

# Ours → theirs: outside the blocks, and inside each.
STACK = {"token_embedding": "model.embed_tokens", "norm": "model.norm"}
BLOCK = {
    "attention_norm": "input_layernorm",
    "attention.q_norm": "self_attn.q_norm",
    "attention.k_norm": "self_attn.k_norm",
    "attention.proj": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.proj": "mlp.down_proj",
}


def names(n_layer: int) -> dict[str, str]:
    """Ours → theirs, without the head, and without q, k and v, which we keep in one matrix and they in three."""
    found = {f"{ours}.weight": f"{theirs}.weight" for ours, theirs in STACK.items()}
    for i in range(n_layer):
        for ours, theirs in BLOCK.items():
            found[f"blocks.{i}.{ours}.weight"] = f"model.layers.{i}.{theirs}.weight"
    return found


def projections(i: int) -> list[str]:
    """Their names of block i's three matrices, in the order in which ours holds them."""
    return [f"model.layers.{i}.self_attn.{x}_proj.weight" for x in "qkv"]


def to_config(model: Modern) -> dict[str, Any]:
    """The keywords of `transformers.Qwen3Config` for this model.

    Theirs drops attention weights, ours embeddings and residual branches; that matters in training alone.
    """
    c = model.config
    return {key: allowed[0] for key, allowed in FIXED.items()} | {
        "vocab_size": c["vocab_size"],
        "max_position_embeddings": c["block_size"],
        "num_hidden_layers": c["n_layer"],
        "num_attention_heads": c["n_head"],
        "num_key_value_heads": c["n_kv_head"],
        "hidden_size": c["n_embd"],
        "head_dim": c["head_dim"],
        "intermediate_size": c["mlp_dim"],
        "attention_dropout": c["dropout"],
        "rms_norm_eps": c["norm_eps"],
        "rope_theta": c["rope_theta"],  # read by transformers 4
        "rope_parameters": {"rope_type": "default", "rope_theta": c["rope_theta"]},  # and by 5
        "tie_word_embeddings": c["tie_embeddings"],
    }


def from_config(theirs: dict[str, Any]) -> dict[str, Any]:
    """The keywords of our Modern for a configuration whose FIXED keys are as they must be.

    Raises:
        KeyError: a size is missing.
        UserError: it describes what Modern has no name for.
    """
    if set(theirs.get("layer_types") or ()) - {"full_attention"}:
        raise UserError(f"layer_types must all be full_attention, got {theirs['layer_types']}")
    rope = theirs.get("rope_scaling") or theirs.get("rope_parameters") or {}
    kind, part = rope.get("rope_type", rope.get("type", "default")), (theirs | rope).get("partial_rotary_factor", 1)
    if kind != "default" or part != 1:
        raise UserError(f"rotary positions must be of the default kind, unscaled and of whole heads, got {rope}")
    return {
        "vocab_size": theirs["vocab_size"],
        "block_size": theirs["max_position_embeddings"],
        "n_layer": theirs["num_hidden_layers"],
        "n_head": theirs["num_attention_heads"],
        "n_kv_head": theirs["num_key_value_heads"],
        "n_embd": theirs["hidden_size"],
        "head_dim": theirs["head_dim"],
        "mlp_dim": theirs["intermediate_size"],
        "dropout": float(theirs.get("attention_dropout", 0.0)),
        "norm_eps": float(theirs.get("rms_norm_eps", 1e-6)),
        "rope_theta": float(rope.get("rope_theta", theirs.get("rope_theta", 10000.0))),
        "tie_embeddings": theirs.get("tie_word_embeddings", False),
    }


def to_state(model: Modern) -> dict[str, Tensor]:
    """The state of `transformers.Qwen3ForCausalLM` for this model; a tied head is the embedding, and left out."""
    ours, c = model.state_dict(), model.config
    state = {theirs: ours[name] for name, theirs in names(model.n_layer).items()}
    sizes = [heads * c["head_dim"] for heads in (c["n_head"], c["n_kv_head"], c["n_kv_head"])]
    for i in range(model.n_layer):
        state |= zip(projections(i), ours[f"blocks.{i}.attention.qkv.weight"].split(sizes), strict=True)
    return state if c["tie_embeddings"] else state | {"lm_head.weight": ours["head.weight"]}


def from_state(theirs: dict[str, Tensor], config: dict[str, Any]) -> dict[str, Tensor]:
    """The state of our Modern of a configuration, in our terms; takes what it uses out of `theirs`.

    Raises:
        KeyError: a tensor is missing.
    """
    state = {ours: theirs.pop(name) for ours, name in names(config["n_layer"]).items()}
    for i in range(config["n_layer"]):
        state[f"blocks.{i}.attention.qkv.weight"] = torch.cat([theirs.pop(name) for name in projections(i)])
    tied = config["tie_embeddings"]
    return state | {"head.weight": state["token_embedding.weight"] if tied else theirs.pop("lm_head.weight")}
