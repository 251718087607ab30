"""tinygpt's GPT-2 in the terms of `transformers`' GPT-2: the same model under other names."""

from typing import Any

from torch import Tensor

from tinygpt.model.gpt2 import GPT2

# Ours → theirs, inside a block. Their projections are Conv1D modules, whose weights are our matrices transposed.
BLOCK = {
    "attention_norm": "ln_1",
    "attention.qkv": "attn.c_attn",
    "attention.proj": "attn.c_proj",
    "mlp_norm": "ln_2",
    "mlp.fc": "mlp.c_fc",
    "mlp.proj": "mlp.c_proj",
}


def to_config(model: GPT2) -> dict[str, Any]:
    """The keywords of `transformers.GPT2Config` for this model."""
    c = model.config
    return {
        "vocab_size": c["vocab_size"],
        "n_positions": c["block_size"],
        "n_layer": c["n_layer"],
        "n_head": c["n_head"],
        "n_embd": c["n_embd"],
        "embd_pdrop": c["dropout"],
        "attn_pdrop": c["dropout"],
        "resid_pdrop": c["dropout"],
        "activation_function": "gelu_new",
        "tie_word_embeddings": c["tie_embeddings"],
    }


def to_state(model: GPT2) -> dict[str, Tensor]:
    """The state of `transformers.GPT2LMHeadModel` for this model."""
    ours = model.state_dict()
    theirs = {
        "transformer.wte.weight": ours["token_embedding.weight"],
        "transformer.wpe.weight": ours["positions.table.weight"],
        "transformer.ln_f.weight": ours["norm.weight"],
        "transformer.ln_f.bias": ours["norm.bias"],
        "lm_head.weight": ours["head.weight"],
    }
    for i in range(model.n_layer):
        for our_name, their_name in BLOCK.items():
            weight = ours[f"blocks.{i}.{our_name}.weight"]
            theirs[f"transformer.h.{i}.{their_name}.weight"] = weight.T.contiguous() if weight.dim() == 2 else weight
            theirs[f"transformer.h.{i}.{their_name}.bias"] = ours[f"blocks.{i}.{our_name}.bias"]
    return theirs
