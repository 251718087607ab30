"""New training from the weights and the tokenizer of a checkpoint."""

from collections.abc import Collection
from pathlib import Path

from tinygpt import checkpoint
from tinygpt.config import Config
from tinygpt.errors import UsageError

FREE = ("dropout", "gradient_checkpointing", "attention")  # the configuration's, not the checkpoint's


def adopt(cfg: Config, given: Collection[str]) -> tuple[Config, checkpoint.Contents]:
    """Take the model of the checkpoint that `init_from` names.

    Args:
        cfg: the configuration.
        given: the keys that the user set: they must say what the checkpoint is.

    Returns:
        The configuration with the checkpoint's family and sizes; and what the checkpoint holds.

    Raises:
        UserError: there is no such checkpoint.
        UsageError: a key was set to another value.
    """
    source = checkpoint.read(checkpoint.find(Path(cfg["init_from"])))
    for group, thing in (("model", source.model), ("tokenizer", source.tokenizer)):
        name = checkpoint.describe(thing)["class"]
        wanted = cfg[group]["_target_"].removesuffix(".train")
        if group in given and wanted != name:
            raise UsageError(f"{group}= chooses {wanted.rpartition('.')[2]}, init_from has {name.rpartition('.')[2]}")
    described = checkpoint.describe(source.model)
    sizes = {key: value for key, value in described["keywords"].items() if key not in (*FREE, "vocab_size")}
    for key, value in sizes.items():
        if f"model.{key}" in given and cfg["model"].get(key) != value:
            raise UsageError(f"model.{key} must be {value}, as it is in init_from, got {cfg['model'].get(key)}")
    free = {key: value for key, value in cfg["model"].items() if key in FREE}
    return cfg | {"model": {"_target_": described["class"], **sizes, **free}}, source
