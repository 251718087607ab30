"""The model: the stack, its parts, and one file for each family."""

from tinygpt.model.gpt import GPT
from tinygpt.model.gpt2 import GPT2
from tinygpt.model.loss import next_token_loss
from tinygpt.model.modern import Modern

__all__ = ["GPT", "GPT2", "Modern", "next_token_loss"]
