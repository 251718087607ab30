"""Every file under conf/ is found, composed into the whole configuration, checked and built."""

import inspect
from pathlib import Path

import hydra
import pytest
import torch
from omegaconf import OmegaConf

import train
from tinygpt.config import build, check, parts, target
from tinygpt.tokenizers import ByteTokenizer

FILES = sorted(path.relative_to(train.CONF) for path in train.CONF.rglob("*/*.yaml"))
REQUIRED = {"data.files": "a.txt", "data.path": "OWNER/NAME", "tokenizer.path": "tokenizer.json"}  # without a default


def compose(*overrides: str) -> dict:
    with hydra.initialize_config_dir(str(train.CONF), version_base=None):
        cfg = hydra.compose("train", ["run_dir=run", *overrides])
        for key in OmegaConf.missing_keys(cfg):
            OmegaConf.update(cfg, key, REQUIRED[key])
        plain = OmegaConf.to_container(cfg, resolve=True)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


@pytest.mark.parametrize("file", FILES, ids=str)
def test_every_file_composes_and_builds(file: Path):
    Path(REQUIRED["tokenizer.path"]).write_text(ByteTokenizer().to_json())
    cfg = compose(f"{file.parent.as_posix()}={file.stem}")
    cfg["trainer"] |= {"precision": "32-true", "max_steps": 1}  # they are resolved before anything is built
    if cfg["data"]["batch_size"] == "auto":
        cfg["data"]["batch_size"] = 16
    for group, node in parts(cfg).items():
        check(group, target(node), node)
    with torch.device("meta"):  # large ones too
        model = build(cfg, "model", vocab_size=257, attention=build(cfg, "attention"))
        build(cfg, "optimizer", model=model)
    assert build(cfg, "schedule")(0, 0.0) > 0
    tokenizer = build(cfg, "tokenizer", documents=["some text"])
    assert tokenizer.decode(tokenizer.encode("some text").tolist()) == "some text"
    assert build(cfg, "data").batch_size >= 1
    for group in ("callbacks", "logger"):
        for name in cfg.get(group) or ():
            own = {"callbacks.early_stopping": {}, "callbacks.weight_averaging": {}}
            own["callbacks.checkpoint"] = {"directory": "checkpoints"}
            build(cfg, f"{group}.{name}", **own.get(f"{group}.{name}", {"run_dir": "run"}))
    build(cfg, "trainer", logger=False)


@pytest.mark.parametrize("file", FILES, ids=str)
def test_every_file_says_all_keys_of_what_it_names(file: Path):
    """A key that a file leaves out cannot be set without a plus; of Lightning's own classes the usual ones do."""
    for group, node in parts(compose(f"{file.parent.as_posix()}={file.stem}")).items():
        if node["_target_"].startswith("tinygpt."):
            parameters = inspect.signature(target(node)).parameters
            at_run_time = {"vocab_size", "attention", "model", "documents", "directory", "run_dir"}
            assert set(parameters) - set(node) <= at_run_time, group


CHOSEN = {
    "python_stdlib": {"max_val_tokens"},
    "char": {"unknown"},
    "pretrained": {"unknown"},
    "wikitext": {"running_text"},
    "fineweb_edu": {"val_fraction"},
    "openwebtext": {"val_fraction"},
}


@pytest.mark.parametrize("file", [f for f in FILES if f.parent.name not in ("experiment", "debug")], ids=str)
def test_defaults_in_a_file_are_those_of_the_constructor(file: Path):
    """A number stands in two places only if a test keeps them one; CHOSEN is where a file means to differ."""
    cfg = compose(f"{file.parent.as_posix()}={file.stem}")
    node = parts(cfg).get(file.parent.name)
    if node is None or not node["_target_"].startswith("tinygpt."):
        return
    for key, parameter in inspect.signature(target(node)).parameters.items():
        if parameter.default not in (parameter.empty, None) and key in node and key not in CHOSEN.get(file.stem, ()):
            default = parameter.default
            assert node[key] == (list(default) if isinstance(default, tuple) else default), key


def test_experiments_say_their_command_line():
    for file in train.CONF.glob("experiment/*.yaml"):
        assert f"#   python train.py experiment={file.stem}" in file.read_text()


def test_the_model_in_a_configuration_needs_no_memory_to_be_checked():
    with torch.device("meta"):
        model = build(compose(), "model", vocab_size=10**6)
    assert model.token_embedding.weight.is_meta
