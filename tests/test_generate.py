"""`python generate.py` as a user types it."""

import io
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import generate
import tinygpt
from tests.conftest import save
from tinygpt.model import GPT2

ROOT = Path(__file__).parents[1]


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
        "--checkpoint runs/one --prompt ab --max-new-tokens 7 --num-samples 3 --temperature 1.3 --top-k 4 --top-p 0.9"
    )
    out, err = command(*words.split(), "--seed", "5", "--no-cache", "--device", "cpu", "--unknown", "skip")
    samples = tinygpt.load(run_dir).samples(
        "ab", max_new_tokens=7, num_samples=3, temperature=1.3, top_k=4, top_p=0.9, seed=5
    )
    assert out == "".join(f"{sample}\n" for sample in samples)
    assert err == "--- 1/3 ---\n--- 2/3 ---\n--- 3/3 ---\n"


@pytest.mark.parametrize("flag", ["--temperature=0", "--temperature=5", "--top-k=1", "--top-p=0.01", "--seed=9"])
def test_each_setting_changes_the_text(command, run_dir: Path, flag: str):
    words = ("--prompt", "abc", "--max-new-tokens", "30")
    assert command(*words, flag) != command(*words)


def test_a_prompt_comes_from_a_file_or_from_stdin_byte_for_byte(command, run_dir: Path, monkeypatch):
    expected = command("--prompt", "abc", "--max-new-tokens", "9")
    Path("prompt.txt").write_bytes(b"abc")
    assert command("--prompt-file", "prompt.txt", "--max-new-tokens", "9") == expected
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
    ],
)
def test_a_wrong_command_line_exits_with_2(command, run_dir: Path, capsys, words: list[str], message: str):
    with pytest.raises(SystemExit) as stop:
        command(*words)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


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
