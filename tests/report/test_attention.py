import base64
import json
import sys
from math import log2
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.image import imread

from tests.conftest import save, small
from tinygpt.attention import SelfAttention
from tinygpt.errors import UserError
from tinygpt.model import GPT
from tinygpt.report import attention
from tinygpt.report.attention import Heads, look, visible


def test_weights_are_distributions_over_what_each_layer_sees(each_gpt: GPT):
    kernels = [m.kernel for m in each_gpt.modules() if isinstance(m, SelfAttention)]
    ids = torch.randint(11, (8,))
    before = each_gpt(ids[None])
    heads = look(each_gpt, ids)
    assert heads.weights.shape == (2, 2, 8, 8)
    torch.testing.assert_close(heads.weights.sum(-1), torch.ones(2, 2, 8))
    assert (heads.weights[~heads.allowed[:, None].expand_as(heads.weights)] == 0).all()
    assert not heads.allowed.triu(1).any()
    assert [m.kernel for m in each_gpt.modules() if isinstance(m, SelfAttention)] == kernels
    assert torch.equal(each_gpt(ids[None]), before)


def test_a_head_that_prefers_nothing_looks_at_all_tokens_alike():
    model = small("gpt2")
    with torch.no_grad():
        for m in model.modules():
            if isinstance(m, SelfAttention):
                m.qkv.weight[:32] = 0.0  # q and k
                m.qkv.bias[:32] = 0.0
    heads = look(model, torch.randint(11, (8,)))
    torch.testing.assert_close(heads.weights[1, 1, 3], torch.tensor([0.25] * 4 + [0.0] * 4))
    torch.testing.assert_close(heads.entropy, torch.full((2, 2), sum(log2(t + 1) for t in range(8)) / 8))
    torch.testing.assert_close(heads.distance, torch.full((2, 2), sum(t / 2 for t in range(8)) / 8))


def test_a_head_that_looks_at_one_token_has_no_entropy():
    one_back = torch.diag(torch.ones(3), -1)
    one_back[0, 0] = 1
    heads = Heads(one_back[None, None], torch.ones(1, 4, 4).tril().bool())
    assert heads.entropy.item() == 0
    assert heads.distance.item() == pytest.approx(3 / 4)


def test_tokens_can_be_seen():
    assert [visible(text) for text in (" a", "\n", "\t", "", "\x00", "李")] == ["␣a", "⏎", "⇥", "∅", "\\x00", "李"]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Runs the module on a checkpoint with these words."""
    path = save(tmp_path / "one.ckpt", small("modern", window=[3, None]))

    def run(*words: str) -> None:
        monkeypatch.setattr(sys, "argv", ["attention", "--checkpoint", str(path), *words])
        attention.main()

    return run


def test_a_picture_and_a_page_are_written(command, capsys: pytest.CaptureFixture):
    command("--text", "abcabc", "--out", "out/seen")
    assert capsys.readouterr().out == "out/seen.html\nout/seen.png\n"
    pixels = imread("out/seen.png")
    assert pixels.shape[0] > 300
    assert len(np.unique(pixels[..., :3].reshape(-1, 3), axis=0)) > 10

    html = Path("out/seen.html").read_text()
    (line,) = (line for line in html.splitlines() if line.startswith("const data = "))
    data = json.loads(line.removeprefix("const data = ").removesuffix(";"))
    assert data["tokens"] == list("abcabc")
    assert data["shape"] == [2, 2, 6, 6]
    weights = np.frombuffer(base64.b64decode(data["weights"]), dtype=np.uint8).reshape(2, 2, 6, 6)
    assert weights[0, 0, 0].tolist() == [255, 0, 0, 0, 0, 0]
    assert abs(weights.astype(int).sum(-1) - 255).max() <= 3  # rounded
    allowed = np.frombuffer(base64.b64decode(data["allowed"]), dtype=np.uint8).reshape(2, 6, 6)
    assert allowed[:, 5].tolist() == [[0, 0, 0, 1, 1, 1], [1] * 6]
    assert "http" not in html  # self-contained


def test_a_token_cannot_end_the_pages_script():
    heads = look(small("gpt2"), torch.arange(2))
    assert attention.section(heads, ["</script>", "$data"]).count("</script>") == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "--text must be 1 to block_size=8 tokens, got 0"),
        ("abcabcabc", "--text must be 1 to block_size=8 tokens, got 9"),
    ],
)
def test_a_text_that_does_not_fit_is_refused(command, text: str, words: str):
    with pytest.raises(UserError, match=words):
        command("--text", text)


def test_a_character_that_the_model_does_not_know_is_shown_as_what_it_becomes(command):
    command("--text", "ab李")
    assert '"tokens": ["a", "b", "\\ufffd"]' in Path("attention.html").read_text()


@pytest.mark.parametrize(("n_layer", "n_head"), [(1, 64), (12, 12)], ids=["too wide", "too many pixels"])
def test_a_picture_that_no_file_or_memory_holds_is_refused(n_layer: int, n_head: int, tmp_path: Path):
    heads = Heads(torch.zeros(n_layer, n_head, 200, 200), torch.ones(n_layer, 200, 200).bool())
    with pytest.raises(UserError, match=f"200 tokens, {n_layer} layers and {n_head} heads make too large a picture"):
        attention.picture(heads, ["a"] * 200, tmp_path / "large.png")
