"""The loaders that Lightning is given."""

import pytest
import torch

from tests.training.run import TEXT, Run
from tinygpt.data.module import TextDataModule
from tinygpt.data.text_files import TextFiles
from tinygpt.errors import UserError


def test_a_split_without_enough_text_is_named(token_file):
    corpus, text = TextFiles(files="unused"), token_file(TEXT)
    with pytest.raises(UserError, match="the training split has 10 tokens, fewer than model.block_size=16"):
        TextDataModule(token_file("too short"), text, corpus=corpus, block_size=16, seed=0)
    with pytest.raises(UserError, match="the validation split holds no text"):
        TextDataModule(text, token_file(""), corpus=corpus, block_size=16, seed=0)
    TextDataModule(text, token_file("a"), corpus=corpus, block_size=16, seed=0)  # little is enough to validate on


def test_workers_build_the_same_batches(token_file):
    weights = []
    for workers in (0, 2):
        run = Run(token_file, max_steps=3)
        run.data.corpus.num_workers = workers
        weights.append(run.fit().module.model.state_dict())
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
