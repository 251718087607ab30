"""tinygpt's GPT-2 in the terms of `transformers`' GPT-2: the same model under other names."""

from typing import Any

from torch import Tensor

from tinygpt.errors import UserError
from tinygpt.model.gpt2 import GPT2

FAMILY = GPT2
ARCHITECTURE = "GPT2LMHeadModel"

# What their configuration may say of a model that ours can be; the first is what it means where it says nothing.
FIXED: dict[str, tuple[Any, ...]] = {
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
    "layer_norm_epsilon": (1e-5,),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,),
}

# Ours → theirs: outside the blocks, and inside each.
STACK = {
    "token_embedding.weight": "wte.weight",
    "positions.table.weight": "wpe.weight",
    "norm.weight": "ln_f.weight",
    "norm.bias": "ln_f.bias",
}
BLOCK = {
    "attention_norm": "ln_1",
    "attention.qkv": "attn.c_attn",
    "attention.proj": "attn.c_proj",
    "mlp_norm": "ln_2",
    "mlp.fc": "mlp.c_fc",
    "mlp.proj": "mlp.c_proj",
}


def names(n_layer: int) -> dict[str, str]:
    """Ours → theirs, without the head."""
    found = {ours: f"transformer.{theirs}" for ours, theirs in STACK.items()}
    for i in range(n_layer):
        for ours, theirs in BLOCK.items():
            for kind in ("weight", "bias"):
                found[f"blocks.{i}.{ours}.{kind}"] = f"transformer.h.{i}.{theirs}.{kind}"
    return found


def turned(name: str, tensor: Tensor) -> Tensor:
    """Their projections are Conv1D modules, whose weights are our matrices transposed."""
    return tensor.T.contiguous() if name.startswith("blocks.") and tensor.dim() == 2 else tensor


def to_config(model: GPT2) -> dict[str, Any]:
    """The keywords of `transformers.GPT2Config` for this model."""
    c = model.config
    return {key: allowed[0] for key, allowed in FIXED.items()} | {
        "vocab_size": c["vocab_size"],
        "n_positions": c["block_size"],
        "n_layer": c["n_layer"],
        "n_head": c["n_head"],
        "n_embd": c["n_embd"],
        "embd_pdrop": c["dropout"],
        "attn_pdrop": c["dropout"],
        "resid_pdrop": c["dropout"],
        "tie_word_embeddings": c["tie_embeddings"],
    }


def from_config(theirs: dict[str, Any]) -> dict[str, Any]:
    """The keywords of our GPT2 for a configuration whose FIXED keys are as they must be.

    Raises:
        KeyError: a size is missing.
        UserError: it describes what GPT2 has no name for.
    """
    if theirs.get("n_inner") not in (None, 4 * theirs["n_embd"]):
        raise UserError(f"n_inner must be 4 · n_embd = {4 * theirs['n_embd']}, got {theirs['n_inner']}")
    dropout = {key: theirs.get(key, 0.1) for key in ("embd_pdrop", "attn_pdrop", "resid_pdrop")}
    if len(set(dropout.values())) > 1:
        raise UserError(
            f"the dropouts must be equal, for tinygpt has one, got {dropout}; they matter in training alone"
        )
    return {
        "vocab_size": theirs["vocab_size"],
        "block_size": theirs["n_positions"],
        "n_layer": theirs["n_layer"],
        "n_head": theirs["n_head"],
        "n_embd": theirs["n_embd"],
        "dropout": float(dropout["resid_pdrop"]),
        "tie_embeddings": theirs.get("tie_word_embeddings", True),
    }


def to_state(model: GPT2) -> dict[str, Tensor]:
    """The state of `transformers.GPT2LMHeadModel` for this model; a tied head is the embedding, and left out."""
    ours = model.state_dict()
    state = {theirs: turned(name, ours[name]) for name, theirs in names(model.n_layer).items()}
    return state if model.config["tie_embeddings"] else state | {"lm_head.weight": ours["head.weight"]}


def from_state(theirs: dict[str, Tensor], config: dict[str, Any]) -> dict[str, Tensor]:
    """The state of our GPT2 of a configuration, in our terms; takes what it uses out of `theirs`.

    Raises:
        KeyError: a tensor is missing.
    """
    for name in list(theirs):
        if name.endswith((".attn.bias", ".attn.masked_bias")):  # the causal mask, in files of old versions
            del theirs[name]
        elif not name.startswith(("transformer.", "lm_head.")):  # a file of the stack alone, such as OpenAI's
            theirs[f"transformer.{name}"] = theirs.pop(name)
    state = {ours: turned(ours, theirs.pop(name)) for ours, name in names(config["n_layer"]).items()}
    tied = config["tie_embeddings"]
    return state | {"head.weight": state["token_embedding.weight"] if tied else theirs.pop("lm_head.weight")}
