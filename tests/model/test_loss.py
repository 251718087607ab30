from math import exp, log

import pytest
import torch

from tinygpt.model import next_token_loss


def test_loss_is_the_mean_negative_log_likelihood():
    logits = torch.tensor([[[0.0, 1.0], [2.0, 0.0]]])  # (1, 2, 2)
    expected = (-log(exp(1) / (1 + exp(1))) - log(1 / (1 + exp(2)))) / 2
    assert next_token_loss(logits, torch.tensor([[1, 1]])).item() == pytest.approx(expected)


def test_uncounted_targets_change_neither_mean_nor_sum():
    logits = torch.randn(2, 3, 5)
    targets = torch.tensor([[1, 2, -100], [-100, 3, 4]])
    counted = targets != -100
    picked = -logits.log_softmax(-1)[counted].gather(1, targets[counted][:, None])
    torch.testing.assert_close(next_token_loss(logits, targets), picked.mean())
    torch.testing.assert_close(next_token_loss(logits, targets, reduction="sum"), picked.sum())


def test_shapes_that_disagree_are_named():
    with pytest.raises(ValueError, match=r"logits=\(2, 3, 5\), targets=\(2, 4\)"):
        next_token_loss(torch.zeros(2, 3, 5), torch.zeros(2, 4, dtype=torch.int64))
