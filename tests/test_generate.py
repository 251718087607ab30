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
from tinygpt.errors import UserError
from tinygpt.generation.decoding import Decoder
from tinygpt.generation.interactive import Session
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


@pytest.fixture
def run_dir(gpt: GPT2, tmp_path: Path) -> Path:
    save(tmp_path / "runs" / "one" / "checkpoints" / "best.ckpt", gpt)
    return tmp_path / "runs" / "one"


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    """Runs generate.py with these words; returns (stdout, stderr)."""

    def run(*words: str) -> tuple[str, str]:
        monkeypatch.setattr(sys, "argv", ["generate.py", *words])
        generate.main()
        captured = capsys.readouterr()
        return captured.out, captured.err

    return run


def test_the_newest_run_is_sampled_and_stdout_holds_the_new_text_alone(command, run_dir: Path):
    out, err = command("--prompt", "abc", "--max-new-tokens", "9")
    assert err == ""
    assert out == tinygpt.load(run_dir).generate("abc", max_new_tokens=9) + "\n"


def test_every_setting_reaches_the_sampler(command, run_dir: Path):
    words = (
        "--checkpoint runs/one --prompt ab --max-new-tokens 17 --num-samples 3 --temperature 1.3 --top-k 9 --top-p 0.9"
        " --min-p 0.01 --repetition-penalty 1.2 --presence-penalty 0.1 --frequency-penalty 0.2 --no-repeat-ngram 3"
        " --logit-bias 2=0.5 --logit-bias 3=-inf --stop gh --stop fed --stop-id 7 --overflow crop --seed 5"
        " --no-cache --device cpu --unknown skip"
    )
    out, err = command(*words.split())
    settings = {"max_new_tokens": 17, "num_samples": 3, "temperature": 1.3, "top_k": 9, "top_p": 0.9, "min_p": 0.01}
    settings |= {"repetition_penalty": 1.2, "presence_penalty": 0.1, "frequency_penalty": 0.2, "no_repeat_ngram": 3}
    settings |= {"logit_bias": {2: 0.5, 3: -float("inf")}, "stop": ["gh", "fed"], "stop_ids": [7], "overflow": "crop"}
    samples = tinygpt.load(run_dir).samples("ab", seed=5, **settings)
    assert out == "".join(f"{sample}\n" for sample in samples)
    assert err == "--- 1/3 ---\n--- 2/3 ---\n--- 3/3 ---\n"
    assert command(*words.split(), "--stream") == (out, err)


@pytest.mark.parametrize("flag", EACH)
def test_each_setting_changes_the_text(command, run_dir: Path, flag: str):
    words = ("--prompt", "abc", "--max-new-tokens", "30", "--logit-bias=9=-inf", "--logit-bias=10=-inf")
    assert command(*words, flag) != command(*words)


def test_an_object_a_line_tells_all_of_a_sample(command, run_dir: Path):
    words = ("--prompt", "ab", "--max-new-tokens", "12", "--num-samples", "2", "--json", "--logprobs", "2")
    out, err = command(*words, "--stop", "c")
    assert err == ""
    samples = [json.loads(line) for line in out.splitlines()]
    expected = tinygpt.load(run_dir).complete(["ab"], max_new_tokens=12, num_samples=2, n_top=2, stop=["c"])
    for ours, theirs in zip(samples, expected, strict=True):
        assert list(ours) == ["prompt", "text", "tokens", "logprobs", "top_logprobs", "finish_reason"]
        assert ours == json.loads(json.dumps(vars(theirs)))
        assert ours["finish_reason"] in ("stop", "length", "eos")


def test_many_prompts_come_from_the_lines_of_a_file(command, run_dir: Path, monkeypatch):
    Path("odd.txt").write_text("a\u2028b\fc\x1c\n")  # what Python takes for the end of a line too
    assert generate.read_prompts(generate.parser().parse_args(["--prompts-file", "odd.txt"])) == ["a\u2028b\fc\x1c"]
    Path("prompts.txt").write_bytes(b"ab\r\n\nabcdefghi\n")
    words = ("--prompts-file", "prompts.txt", "--max-new-tokens", "9", "--json")
    samples = [json.loads(line) for line in command(*words)[0].splitlines()]
    assert [sample["prompt"] for sample in samples] == ["ab", "", "abcdefghi"]
    gpt = tinygpt.load(run_dir)
    assert [sample["text"] for sample in samples] == [
        gpt.generate(p, max_new_tokens=9) for p in ("ab", "", "abcdefghi")
    ]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"ab")))
    assert len(command("--prompts-file", "-", "--max-new-tokens", "9")[0].splitlines()) == 1


@pytest.mark.parametrize("words", [["--stop-escaped", r"b\x63"], ["--stop", r"b\u0063", "--stop-escaped"]])
def test_stops_may_be_written_with_escapes(command, run_dir: Path, words: list[str]):
    base = ("--prompt", "ab", "--max-new-tokens", "60", "--logit-bias", "1=2", "--logit-bias", "2=2")
    assert command(*base, *words) == command(*base, "--stop", "bc") != command(*base)
    assert command(*base, "--stop", r"b\x63") == command(*base)


def test_a_text_is_scored(command, run_dir: Path):
    Path("book.txt").write_text("abcdefghi" * 7)
    gpt = tinygpt.load(run_dir)
    out, err = command("--score", "book.txt", "--json")
    found = json.loads(out)
    assert err == ""
    assert {name: found[name] for name in ("loss", "perplexity", "bits_per_byte")} == gpt.score(
        "abcdefghi" * 7
    )._asdict()
    assert found["protocol"] == "windows of 8 tokens, end to end"
    assert found["sliding"] == gpt.score("abcdefghi" * 7, 4)._asdict() | {"stride": 4}
    whole, sliding = command("--score", "book.txt")[0].splitlines()
    assert whole.startswith(f"windows of 8 tokens, end to end: loss {found['loss']:.4f} nats a token, perplexity ")
    assert sliding.startswith("sliding by 4 tokens: loss ")
    Path("empty.txt").touch()
    found = json.loads(command("--score", "empty.txt", "--json")[0])
    assert (found["loss"] > 0, found["bits_per_byte"]) == (True, None)  # of the end alone
    assert command("--score", "empty.txt")[0].splitlines()[0].endswith(f"perplexity {found['perplexity']:.3f}")


def test_weights_of_8_bits_are_sampled_and_scored_and_their_memory_is_named(command, run_dir: Path):
    Path("book.txt").write_text("abcdefghi" * 7)
    gpt = tinygpt.load(run_dir)
    before, after = quantize(gpt.model)
    words = f"int8: the weights take {after / 1e6:.2f} MB instead of {before / 1e6:.2f}\n"
    expected = gpt.generate("abc", max_new_tokens=20)
    assert command("--quantize", "int8", "--prompt", "abc", "--max-new-tokens", "20") == (expected + "\n", words)
    out, err = command("--quantize", "int8", "--score", "book.txt", "--json")
    assert err == words
    loss = json.loads(out)["loss"]
    assert loss == gpt.score("abcdefghi" * 7).loss != tinygpt.load(run_dir).score("abcdefghi" * 7).loss


@pytest.mark.slow
def test_a_compiled_step_gives_the_same_text(command, run_dir: Path):
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    words = ("--max-new-tokens", "20", "--num-samples", "2")
    assert command(*words, "--compile") == command(*words)
    assert counters["stats"]["unique_graphs"] == 1


def test_a_validation_text_scores_its_validation_loss(command, book: Path):
    """The end of a single document is what is held out: its tokens, windows and bytes are the same."""
    from tinygpt.data.text_files import TextFiles

    train = [sys.executable, str(ROOT / "train.py"), *TINY, "tokenizer=byte", "run_dir=runs/new"]
    subprocess.run(train, check=True, capture_output=True)
    (row,) = TextFiles(files="book.txt").splits().validation
    Path("held_out.txt").write_text(row["text"])
    found = json.loads(
        command("--checkpoint", "runs/new/checkpoints/last.ckpt", "--score", "held_out.txt", "--json")[0]
    )
    summary = json.loads(Path("runs/new/summary.json").read_text())
    assert found["loss"] == pytest.approx(summary["val_loss"], abs=1e-6)
    assert found["bits_per_byte"] == pytest.approx(summary["val_bits_per_byte"], abs=1e-6)


def test_a_text_is_written_in_turns(command, run_dir: Path, monkeypatch):
    lines = "abc\n/temperature 0\n/nothing 3\n/seed x\n/top_p 7\n/seed -1\n/max_new_tokens 0\n/reset\n"
    lines += "de\n/top_p\nde\n/settings\n/help\n/reset\né\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    out, err = command("--interactive", "--max-new-tokens", "5", "--seed", "3")
    gpt = tinygpt.load(run_dir)
    first = gpt.generate("abc", max_new_tokens=5, seed=3)
    again = gpt.generate("de", max_new_tokens=5, seed=3, temperature=0)
    shown = out.splitlines()
    assert shown[0] == first
    assert shown[1] == again
    assert "temperature 0.0" in shown
    assert "max_new_tokens 5" in shown
    assert "/reset      forget the text so far" in shown
    for message in (
        "there is no /nothing; /help names what there is",
        "/seed must be a whole number, got 'x'",
        "/top_p must be above 0 and at most 1, got 7.0",
        "/seed must be at least 0, got -1",
        "/max_new_tokens must be at least 1, got 0",
        "'é' is not in the vocabulary of 9 characters",
    ):
        assert f"generate.py: {message}" in err


def test_the_text_so_far_is_what_is_continued(run_dir: Path):
    session = Session(tinygpt.load(run_dir), {"max_new_tokens": 3})
    shown = "".join(session.answer("abc"))
    assert session.text == f"abc{shown}"
    with pytest.raises(UserError, match=r"'\\n' is not in the vocabulary"):
        list(session.answer("de"))
    assert session.text == f"abc{shown}"


def test_escapes_are_those_of_python_and_everything_else_stays():
    assert flags.escaped(r"\n\t\\ \u674e é \d %") == "\n\t\\ 李 é \\d %"


def test_ctrl_c_keeps_what_there_is_and_ends_cleanly(command, run_dir: Path, monkeypatch, capsys):
    calls = []
    original = Decoder.step

    def step(self):
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return original(self)

    words = ("--prompt", "abc", "--max-new-tokens", "30", "--logit-bias", "9=-inf", "--logit-bias", "10=-inf")
    whole, _ = command(*words)
    for more in ([], ["--stream"], ["--json"]):
        calls.clear()
        with monkeypatch.context() as patch:
            patch.setattr(Decoder, "step", step)
            with pytest.raises(KeyboardInterrupt):
                command(*words, *more)
        out = capsys.readouterr().out
        text = json.loads(out)["text"] + "\n" if more == ["--json"] else out
        assert text == whole[:4] + "\n"


def test_a_prompt_comes_from_a_file_or_from_stdin(command, run_dir: Path, monkeypatch):
    expected = command("--prompt", "abc", "--max-new-tokens", "9")
    for content in (b"abc", b"\xef\xbb\xbfabc"):
        Path("prompt.txt").write_bytes(content)
        assert command("--prompt-file", "prompt.txt", "--max-new-tokens", "9") == expected
    Path("prompt.txt").write_bytes(b"a\r\nb c\n")
    assert generate.read("--prompt-file", "prompt.txt") == "a\nb c\n"  # as texts to train on are read
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"abc")))
    assert command("--prompt-file", "-", "--max-new-tokens", "9") == expected


@pytest.mark.parametrize("prompt", ["Hello, world? It's 李明 = {x}", "null", "123", "a=b", "${x}", "???", "", "[a, b]"])
def test_any_prompt_arrives_as_it_was_typed(command, run_dir: Path, monkeypatch, prompt: str):
    seen = []
    original = tinygpt.load("runs/one").tokenizer.__class__.encode
    monkeypatch.setattr(
        "tinygpt.tokenizers.char.CharTokenizer.encode", lambda self, text: seen.append(text) or original(self, "ab")
    )
    command("--prompt", prompt, "--max-new-tokens", "2")
    assert seen == [prompt]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--temperature", "-1"], "must be a number of at least 0, got '-1'"),
        (["--temperature", "nan"], "must be a number of at least 0, got 'nan'"),
        (["--top-k", "0"], "must be a whole number of at least 1, got '0'"),
        (["--top-p", "1.5"], "must be above 0 and at most 1, got '1.5'"),
        (["--num-samples", "two"], "must be a whole number of at least 1, got 'two'"),
        (["--seed", "-3"], "must be a whole number of at least 0, got '-3'"),
        (["--prompt", "a", "--prompt-file", "b"], "not allowed with argument"),
        (["--device", "abacus"], "invalid choice: 'abacus'"),
        (["--nothing"], "unrecognized arguments: --nothing"),
        (["--min-p", "2"], "must be at least 0 and at most 1, got '2'"),
        (["--repetition-penalty", "0"], "must be a finite number above 0, got '0'"),
        (["--presence-penalty", "inf"], "must be a finite number, got 'inf'"),
        (["--logit-bias", "a=b"], "must be ID=VALUE, such as 12=1.5 or 12=-inf, got 'a=b'"),
        (["--logit-bias", "1=nan"], "must be ID=VALUE, such as 12=1.5 or 12=-inf, got '1=nan'"),
        (["--stop", ""], "argument --stop: must not be empty"),
        (["--stop-escaped", ""], "argument --stop-escaped: must not be empty"),
        (["--logprobs", "3"], "--logprobs needs --json"),
        (["--compile", "--no-cache"], "--compile needs the cache; leave out --no-cache"),
        (["--overflow", "wrap"], "invalid choice: 'wrap'"),
        (["two\nlines"], "unrecognized arguments: two lines"),
        (["--stop", r"\xzz", "--stop-escaped"], r"argument --stop: has a wrong escape, got \xzz"),
        (["--stop-escaped", r"\xzz"], r"has a wrong escape, got \xzz; right ones are \n, \t, \xe9"),
    ],
)
def test_a_wrong_command_line_exits_with_2(command, run_dir: Path, capsys, words: list[str], message: str):
    with pytest.raises(SystemExit) as stop:
        command(*words)
    assert stop.value.code == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.startswith("generate.py: ")
    assert err.count("\n") == 1


def shell(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "generate.py"), *words], cwd=cwd, capture_output=True, text=True, check=False
    )


def test_a_mistake_is_one_line_on_stderr_and_exits_with_1(run_dir: Path, tmp_path: Path):
    (tmp_path / "bad.ckpt").write_text("no checkpoint")
    for words, message in (
        (["--prompt", "é"], "'é' is not in the vocabulary of 9 characters"),
        (["--checkpoint", "bad.ckpt"], "bad.ckpt is not a tinygpt checkpoint"),
        (["--checkpoint", "nowhere"], "there is no checkpoint nowhere"),
        (["--score", "nowhere.txt"], "--score nowhere.txt cannot be read: No such file or directory"),
        (["--prompts-file", "nowhere.txt"], "--prompts-file nowhere.txt cannot be read: No such file or directory"),
        (["--logit-bias", "99=1"], "logit_bias names the id 99; ids are 0 to 10"),
        (["--stop-id", "99"], "stop_ids names the id 99; ids are 0 to 10"),
        (["--prompt-file", "nowhere.txt"], "--prompt-file nowhere.txt cannot be read: No such file or directory"),
    ):
        result = shell(*words, cwd=tmp_path)
        assert (result.returncode, result.stdout) == (1, "")
        assert message in result.stderr
        assert result.stderr.startswith("generate.py: ")
        assert result.stderr.count("\n") == 1


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
