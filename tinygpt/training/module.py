"""What Lightning trains: a model, its loss, its optimizer and schedule."""

import sys
from math import inf, log
from typing import Any, Literal, cast

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from tqdm import tqdm

from tinygpt import checkpoint, hardware
from tinygpt.data.batches import Batch
from tinygpt.errors import UserError
from tinygpt.model.gpt import GPT
from tinygpt.model.loss import NOT_COUNTED, next_token_loss
from tinygpt.optim import sparse_tables
from tinygpt.optim.schedule import Schedule
from tinygpt.tokenizers import Tokenizer
from tinygpt.training.budget import Budget


class LanguageModel(pl.LightningModule):
    """Next-token prediction.

    Args:
        model: what is trained.
        tokenizer: travels in the checkpoint; training does not use it.
        optimizer: of the model's parameters.
        schedule: the factor on the learning rates.
        budget: how much is trained, which the schedule follows.
        bytes_per_id: (V,) bytes of the validation text that each id stands for, for bits per byte.
        compile: run each block through torch.compile.
        on_bad_loss: what becomes of a step whose loss or gradient is NaN or infinite. Its update is never made;
            "stop" ends the run with a UserError, "skip" goes on with the next step.

    Attributes:
        grad_norm: of the last step, before clipping, without the tables whose gradients are sparse.
        skipped: whether the last step was.
    """

    def __init__(
        self,
        model: GPT,
        tokenizer: Tokenizer,
        *,
        optimizer: Optimizer,
        schedule: Schedule,
        budget: Budget,
        bytes_per_id: Tensor,
        compile: bool = False,
        on_bad_loss: Literal["stop", "skip"] = "stop",
    ) -> None:
        super().__init__()
        self.model = model
        self.tokenizer = tokenizer
        self.optimizer = optimizer
        self.schedule = schedule
        self.budget = budget
        self.register_buffer("bytes_per_id", bytes_per_id.float(), persistent=False)
        self.on_bad_loss = on_bad_loss
        self.compiled = compile
        self.grad_norm: Tensor | float = 0.0
        self.skipped = False
        self._step: list[tuple[Batch, Tensor]] = []  # the batches of the step at hand, and their losses
        self._validated: list[Tensor] = []
        self._validated_step = 0
        self._resume: dict[str, Any] | None = None  # what a checkpoint holds for this run to go on
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"]
        if compile:
            # In place, so that the weights keep their names. The whole model as one graph takes as long to compile and
            # is slower on a CPU, and sparse gradients of tables must not be in a graph where anything is done in place.
            for block in self.model.blocks:
                block.compile()

    def on_train_start(self) -> None:
        if self._resume is not None:
            self._go_on(self._resume)
        if self.budget.progress(self.trainer.global_step) >= 1:
            self.trainer.should_stop = True
        elif self.compiled:
            self._compile()

    def _compile(self) -> None:
        """On a batch as training has them, before the clock runs."""
        data = cast(Any, self.trainer).datamodule
        batch = self.trainer.strategy.batch_to_device(data.train_batches()[0])
        with hardware.same_random_states(self.device.type), self.trainer.precision_plugin.forward_context():
            next_token_loss(self._logits(batch), batch.targets).backward()
        self.model.zero_grad(set_to_none=True)

    def _go_on(self, resume: dict[str, Any]) -> None:
        """From where a checkpoint says that the run stood."""
        # Lightning's loops begin anew, and only their counters go on: its own way of restarting in the middle of an
        # epoch skips validations that were interrupted. A run that had reached its end ends here.
        step, loop = resume["step"], self.trainer.fit_loop.epoch_loop
        loop.automatic_optimization.optim_progress.optimizer.step.total.increment_by(step)
        loop.batch_progress.total.increment_by(step * self.trainer.accumulate_grad_batches)
        self._validated_step = resume["validated_step"]
        for kind, (_, restore) in hardware.random_states(self.device.type).items():
            if kind in resume["rng"]:  # a run that has changed its device has none for the new one
                restore(resume["rng"][kind])
        interval = cast(int, self.trainer.val_check_interval) // self.trainer.accumulate_grad_batches
        if self._validated_step < step and (step % interval == 0 or self.budget.progress(step) >= 1):
            self.trainer.validating = True
            loop.val_loop.run()
            self.trainer.training = True

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        step = self.trainer.global_step
        factor = self.schedule(step, self.budget.progress(step))
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"] * factor

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss = next_token_loss(self._logits(batch), batch.targets) * batch.weight
        self._step.append((batch, loss.detach()))
        return loss

    def _logits(self, batch: Batch) -> Tensor:
        return self.model(batch.ids, padding=batch.padding, documents=batch.documents)

    def on_train_batch_end(self, outputs: Any, batch: Batch, batch_idx: int) -> None:
        whole = (batch_idx + 1) % self.trainer.accumulate_grad_batches == 0  # else the batches of a step would be lost
        if whole and self.budget.progress(self.trainer.global_step) >= 1:
            self.trainer.should_stop = True  # told to stop, Lightning validates first: the last step always counts

    def on_validation_epoch_start(self) -> None:
        self._validated = []

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        nats = next_token_loss(self._logits(batch), batch.targets, reduction="sum")
        n_bytes = cast(Tensor, self.bytes_per_id)[batch.targets[batch.targets != NOT_COUNTED]].sum()
        self._validated.append(torch.stack([nats, torch.full_like(nats, batch.n_targets), n_bytes]))

    def on_validation_epoch_end(self) -> None:
        self._validated_step = self.trainer.global_step
        nats, n_targets, n_bytes = torch.stack(self._validated).cpu().double().sum(dim=0).tolist()
        # For the callbacks; `Metrics` is what tells the loggers, by optimizer step.
        self.log("val_loss", nats / n_targets, logger=False)
        self.log("val_bits_per_byte", nats / log(2) / n_bytes, logger=False)

    def configure_optimizers(self) -> Optimizer:
        return self.optimizer

    def configure_gradient_clipping(
        self, optimizer: Optimizer, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        """Measure the norm of all dense gradients together, clip them by it, and see that it is a number.

        The sparse gradients of tables are neither measured nor clipped.

        Lightning's own clipping refuses a fused optimizer, which undoes fp16's loss scaling inside its step: here the
        gradients are unscaled before they are measured, and the step then knows.
        """
        if gradient_clip_algorithm not in (None, "norm"):
            raise ValueError(f"gradients are clipped by their norm, not by {gradient_clip_algorithm}")
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        if scaler is not None and getattr(optimizer, "_step_supports_amp_scaling", False):
            scaler.unscale_(optimizer)
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        parameters = [p for p in parameters if p.grad is not None and not p.grad.is_sparse]
        self.grad_norm = nn.utils.clip_grad_norm_(parameters, gradient_clip_val or inf)

        losses = torch.stack([loss for _, loss in self._step])
        # Where fp16 scales the loss, gradients that overflow are usual: the scaler skips the step and scales by less.
        watched = losses if scaler is not None else torch.cat([losses, self.grad_norm[None]])
        self.skipped = not bool(watched.isfinite().all())
        if self.skipped:
            self._complain(losses, self.grad_norm)
            optimizer.zero_grad(set_to_none=True)  # without gradients a step does nothing at all
        self._step = []

    def weight_norm(self) -> float:
        """Of all weights together, like the gradient's without the tables whose gradients are sparse."""
        tables = {id(table) for table in sparse_tables(self.model)}
        weights = [p.detach() for p in self.model.parameters() if id(p) not in tables]
        return nn.utils.get_total_norm(weights).item()

    def _complain(self, losses: Tensor, grad_norm: Tensor) -> None:
        """Name a step whose loss or gradient is no number, and its windows; raise where the run is to stop."""
        bad = (~losses.isfinite()).tolist()
        what = f"loss is {losses.sum().item()}" if any(bad) else f"gradient's norm is {grad_norm.item()}"
        begins = [begin for (batch, _), is_bad in zip(self._step, bad, strict=True) for begin in batch.begin if is_bad]
        begins = begins or [begin for batch, _ in self._step for begin in batch.begin]
        named = ", ".join(f"{begin:,}" for begin in begins[:8]) + (", …" if len(begins) > 8 else "")
        message = (
            f"the {what} at step {self.trainer.global_step + 1}, whose windows begin at the training tokens {named};"
            " its update was not made"
        )
        if self.on_bad_loss == "stop":
            raise UserError(f"{message}. Try a lower optimizer.lr, or on_bad_loss=skip")
        tqdm.write(message, file=sys.stderr)

    def on_save_checkpoint(self, checkpoint_: dict[str, Any]) -> None:
        checkpoint_["tinygpt"] = checkpoint.entry(self.model, self.tokenizer)
        checkpoint_["resume"] = {
            "step": self.trainer.global_step,
            "validated_step": self._validated_step,
            "rng": {name: get() for name, (get, _) in hardware.random_states(self.device.type).items()},
        }

    def on_load_checkpoint(self, checkpoint_: dict[str, Any]) -> None:
        self._resume = checkpoint_["resume"]
        del checkpoint_["loops"]
        # An optimizer's settings are the configuration's, which may have been changed; its state is the checkpoint's.
        (saved,), groups = checkpoint_["optimizer_states"], self.optimizer.state_dict()["param_groups"]
        for old, new in zip(saved["param_groups"], groups, strict=True):
            old |= {name: value for name, value in new.items() if name not in ("params", "lr")}
