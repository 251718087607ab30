"""What tests share: a tiny model, a tiny corpus, a folder of their own."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest
import torch
from datasets import Dataset
from omegaconf import DictConfig, OmegaConf

import generate
import train
from tinygpt import checkpoint
from tinygpt.attention import Manual
from tinygpt.attention.chunked import Chunked
from tinygpt.attention.sliding_window import SlidingWindow
from tinygpt.config import target
from tinygpt.data.encoding import encode
from tinygpt.data.token_file import TokenFile
from tinygpt.model import GPT, GPT2
from tinygpt.tokenizers import ByteTokenizer, CharTokenizer

# Tiny sizes are as fast with one thread, also in the processes that tests start; pytest -n runs more tests at once.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The same examples every time, however slow the machine is.
hypothesis.settings.register_profile("tinygpt", derandomize=True, deadline=None)
hypothesis.settings.load_profile("tinygpt")


# A run of a second.
TINY = [
    "data=text_files",
    "data.files=book.txt",
    "data.batch_size=4",
    "model.block_size=16",
    "model.n_layer=1",
    "model.n_head=2",
    "model.n_embd=16",
    "trainer.max_steps=6",
    "eval_every=4",
    "log_every=2",
    "run_dir=run",
]

CONF = Path(__file__).parents[1] / "conf"


def save(path: Path, gpt: GPT, **changes) -> Path:
    """A checkpoint as training writes it, without Lightning's own entries."""
    weights = {f"model.{name}": tensor for name, tensor in gpt.state_dict().items()}
    contents = {"state_dict": weights, "tinygpt": checkpoint.entry(gpt, CharTokenizer("abcdefghi"))}
    contents["tinygpt"] |= changes
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(contents, path)
    return path


def choices(group: str) -> list[str]:
    """The names of a configuration group's files."""
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "gpu" in item.keywords and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="there is no GPU here"))


@pytest.fixture(autouse=True)
def _reproducible() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run where nothing of the project lies, with a data cache that no other test has filled."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "hf")


def small(family: str, **sizes) -> GPT:
    """A model of a configured family, in evaluation mode, whose weights are large enough for predictions to differ."""
    node = OmegaConf.load(CONF / "model" / f"{family}.yaml")
    assert isinstance(node, DictConfig)
    defaults = {"vocab_size": 11, "block_size": 8, "n_layer": 2, "n_head": 2, "n_embd": 16}
    model = target({"_target_": node["_target_"]})(**defaults | sizes)
    for parameter in model.parameters():  # norms and biases too
        torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


# What must hold for every family, by its configuration, for heads that share keys or are of a size of their own, and
# for layers that see a part, in each kernel that trains on a CPU.
FAMILIES = {name: (name, {}) for name in choices("model")}
FAMILIES["modern, grouped"] = ("modern", {"n_kv_head": 1, "head_dim": 6})
PARTS = {"window": [3, None], "n_global": 1}
LOOKUPS = {"ngram_rows": [16, 32], "ngram_dim": 4, "match": 3}
FAMILIES["modern, lookups"] = ("modern", LOOKUPS)
FAMILIES["modern, manual, windows"] = ("modern", PARTS | {"attention": Manual()})
FAMILIES["gpt2, chunked, random"] = (
    "gpt2",
    PARTS | {"n_random": 1, "random_block": 2, "attention": Chunked(strip=3)},
)
FAMILIES["modern, sliding window"] = ("modern", PARTS | {"n_kv_head": 1, "attention": SlidingWindow(block=3)})


@pytest.fixture
def gpt() -> GPT:
    """A small model, where the family does not matter."""
    return small("gpt2")


@pytest.fixture(params=FAMILIES)
def each_gpt(request: pytest.FixtureRequest) -> GPT:
    """A small model of each family."""
    name, sizes = FAMILIES[request.param]
    return small(name, **sizes)


@pytest.fixture
def token_file(tmp_path: Path) -> Callable[..., TokenFile]:
    """Makes the token file of documents, in bytes."""

    def make(*texts: str) -> TokenFile:
        return encode(Dataset.from_dict({"text": list(texts)}), ByteTokenizer(), tmp_path / "tokens")

    return make


@pytest.fixture
def book() -> Path:
    """A text in the test's folder."""
    path = Path("book.txt")
    path.write_text("To be, or not to be, that is the question.\n" * 100)
    return path


@pytest.fixture
def command(book: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    """Runs train.py with these words; returns (exit status, stdout, stderr)."""

    def type_(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["train.py", *words])
        status = train.main()
        return status, *capsys.readouterr()

    return type_


@pytest.fixture
def run_dir(gpt: GPT2, tmp_path: Path) -> Path:
    save(tmp_path / "runs" / "one" / "checkpoints" / "best.ckpt", gpt)
    return tmp_path / "runs" / "one"


@pytest.fixture
def generate_py(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    """Runs generate.py with these words; returns (stdout, stderr)."""

    def run(*words: str) -> tuple[str, str]:
        monkeypatch.setattr(sys, "argv", ["generate.py", *words])
        generate.main()
        captured = capsys.readouterr()
        return captured.out, captured.err

    return run
