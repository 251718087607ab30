"""What `python generate.py` says to a mistake."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


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
def test_a_wrong_command_line_exits_with_2(generate_py, run_dir: Path, capsys, words: list[str], message: str):
    with pytest.raises(SystemExit) as stop:
        generate_py(*words)
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
