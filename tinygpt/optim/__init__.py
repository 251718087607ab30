"""Optimizers and learning-rate schedules, one file each."""

from torch import Tensor, nn


def sparse_tables(model: nn.Module) -> list[Tensor]:
    """The tables of a model of which a step changes the rows that were looked up alone: their gradients are sparse."""
    return [module.weight for module in model.modules() if isinstance(module, nn.Embedding) and module.sparse]
