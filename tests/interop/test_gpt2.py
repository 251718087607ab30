import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from tinygpt.interop.gpt2 import to_config, to_state
from tinygpt.model import GPT2


@pytest.mark.parametrize("tie", [True, False])
def test_transformers_computes_the_same_logits(tie: bool):
    ours = GPT2(vocab_size=13, block_size=16, n_layer=3, n_head=4, n_embd=32, tie_embeddings=tie)
    for parameter in ours.parameters():  # biases and norms too, so that a wrong name shows
        torch.nn.init.normal_(parameter, std=0.2)
    theirs = GPT2LMHeadModel(GPT2Config(**to_config(ours)))
    missing, unexpected = theirs.load_state_dict(to_state(ours), strict=False)
    assert not unexpected
    assert all(name.endswith(("attn.bias", "attn.masked_bias")) for name in missing)  # constants of old versions
    ids = torch.randint(13, (2, 16))
    torch.testing.assert_close(ours.eval()(ids), theirs.eval()(ids).logits, atol=1e-5, rtol=1e-5)
