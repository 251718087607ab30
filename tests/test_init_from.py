"""`python train.py init_from=CKPT`: a model's weights and tokenizer are where another run starts."""

from pathlib import Path

import pytest
import torch

from tests.conftest import TINY
from tinygpt.checkpoint import read
from tinygpt.training.module import LanguageModel

OTHER = ["data=text_files", "data.files=other.txt", "data.batch_size=4", "trainer.max_steps=2", "eval_every=2"]


@pytest.fixture
def trained(command) -> Path:
    assert command(*TINY, "model=gpt2", "tokenizer=char", "model.window=5")[0] == 0
    Path("other.txt").write_text("to be or not to be, that is not the question." * 20)
    return Path("run/checkpoints/best.ckpt")


@pytest.mark.parametrize("name", ["run", "run/checkpoints/best.ckpt"])
def test_training_starts_with_the_weights_tokenizer_and_sizes_of_a_checkpoint(command, trained, monkeypatch, name: str):
    first = []
    original = LanguageModel.on_train_start

    def keep(self):
        first.append({k: w.clone() for k, w in self.model.state_dict().items()})
        original(self)

    monkeypatch.setattr(LanguageModel, "on_train_start", keep)
    status, _, err = command(*OTHER, f"init_from={name}", "run_dir=new", "model.dropout=0.3", "attention=chunked")
    assert (status, err) == (0, "")
    before, after = read(trained), read(Path("new/checkpoints/last.ckpt"))
    assert all(torch.equal(first[0][k], w) for k, w in before.model.state_dict().items())
    assert any(not torch.equal(w, before.model.state_dict()[k]) for k, w in after.model.state_dict().items())
    assert after.tokenizer.config == before.tokenizer.config
    changed = {k for k, v in after.model.config.items() if v != before.model.config[k]}
    assert changed == {"dropout", "attention"}
    assert command("resume=new", "trainer.max_steps=4")[0] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model.n_layer=2"], "model.n_layer must be 1, as it is in init_from, got 2"),
        (["model=modern"], "model= chooses Modern, init_from has GPT2"),
        (["tokenizer=byte"], "tokenizer= chooses ByteTokenizer, init_from has CharTokenizer"),
    ],
)
def test_what_the_checkpoint_is_not_cannot_be_asked_for(command, trained, words: list[str], message: str):
    status, out, err = command(*OTHER, "init_from=run", "run_dir=new", *words)
    assert (status, out, err) == (2, "", f"train.py: {message}\n")
    assert not Path("new").exists()
    same = ["model=gpt2", "model.n_layer=1", "tokenizer=char"]
    assert command(*OTHER, "init_from=run", "run_dir=new", *same)[0] == 0


def test_a_run_that_goes_on_starts_nowhere_else(command, trained):
    status, _, err = command("resume=run", "init_from=run")
    assert (status, err.count("\n")) == (2, 1)
    assert "init_from= does not go with resume=" in err
