"""What Lightning trains: a model, its loss, its optimizer and schedule."""

from math import log
from typing import Any, cast

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from tinygpt import checkpoint
from tinygpt.data.batches import Batch
from tinygpt.model.gpt import GPT
from tinygpt.model.loss import NOT_COUNTED, next_token_loss
from tinygpt.optim import Schedule
from tinygpt.tokenizers import Tokenizer


class LanguageModel(pl.LightningModule):
    """Next-token prediction.

    Args:
        model: what is trained.
        tokenizer: travels in the checkpoint; training does not use it.
        optimizer: of the model's parameters.
        schedule: the learning rate's factor by step.
        bytes_per_id: (V,) bytes of the validation text that each id stands for, for bits per byte.
        compile: run the model through torch.compile.
    """

    def __init__(
        self,
        model: GPT,
        tokenizer: Tokenizer,
        *,
        optimizer: Optimizer,
        schedule: Schedule,
        bytes_per_id: Tensor,
        compile: bool = False,
    ) -> None:
        super().__init__()
        self.model = model
        self.tokenizer = tokenizer
        self.optimizer = optimizer
        self.schedule = schedule
        self.register_buffer("bytes_per_id", bytes_per_id.float(), persistent=False)
        self.grad_norm: Tensor | None = None  # of the last step, before clipping; None while clipping is off
        self._validated: list[Tensor] = []
        if compile:
            self.model.compile()  # in place: the weights keep their names

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        return next_token_loss(self._logits(batch), batch.targets) * batch.weight

    def _logits(self, batch: Batch) -> Tensor:
        return self.model(batch.ids, padding=batch.padding, documents=batch.documents)

    def on_train_batch_end(self, outputs: Any, batch: Batch, batch_idx: int) -> None:
        if self.trainer.global_step >= self.trainer.max_steps:
            self.trainer.should_stop = True  # told to stop, Lightning validates first: the last step always counts

    def on_validation_epoch_start(self) -> None:
        self._validated = []

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        nats = next_token_loss(self._logits(batch), batch.targets, reduction="sum")
        n_bytes = cast(Tensor, self.bytes_per_id)[batch.targets[batch.targets != NOT_COUNTED]].sum()
        self._validated.append(torch.stack([nats, torch.full_like(nats, batch.n_targets), n_bytes]))

    def on_validation_epoch_end(self) -> None:
        nats, n_targets, n_bytes = torch.stack(self._validated).cpu().double().sum(dim=0).tolist()
        # For the callbacks; `Metrics` is what tells the loggers, by optimizer step.
        self.log("val_loss", nats / n_targets, logger=False)
        self.log("val_bits_per_byte", nats / log(2) / n_bytes, logger=False)

    def configure_optimizers(self) -> dict[str, Any]:
        scheduler = LambdaLR(self.optimizer, lambda step: self.schedule(step, self.trainer.max_steps))
        return {"optimizer": self.optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def configure_gradient_clipping(
        self, optimizer: Optimizer, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        """Clip by the norm of all gradients together.

        Lightning's own clipping refuses a fused optimizer, which undoes fp16's loss scaling inside its step: here the
        gradients are unscaled before they are measured, and the step then knows.
        """
        if gradient_clip_algorithm not in (None, "norm"):
            raise ValueError(f"gradients are clipped by their norm, not by {gradient_clip_algorithm}")
        if not gradient_clip_val:
            return
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        if scaler is not None and getattr(optimizer, "_step_supports_amp_scaling", False):
            scaler.unscale_(optimizer)
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.grad_norm = nn.utils.clip_grad_norm_(parameters, gradient_clip_val)

    def on_save_checkpoint(self, checkpoint_: dict[str, Any]) -> None:
        checkpoint_["tinygpt"] = checkpoint.entry(self.model, self.tokenizer)
