import os
import pickle
from pathlib import Path

import pytest
import torch

import tinygpt
from tests.conftest import save
from tinygpt import checkpoint
from tinygpt.attention import SDPA
from tinygpt.errors import UserError
from tinygpt.model import GPT2
from tinygpt.tokenizers import BPETokenizer, PretrainedTokenizer, fingerprint


def test_a_checkpoint_gives_the_same_model_and_tokenizer(gpt: GPT2, tmp_path: Path):
    contents = checkpoint.read(save(tmp_path / "a.ckpt", gpt))
    ids = torch.randint(11, (2, 8))
    assert torch.equal(contents.model(ids), gpt(ids))
    assert contents.model.config == gpt.config
    assert contents.model.config["attention"] == SDPA()
    assert not contents.model.training
    assert contents.tokenizer.decode([0, 1, 2]) == "abc"


def test_a_trained_tokenizer_comes_back_without_its_file(gpt: GPT2, tmp_path: Path):
    trained = BPETokenizer.train(["aaabdaaabac"], vocab_size=260)
    file = tmp_path / "tokenizer.json"
    file.write_text(trained.to_json())
    pretrained = PretrainedTokenizer.train([], str(file))
    file.unlink()
    for tokenizer in (trained, pretrained):
        path = save(tmp_path / "a.ckpt", gpt, tokenizer=checkpoint.describe(tokenizer))
        again = checkpoint.read(path).tokenizer
        assert type(again) is type(tokenizer)
        assert fingerprint(again) == fingerprint(tokenizer)
        assert again.encode("aaabac").tolist() == [258, 0x40, 0x42]  # aaab, then the symbols of a and c


def test_one_file_is_all_that_sampling_needs(gpt: GPT2, tmp_path: Path):
    loaded = tinygpt.load(save(tmp_path / "alone.ckpt", gpt))
    text = loaded.generate("abc", max_new_tokens=5, seed=1)
    assert text == loaded.samples("abc", max_new_tokens=5, seed=1, num_samples=3)[0]
    assert loaded.generate("abc", max_new_tokens=5, seed=1, use_cache=False) == text


def test_a_prompt_character_outside_the_vocabulary_is_named(gpt: GPT2, tmp_path: Path):
    path = save(tmp_path / "a.ckpt", gpt)
    with pytest.raises(ValueError, match="unknown must be error, skip or replace, got 'drop'"):
        tinygpt.load(path, unknown="drop")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="'é' is not in the vocabulary of 9 characters"):
        tinygpt.load(path).generate("é")
    same = {"max_new_tokens": 5, "seed": 2}
    assert tinygpt.load(path, unknown="skip").generate("aéb", **same) == tinygpt.load(path).generate("ab", **same)


class Malicious:
    def __reduce__(self):
        return os.system, ("touch ran",)


@pytest.mark.parametrize("kind", ["text", "empty", "a tensor", "a zip without entries", "truncated", "malicious"])
def test_what_is_not_a_checkpoint_is_named_and_runs_nothing(gpt: GPT2, tmp_path: Path, kind: str):
    path = tmp_path / "bad.ckpt"
    if kind == "text":
        path.write_text("hello")
    elif kind == "empty":
        path.touch()
    elif kind == "a tensor":
        torch.save(torch.zeros(3), path)
    elif kind == "a zip without entries":
        torch.save({"weights": torch.zeros(3)}, path)
    elif kind == "truncated":
        save(path, gpt)
        path.write_bytes(path.read_bytes()[:-2000])
    else:
        path.write_bytes(pickle.dumps(Malicious()))
    with pytest.raises(UserError, match=r"bad\.ckpt is not a tinygpt checkpoint"):
        checkpoint.read(path)
    assert not Path("ran").exists()


@pytest.mark.parametrize(
    "name",
    ["os.system", "tinygpt.checkpoint.torch", "tinygpt.model.gpt2.Block", "tinygpt.nowhere.X", "GPT2", "builtins.dict"],
)
def test_a_name_that_is_no_class_of_tinygpt_is_not_loaded(gpt: GPT2, tmp_path: Path, name: str):
    path = save(tmp_path / "a.ckpt", gpt, model={"class": name, "keywords": {}})
    with pytest.raises(UserError, match=r"is no class of this tinygpt; it is not loaded"):
        checkpoint.read(path)


def test_another_format_says_which_is_read(gpt: GPT2, tmp_path: Path):
    with pytest.raises(UserError, match="has checkpoint format 99; this tinygpt reads format 3"):
        checkpoint.read(save(tmp_path / "a.ckpt", gpt, format=99))


def test_a_run_means_its_best_checkpoint_and_else_its_last(gpt: GPT2, tmp_path: Path):
    run = tmp_path / "run"
    last = save(run / "checkpoints" / "last.ckpt", gpt)
    assert checkpoint.find(run) == last
    best = save(run / "checkpoints" / "best.ckpt", gpt)
    assert checkpoint.find(run) == best
    assert checkpoint.find(last) == last


def test_nothing_named_means_the_newest_run(gpt: GPT2, tmp_path: Path):
    with pytest.raises(UserError, match="no run with a checkpoint below runs/"):
        checkpoint.find(None)
    for age, run in ((200, "runs/old"), (0, "runs/sweep/3"), (100, "runs/middle")):
        path = save(tmp_path / run / "checkpoints" / "last.ckpt", gpt)
        os.utime(path, (path.stat().st_mtime - age,) * 2)
    assert checkpoint.find(None) == Path("runs/sweep/3/checkpoints/last.ckpt")


def test_a_checkpoint_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(UserError, match=r"there is no checkpoint .*nothing\.ckpt"):
        checkpoint.read(tmp_path / "nothing.ckpt")
    with pytest.raises(UserError, match="has no checkpoints/best.ckpt"):
        checkpoint.find(tmp_path)
