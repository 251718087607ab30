"""Muon against the singular value decomposition, and as one optimizer with AdamW."""

import copy

import pytest
import torch
from torch import Tensor

from tests.conftest import small
from tinygpt import hardware
from tinygpt.model import GPT2
from tinygpt.optim.adamw import adamw
from tinygpt.optim.muon import LOWEST, muon, orthogonalise, polynomials


def matrices(m: int, n: int, values: Tensor) -> Tensor:
    """Two of them, with these singular values."""
    torch.manual_seed(0)
    u, v = (torch.linalg.qr(torch.randn(2, k, len(values), dtype=torch.float64)).Q for k in (m, n))
    return u @ torch.diag(values.double()) @ v.mT


@pytest.mark.parametrize("iterations", LOWEST)
def test_the_polynomials_lead_every_singular_value_down_to_the_lowest_to_one(iterations: int):
    x = torch.logspace(torch.tensor(LOWEST[iterations]).log10().item(), 0, 1000, dtype=torch.float64)
    for a, b, c in polynomials(iterations):
        x = a * x + b * x**3 + c * x**5
    errors = {2: 0.07, 3: 0.009, 4: 0.001, 5: 0.001, 6: 0.002}
    assert (x - 1).abs().max() < errors[iterations]


@pytest.mark.parametrize(("m", "n"), [(8, 8), (8, 20), (20, 8)])
def test_orthogonalised_matrices_are_the_polar_factors(m: int, n: int):
    x = matrices(m, n, torch.linspace(0.2, 1.0, 8))
    u, _, vh = torch.linalg.svd(x, full_matrices=False)
    for scale in (1e-6, 1.0, 1e6):
        torch.testing.assert_close(orthogonalise(scale * x, 5), u @ vh, atol=1e-3, rtol=0)
    for scale in (1e-13, 1.0, 1e13):
        torch.testing.assert_close(orthogonalise(scale * x.float(), 5), (u @ vh).float(), atol=2e-3, rtol=0)


def test_small_singular_values_grow_and_none_exceeds_one_by_much():
    x = matrices(8, 8, torch.logspace(-4, 0, 8))
    found = torch.linalg.svdvals(orthogonalise(x, 3))
    assert found.max() < 1.05
    assert found.min() > 1e-3


@pytest.mark.parametrize("iterations", LOWEST)
def test_bfloat16_stays_near_one_too(iterations: int):
    torch.manual_seed(0)
    x = torch.randn(20, 16, 64).bfloat16()
    assert torch.linalg.svdvals(orthogonalise(x, iterations).float()).max() < 1.08


def test_a_matrix_of_zeros_stays_one():
    assert torch.equal(orthogonalise(torch.zeros(1, 3, 4), 3), torch.zeros(1, 3, 4))


def step(model: GPT2, optimizer: torch.optim.Optimizer, seed: int) -> None:
    torch.manual_seed(seed)
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    optimizer.step()


@pytest.mark.parametrize(("has_bf16", "close"), [(False, 0.002), (True, 0.006)])
def test_hidden_matrices_move_by_the_polar_factor_of_their_momentum(
    gpt: GPT2, monkeypatch: pytest.MonkeyPatch, has_bf16: bool, close: float
):
    monkeypatch.setattr(hardware, "has_bf16", lambda device: has_bf16)
    before = copy.deepcopy(gpt)
    optimizer = muon(gpt, lr=0.1, momentum=0.9, iterations=6, weight_decay=0.5)
    step(gpt, optimizer, 1)
    first = {name: p.grad.clone() for name, p in gpt.named_parameters() if p.grad is not None}
    halfway = copy.deepcopy(gpt)
    step(gpt, optimizer, 2)
    for name, weight in halfway.named_parameters():
        if name.startswith("blocks.") and weight.dim() == 2:
            for model, after, momentum in (
                (before, halfway, 0.1 * first[name]),
                (halfway, gpt, 0.9 * 0.1 * first[name] + 0.1 * gpt.get_parameter(name).grad),
            ):
                grad = first[name] if model is before else gpt.get_parameter(name).grad
                u, s, vh = torch.linalg.svd((0.1 * grad + 0.9 * momentum).double(), full_matrices=False)
                m, n = weight.shape
                wanted = model.get_parameter(name) * (1 - 0.1 * 0.5) - 0.1 * max(1, m / n) ** 0.5 * (u @ vh).float()
                # The smallest singular values are not led all the way to one: compared is what the others span.
                large = s >= 0.02 * s.max()
                assert large.sum() >= len(s) - 2
                error = u[:, large].mT @ (after.get_parameter(name) - wanted).double() @ vh[large].mT
                assert error.abs().max() < close


def test_everything_else_moves_as_adamw_moves_it(gpt: GPT2):
    other = copy.deepcopy(gpt)
    optimizer, reference = muon(gpt, adamw_lr=0.01, weight_decay=0.3), adamw(other, lr=0.01, weight_decay=0.3)
    for seed in range(3):
        step(gpt, optimizer, seed)
        step(other, reference, seed)
    for name, weight in gpt.named_parameters():
        if not (name.startswith("blocks.") and weight.dim() == 2):
            assert torch.equal(weight, other.get_parameter(name)), name


def test_every_parameter_is_in_one_group_and_each_has_its_own_learning_rate(gpt: GPT2):
    groups = muon(gpt, lr=0.1, adamw_lr=0.2).param_groups
    assert [group["lr"] for group in groups] == [0.1, 0.2, 0.2, 0.05]
    listed = [id(p) for group in groups for p in group["params"]]
    assert sorted(listed) == sorted(map(id, gpt.parameters()))


def test_rows_of_a_table_move_by_what_they_were_looked_up_for():
    model = small("modern", ngram_rows=[64, 64], ngram_dim=4)
    optimizer = muon(model, table_lr=0.1, eps=1e-8)
    assert len(optimizer.param_groups[3]["params"]) == 2
    table = model.lookups[0].tables[0].weight
    sums = torch.zeros(64, 1)
    for ids in ([[1, 2, 3, 1, 2]], [[2, 3, 4, 5, 1]]):
        before = table.detach().clone()
        model(torch.tensor(ids)).square().sum().backward()
        grad = table.grad.to_dense()
        optimizer.step()
        optimizer.zero_grad()
        sums += grad.square().mean(dim=1, keepdim=True)
        seen = grad.any(dim=1)
        assert 0 < seen.sum() <= 5
        wanted = before - 0.1 * grad / (sums.sqrt() + 1e-8)
        torch.testing.assert_close(table[seen], wanted[seen])
        assert torch.equal(table[~seen], before[~seen])


def test_adamw_refuses_tables_and_names_who_takes_them():
    with pytest.raises(ValueError, match="model.ngram_rows needs optimizer=muon"):
        adamw(small("modern", ngram_rows=[64]))


def test_a_state_that_is_loaded_goes_on_to_the_last_bit(gpt: GPT2):
    optimizer = muon(gpt)
    step(gpt, optimizer, 1)
    other = copy.deepcopy(gpt)
    loaded = muon(other)
    loaded.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    step(gpt, optimizer, 2)
    step(other, loaded, 2)
    assert all(torch.equal(a, b) for a, b in zip(gpt.parameters(), other.parameters(), strict=True))


def test_parameters_without_a_gradient_stay(gpt: GPT2):
    before = copy.deepcopy(gpt)
    muon(gpt, weight_decay=0.5).step()
    assert all(torch.equal(a, b) for a, b in zip(gpt.parameters(), before.parameters(), strict=True))


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"lr": 0.0}, "lr must be above 0 and finite, got 0.0"),
        ({"adamw_lr": float("nan")}, "adamw_lr must be above 0 and finite, got nan"),
        ({"table_lr": -1.0}, "table_lr must be above 0 and finite, got -1.0"),
        ({"eps": 0.0}, "eps must be above 0 and finite, got 0.0"),
        ({"weight_decay": -1.0}, "weight_decay must be at least 0 and finite, got -1.0"),
        ({"momentum": 1.0}, "momentum must be at least 0 and below 1, got 1.0"),
        ({"iterations": 7}, "iterations must be 2 to 6, got 7"),
        ({"betas": [0.9]}, "betas must be two numbers of at least 0 and below 1"),
    ],
)
def test_impossible_values_are_refused(gpt: GPT2, keywords: dict, words: str):
    with pytest.raises(ValueError, match=words):
        muon(gpt, **keywords)
