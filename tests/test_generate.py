"""`python generate.py` as a user types it."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import generate
import tinygpt
from tests.conftest import TINY, save
from tinygpt import flags
from tinygpt.generation.decoding import Decoder
from tinygpt.model import GPT2
from tinygpt.model.int8 import quantize

ROOT = Path(__file__).parents[1]
EACH = [
    "--temperature=0",
    "--temperature=5",
    "--top-k=1",
    "--top-p=0.01",
    "--min-p=0.9",
    "--seed=9",
    "--repetition-penalty=9",
    "--presence-penalty=9",
    "--frequency-penalty=9",
    "--no-repeat-ngram=2",
    "--logit-bias=0=9",
    "--stop=a",
    "--stop-id=0",
    "--overflow=stop",
    "--overflow=crop",
]


def test_the_newest_run_is_sampled_and_stdout_holds_the_new_text_alone(generate_py, run_dir: Path):
    out, err = generate_py("--prompt", "abc", "--max-new-tokens", "9")
    assert err == ""
    assert out == tinygpt.load(run_dir).generate("abc", max_new_tokens=9) + "\n"


def test_every_setting_reaches_the_sampler(generate_py, run_dir: Path):
    words = (
        "--checkpoint runs/one --prompt ab --max-new-tokens 17 --num-samples 3 --temperature 1.3 --top-k 9 --top-p 0.9"
        " --min-p 0.01 --repetition-penalty 1.2 --presence-penalty 0.1 --frequency-penalty 0.2 --no-repeat-ngram 3"
        " --logit-bias 2=0.5 --logit-bias 3=-inf --stop gh --stop fed --stop-id 7 --overflow crop --seed 5"
        " --no-cache --device cpu --unknown skip"
    )
    out, err = generate_py(*words.split())
    settings = {"max_new_tokens": 17, "num_samples": 3, "temperature": 1.3, "top_k": 9, "top_p": 0.9, "min_p": 0.01}
    settings |= {"repetition_penalty": 1.2, "presence_penalty": 0.1, "frequency_penalty": 0.2, "no_repeat_ngram": 3}
    settings |= {"logit_bias": {2: 0.5, 3: -float("inf")}, "stop": ["gh", "fed"], "stop_ids": [7], "overflow": "crop"}
    samples = tinygpt.load(run_dir).samples("ab", seed=5, **settings)
    assert out == "".join(f"{sample}\n" for sample in samples)
    assert err == "--- 1/3 ---\n--- 2/3 ---\n--- 3/3 ---\n"
    assert generate_py(*words.split(), "--stream") == (out, err)


@pytest.mark.parametrize("flag", EACH)
def test_each_setting_changes_the_text(generate_py, run_dir: Path, flag: str):
    words = ("--prompt", "abc", "--max-new-tokens", "30", "--logit-bias=9=-inf", "--logit-bias=10=-inf")
    assert generate_py(*words, flag) != generate_py(*words)


def test_an_object_a_line_tells_all_of_a_sample(generate_py, run_dir: Path):
    words = ("--prompt", "ab", "--max-new-tokens", "12", "--num-samples", "2", "--json", "--logprobs", "2")
    out, err = generate_py(*words, "--stop", "c")
    assert err == ""
    samples = [json.loads(line) for line in out.splitlines()]
    expected = tinygpt.load(run_dir).complete(["ab"], max_new_tokens=12, num_samples=2, n_top=2, stop=["c"])
    for ours, theirs in zip(samples, expected, strict=True):
        assert list(ours) == ["prompt", "text", "tokens", "logprobs", "top_logprobs", "finish_reason"]
        assert ours == json.loads(json.dumps(vars(theirs)))
        assert ours["finish_reason"] in ("stop", "length", "eos")


def test_many_prompts_come_from_the_lines_of_a_file(generate_py, run_dir: Path, monkeypatch):
    Path("odd.txt").write_text("a\u2028b\fc\x1c\n")  # what Python takes for the end of a line too
    assert generate.read_prompts(generate.parser().parse_args(["--prompts-file", "odd.txt"])) == ["a\u2028b\fc\x1c"]
    Path("prompts.txt").write_bytes(b"ab\r\n\nabcdefghi\n")
    words = ("--prompts-file", "prompts.txt", "--max-new-tokens", "9", "--json")
    samples = [json.loads(line) for line in generate_py(*words)[0].splitlines()]
    assert [sample["prompt"] for sample in samples] == ["ab", "", "abcdefghi"]
    gpt = tinygpt.load(run_dir)
    assert [sample["text"] for sample in samples] == [
        gpt.generate(p, max_new_tokens=9) for p in ("ab", "", "abcdefghi")
    ]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"ab")))
    assert len(generate_py("--prompts-file", "-", "--max-new-tokens", "9")[0].splitlines()) == 1


@pytest.mark.parametrize("words", [["--stop-escaped", r"b\x63"], ["--stop", r"b\u0063", "--stop-escaped"]])
def test_stops_may_be_written_with_escapes(generate_py, run_dir: Path, words: list[str]):
    base = ("--prompt", "ab", "--max-new-tokens", "60", "--logit-bias", "1=2", "--logit-bias", "2=2")
    assert generate_py(*base, *words) == generate_py(*base, "--stop", "bc") != generate_py(*base)
    assert generate_py(*base, "--stop", r"b\x63") == generate_py(*base)


def test_a_text_is_scored(generate_py, run_dir: Path):
    Path("book.txt").write_text("abcdefghi" * 7)
    gpt = tinygpt.load(run_dir)
    out, err = generate_py("--score", "book.txt", "--json")
    found = json.loads(out)
    assert err == ""
    assert {name: found[name] for name in ("loss", "perplexity", "bits_per_byte")} == gpt.score(
        "abcdefghi" * 7
    )._asdict()
    assert found["protocol"] == "windows of 8 tokens, end to end"
    assert found["sliding"] == gpt.score("abcdefghi" * 7, 4)._asdict() | {"stride": 4}
    whole, sliding = generate_py("--score", "book.txt")[0].splitlines()
    assert whole.startswith(f"windows of 8 tokens, end to end: loss {found['loss']:.4f} nats a token, perplexity ")
    assert sliding.startswith("sliding by 4 tokens: loss ")
    Path("empty.txt").touch()
    found = json.loads(generate_py("--score", "empty.txt", "--json")[0])
    assert (found["loss"] > 0, found["bits_per_byte"]) == (True, None)  # of the end alone
    assert generate_py("--score", "empty.txt")[0].splitlines()[0].endswith(f"perplexity {found['perplexity']:.3f}")


def test_weights_of_8_bits_are_sampled_and_scored_and_their_memory_is_named(generate_py, run_dir: Path):
    Path("book.txt").write_text("abcdefghi" * 7)
    gpt = tinygpt.load(run_dir)
    before, after = quantize(gpt.model)
    words = f"int8: the weights take {after / 1e6:.2f} MB instead of {before / 1e6:.2f}\n"
    expected = gpt.generate("abc", max_new_tokens=20)
    assert generate_py("--quantize", "int8", "--prompt", "abc", "--max-new-tokens", "20") == (expected + "\n", words)
    out, err = generate_py("--quantize", "int8", "--score", "book.txt", "--json")
    assert err == words
    loss = json.loads(out)["loss"]
    assert loss == gpt.score("abcdefghi" * 7).loss != tinygpt.load(run_dir).score("abcdefghi" * 7).loss


@pytest.mark.slow
def test_a_compiled_step_gives_the_same_text(generate_py, run_dir: Path):
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    words = ("--max-new-tokens", "20", "--num-samples", "2")
    assert generate_py(*words, "--compile") == generate_py(*words)
    assert counters["stats"]["unique_graphs"] == 1


def test_a_validation_text_scores_its_validation_loss(generate_py, book: Path):
    """The end of a single document is what is held out: its tokens, windows and bytes are the same."""
    from tinygpt.data.text_files import TextFiles

    train = [sys.executable, str(ROOT / "train.py"), *TINY, "tokenizer=byte", "run_dir=runs/new"]
    subprocess.run(train, check=True, capture_output=True)
    (row,) = TextFiles(files="book.txt").splits().validation
    Path("held_out.txt").write_text(row["text"])
    found = json.loads(
        generate_py("--checkpoint", "runs/new/checkpoints/last.ckpt", "--score", "held_out.txt", "--json")[0]
    )
    summary = json.loads(Path("runs/new/summary.json").read_text())
    assert found["loss"] == pytest.approx(summary["val_loss"], abs=1e-6)
    assert found["bits_per_byte"] == pytest.approx(summary["val_bits_per_byte"], abs=1e-6)


def test_escapes_are_those_of_python_and_everything_else_stays():
    assert flags.escaped(r"\n\t\\ \u674e é \d %") == "\n\t\\ 李 é \\d %"


def test_ctrl_c_keeps_what_there_is_and_ends_cleanly(generate_py, run_dir: Path, monkeypatch, capsys):
    calls = []
    original = Decoder.step

    def step(self):
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return original(self)

    words = ("--prompt", "abc", "--max-new-tokens", "30", "--logit-bias", "9=-inf", "--logit-bias", "10=-inf")
    whole, _ = generate_py(*words)
    for more in ([], ["--stream"], ["--json"]):
        calls.clear()
        with monkeypatch.context() as patch:
            patch.setattr(Decoder, "step", step)
            with pytest.raises(KeyboardInterrupt):
                generate_py(*words, *more)
        out = capsys.readouterr().out
        text = json.loads(out)["text"] + "\n" if more == ["--json"] else out
        assert text == whole[:4] + "\n"


def test_a_prompt_comes_from_a_file_or_from_stdin(generate_py, run_dir: Path, monkeypatch):
    expected = generate_py("--prompt", "abc", "--max-new-tokens", "9")
    for content in (b"abc", b"\xef\xbb\xbfabc"):
        Path("prompt.txt").write_bytes(content)
        assert generate_py("--prompt-file", "prompt.txt", "--max-new-tokens", "9") == expected
    Path("prompt.txt").write_bytes(b"a\r\nb c\n")
    assert generate.read("--prompt-file", "prompt.txt") == "a\nb c\n"  # as texts to train on are read
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"abc")))
    assert generate_py("--prompt-file", "-", "--max-new-tokens", "9") == expected


@pytest.mark.parametrize("prompt", ["Hello, world? It's 李明 = {x}", "null", "123", "a=b", "${x}", "???", "", "[a, b]"])
def test_any_prompt_arrives_as_it_was_typed(generate_py, run_dir: Path, monkeypatch, prompt: str):
    seen = []
    original = tinygpt.load("runs/one").tokenizer.__class__.encode
    monkeypatch.setattr(
        "tinygpt.tokenizers.char.CharTokenizer.encode", lambda self, text: seen.append(text) or original(self, "ab")
    )
    generate_py("--prompt", prompt, "--max-new-tokens", "2")
    assert seen == [prompt]


def test_help_explains_every_flag_without_loading_torch():
    code = "import sys; sys.argv = ['generate.py', '--help']; import generate, atexit\n"
    code += "atexit.register(lambda: print('SLOW' if 'torch' in sys.modules else 'QUICK')); generate.main()"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    for action in generate.parser()._actions:
        assert action.help
        assert action.option_strings[-1] in result.stdout
    assert result.stdout.endswith("QUICK\n")


def test_loading_brings_neither_hydra_nor_lightning(run_dir: Path):
    code = "import tinygpt, sys; tinygpt.load('runs/one').generate('abc', max_new_tokens=2)\n"
    code += "print([m for m in ('hydra', 'lightning', 'omegaconf', 'datasets') if m in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=run_dir.parents[1],
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == "[]\n"


@pytest.mark.gpu
def test_a_gpu_gives_the_text_of_the_cpu(gpt: GPT2, tmp_path: Path):
    path = save(tmp_path / "a.ckpt", gpt)
    texts = [tinygpt.load(path, device=device).generate("abc", max_new_tokens=20) for device in ("cpu", "cuda")]
    assert texts[0] == texts[1]
    assert torch.cuda.is_available()
