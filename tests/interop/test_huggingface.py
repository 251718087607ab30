"""Folders of tiny random models, from transformers to tinygpt and back, with every weight random."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel, Qwen3Config, Qwen3ForCausalLM

from tests.conftest import small
from tinygpt.errors import UserError
from tinygpt.interop.huggingface import load_folder, save_folder
from tinygpt.model import GPT
from tinygpt.tokenizers import CharTokenizer

GPT2_CASES = [("gpt2", {"tie_embeddings": tie}) for tie in (True, False)]
MODERN_CASES = [
    ("modern", {"n_head": 4, "tie_embeddings": tie, "n_kv_head": n_kv_head, "head_dim": head_dim})
    for tie in (True, False)
    for n_kv_head in (4, 2)
    for head_dim in (4, 6)
]


def twin(family: str, **changes: Any) -> torch.nn.Module:
    """A model of transformers as large as `small`, every weight random."""
    if family == "gpt2":
        sizes = {"vocab_size": 11, "n_positions": 8, "n_layer": 2, "n_head": 2, "n_embd": 16, "eos_token_id": None}
        theirs = GPT2LMHeadModel(GPT2Config(**sizes | {"bos_token_id": None} | changes))
    else:
        sizes = {"vocab_size": 11, "max_position_embeddings": 8, "num_hidden_layers": 2, "num_attention_heads": 4}
        sizes |= {"num_key_value_heads": 2, "hidden_size": 16, "head_dim": 6, "intermediate_size": 32}
        theirs = Qwen3ForCausalLM(Qwen3Config(**sizes | changes))
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return theirs.eval()


def assert_same_logits(ours: GPT, theirs: torch.nn.Module) -> None:
    ids = torch.randint(11, (3, 8))
    torch.testing.assert_close(ours(ids), theirs(ids).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("family", "sizes"), GPT2_CASES + MODERN_CASES)
def test_transformers_computes_the_logits_of_our_folder(family: str, sizes: dict, tmp_path: Path):
    ours = small(family, **sizes)
    save_folder(ours, tmp_path)
    assert_same_logits(ours, AutoModelForCausalLM.from_pretrained(tmp_path).eval())


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("gpt2", {}),
        ("gpt2", {"tie_word_embeddings": False}),
        ("gpt2", {"activation_function": "gelu_pytorch_tanh", "n_inner": 64, "reorder_and_upcast_attn": True}),
        ("qwen3", {}),
        ("qwen3", {"tie_word_embeddings": True}),
        ("qwen3", {"num_key_value_heads": 4}),
        ("qwen3", {"head_dim": 4, "rms_norm_eps": 1e-2}),
        ("qwen3", {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}, "rope_theta": 50.0}),
    ],
)
def test_we_compute_the_logits_of_their_folder(family: str, changes: dict, tmp_path: Path):
    theirs = twin(family, **changes)
    theirs.save_pretrained(tmp_path)
    assert_same_logits(load_folder(tmp_path), theirs)


@pytest.mark.parametrize(("family", "sizes"), GPT2_CASES + MODERN_CASES)
def test_what_goes_out_comes_back_to_the_bit(family: str, sizes: dict, tmp_path: Path):
    ours = small(family, **sizes, dropout=0.25)
    save_folder(ours, tmp_path)
    back = load_folder(tmp_path)
    assert back.config == ours.config
    assert not back.training
    for name, tensor in ours.state_dict().items():
        assert torch.equal(back.state_dict()[name], tensor), name


@pytest.mark.parametrize(
    "rope", [{"rope_theta": 50.0}, {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}}]
)
def test_the_base_of_rotary_positions_is_read_where_either_version_writes_it(rope: dict, tmp_path: Path):
    save_folder(small("modern"), tmp_path)
    change_config(tmp_path, rope_theta=None, rope_parameters=None)
    change_config(tmp_path, **rope)
    assert load_folder(tmp_path).config["rope_theta"] == 50.0


def test_shards_are_read_together(tmp_path: Path):
    theirs = twin("qwen3")
    theirs.save_pretrained(tmp_path, max_shard_size="5KB")
    assert not (tmp_path / "model.safetensors").exists()
    assert_same_logits(load_folder(tmp_path), theirs)


def test_files_without_a_prefix_and_with_masks_are_read(tmp_path: Path):
    """The layout of the files that GPT-2 was published in."""
    theirs = twin("gpt2")
    theirs.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors = {name.removeprefix("transformer."): tensor.clone() for name, tensor in tensors.items()}
    tensors |= {f"h.{i}.attn.bias": torch.ones(1, 1, 8, 8).tril() for i in range(2)}
    save_file(tensors, tmp_path / "model.safetensors")
    assert_same_logits(load_folder(tmp_path), theirs)


def test_a_tied_head_that_is_written_too_must_be_the_embedding(tmp_path: Path):
    save_folder(small("modern", tie_embeddings=True), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    load_folder(tmp_path)
    tensors["lm_head.weight"][3, 5] += 1
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="tie_word_embeddings is true, but lm_head.weight is not the token embedding"):
        load_folder(tmp_path)


def test_the_tokenizer_goes_with_the_model(tmp_path: Path):
    tokenizer = CharTokenizer("abcdefghi")
    save_folder(small("modern"), tmp_path / "new" / "folder", tokenizer)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "new" / "folder")
    assert theirs.encode("badge") == tokenizer.encode("badge").tolist()
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "new" / "folder")
    assert model.generation_config.eos_token_id == tokenizer.end_of_text


def change_config(path: Path, **changes: Any) -> None:
    """Change keys of config.json; None takes a key out."""
    config = json.loads((path / "config.json").read_text()) | changes
    (path / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


@pytest.mark.parametrize(
    ("family", "changes", "words"),
    [
        ("gpt2", {"activation_function": "relu"}, "activation_function must be 'gelu_new' or .*, got 'relu'"),
        ("gpt2", {"layer_norm_epsilon": 1e-6}, "layer_norm_epsilon must be 1e-05, got 1e-06"),
        ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights must be True, got False"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx must be False, got True"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention must be False, got True"),
        ("gpt2", {"n_inner": 48}, "n_inner must be 4 · n_embd = 64, got 48"),
        ("gpt2", {"attn_pdrop": 0.2}, "the dropouts must be equal, for tinygpt has one, got .*'attn_pdrop': 0.2"),
        ("gpt2", {"n_embd": None}, "config.json does not say n_embd"),
        ("gpt2", {"n_head": 3}, "n_embd must be a multiple of n_head, got n_embd=16, n_head=3"),
        ("gpt2", {"n_positions": 9}, r"makes positions.table.weight \(9, 16\), the file's is \(8, 16\)"),
        ("gpt2", {"n_layer": 3}, "lacks the tensor transformer.h.2.ln_1.weight"),
        ("gpt2", {"n_layer": 1}, r"has tensors that no part of the model is for: transformer.h.1.attn.c_attn.bias"),
        ("gpt2", {"tie_word_embeddings": False}, "lacks the tensor lm_head.weight"),
        ("gpt2", {"model_type": "llama"}, "holds a model of type 'llama'; tinygpt reads gpt2, qwen3"),
        ("modern", {"hidden_act": "gelu"}, "hidden_act must be 'silu' or 'swish', got 'gelu'"),
        ("modern", {"attention_bias": True}, "attention_bias must be False, got True"),
        ("modern", {"use_sliding_window": True}, "use_sliding_window must be False, got True"),
        ("modern", {"layer_types": ["sliding_attention"] * 2}, "layer_types must all be full_attention, got .*sliding"),
        ("modern", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "of the default kind, .*'linear'"),
        ("modern", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "of the default kind, .*'yarn'"),
        ("modern", {"partial_rotary_factor": 0.5}, "of the default kind, unscaled and of whole heads"),
        ("modern", {"head_dim": None}, "config.json does not say head_dim"),
        ("modern", {"head_dim": 3}, "head_dim must be even, for rotary positions turn pairs, got 3"),
    ],
)
def test_what_a_family_cannot_be_is_refused_by_name(family: str, changes: dict, words: str, tmp_path: Path):
    save_folder(small(family), tmp_path)
    change_config(tmp_path, **changes)
    with pytest.raises(UserError, match=words):
        load_folder(tmp_path)


def test_windows_have_no_twin(tmp_path: Path):
    model = small("modern", window=[4, None])
    with pytest.raises(UserError, match=r"a model with windows has no twin in transformers, got window=\[4, None\]"):
        save_folder(model, tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_a_family_without_a_twin_is_refused(gpt: GPT, tmp_path: Path):
    other = type("Other", (type(gpt),), {})(vocab_size=11)
    with pytest.raises(UserError, match="Other has no twin in transformers; those that have one are: GPT2, Modern"):
        save_folder(other, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_is_no_folder_of_a_model_is_named(gpt: GPT, tmp_path: Path):
    with pytest.raises(UserError, match=r"there is no .*config\.json: it is not the folder of a Hugging Face model"):
        load_folder(tmp_path)
    save_folder(gpt, tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"hello")
    with pytest.raises(UserError, match=r"model\.safetensors is damaged"):
        load_folder(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "pytorch_model.bin").write_bytes(b"a pickle")
    with pytest.raises(UserError, match=r"has no model\.safetensors; only safetensors are read, no pickle is run"):
        load_folder(tmp_path)
    (tmp_path / "config.json").write_text("[1")
    with pytest.raises(UserError, match=r"config\.json is not JSON of an object"):
        load_folder(tmp_path)
