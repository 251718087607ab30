"""The dial: what `minutes=` chooses on a machine of known speed, and what it leaves to nobody else."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

import train
from tinygpt.config import Config
from tinygpt.errors import UsageError
from tinygpt.tokenizers.byte import ByteTokenizer
from tinygpt.training import dial

STEP, VALIDATION = 0.1, 5.0  # seconds, whatever the size
TEXT = "To be, or not to be, that is the question.\n" * 1000


@pytest.fixture
def choose(token_file, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Config]:
    """Chooses where a step and a validation take what is said above, and time stands still."""

    def choose(minutes: float, parameters: dict[int, float] | None = None, text: str = TEXT, *words: str) -> Config:
        def measured(cfg: Config, *_: object) -> tuple[float, float, float]:
            return STEP, VALIDATION, (parameters or {}).get(cfg["model"]["n_embd"], 1)

        monkeypatch.setattr(dial, "_measured", measured)
        monkeypatch.setattr(time, "monotonic", lambda: 100.0)
        cfg = OmegaConf.to_container(train.compose("train", ["run_dir=run", "seed=1", *words]), resolve=True)
        assert isinstance(cfg, dict)
        file = token_file(text)
        facts = {"device": "cpu", "precision": "32-true", "begun": 90.0}  # ten seconds ago
        return dial.choose({str(k): v for k, v in cfg.items()}, minutes, ByteTokenizer(), file, file, **facts)

    return choose


def test_the_largest_model_is_taken_whose_blocks_see_enough_tokens(choose):
    # Of 5 minutes ten seconds are gone, and the ending and a validation are to come.
    tokens = (300 - 10 - dial.ENDING - VALIDATION) / STEP * dial.BLOCK
    enough = 0.99 * tokens / dial.wanted_tokens(1, few=True)  # of bytes
    sizes = {96: 0.1 * enough, 128: 0.5 * enough, 160: enough, 192: 1.1 * enough, 256: 0.1 * enough}
    assert choose(5, sizes)["model"]["n_embd"] == 160
    assert choose(5.6, sizes)["model"]["n_embd"] == 256
    assert choose(0.6, sizes)["model"]["n_embd"] == 96


def test_tokens_of_many_kinds_are_wanted_the_more_for_each_parameter_the_larger_the_model():
    assert dial.wanted_tokens(786_432, few=False) == pytest.approx(2.54e6, rel=0.01)  # 128 wide
    assert dial.wanted_tokens(1_536_000, few=False) == pytest.approx(9.67e6, rel=0.01)  # 160 wide


def test_a_size_has_its_layers_and_heads(choose):
    model = choose(5)["model"]
    assert (model["n_embd"], model["n_layer"], model["n_head"]) == dial.SIZES[-1]


def test_the_rates_are_those_of_its_kind_of_vocabulary(choose):
    optimizer = choose(5)["optimizer"]  # of bytes
    assert {key: optimizer[key] for key in dial.rates(few=True)} == dial.rates(few=True)


def test_many_ids_have_rates_tables_and_steps_of_their_own(choose, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dial, "FEW", 100)  # bytes are many then
    cfg = choose(5)
    assert {key: cfg["optimizer"][key] for key in dial.rates(few=False)} == dial.rates(few=False)
    assert dial.rates(few=True) != dial.rates(few=False)
    assert (cfg["model"]["ngram_rows"], cfg["model"]["init"]) == ([65536, 262144], "xavier")
    assert cfg["data"]["batch_size"] == 2


def test_what_is_left_of_the_minutes_is_training(choose):
    assert choose(2)["trainer"]["max_time"] == "00:00:01:39"  # 120 - 10 - 6 - 5
    assert choose(2)["trainer"]["max_steps"] == -1
    assert choose(2)["minutes"] is None


def test_validations_on_the_way_take_a_small_share_of_the_time(choose):
    cfg = choose(10)  # one, of five seconds, and two to show what it gave: 600 - 10 - 6 - 5 - 7 are left
    assert cfg["trainer"]["max_time"] == "00:00:09:32"
    assert cfg["eval_every"] == int(1.1 * 5720 / dial.DROPPED_STEP / 2)  # it reads this text many times
    assert choose(2)["eval_every"] > 1010  # none but the last


def test_only_a_long_run_is_compiled(choose):
    assert choose(14.9)["compile"] is False
    assert choose(15)["compile"] is True
    assert choose(15)["trainer"]["max_time"] == "00:00:13:45"  # 900 - 10 - 6 - 40 - 5, and two validations on the way


@pytest.mark.parametrize(("epochs", "ngram_dropout", "dropout"), [(0.9, 0, 0), (2, 0.25, 0), (5, 0.5, 0.05)])
def test_a_text_that_is_read_often_is_kept_from_being_learned_by_heart(choose, epochs, ngram_dropout, dropout):
    seconds = epochs * len(TEXT.encode()) / dial.BLOCK * STEP
    cfg = choose((seconds + 10 + dial.ENDING + VALIDATION) / 60)
    assert cfg["model"]["ngram_dropout"] == pytest.approx(ngram_dropout, abs=0.01)
    assert cfg["model"]["dropout"] == dropout


def test_a_short_text_has_short_rows_and_a_step_as_many_tokens(choose):
    cfg = choose(1, None, TEXT[:5000])
    assert cfg["model"]["block_size"] == 256  # a sixteenth of the text, down to a power of two
    assert cfg["data"]["batch_size"] == 4


def test_documents_that_are_rows_fill_a_step(choose):
    cfg = choose(1, None, TEXT, "data.layout=padded", "data.long_documents=truncate")
    assert cfg["model"]["block_size"] * cfg["data"]["batch_size"] == dial.BLOCK


def test_no_time_to_train_is_a_mistake(choose):
    with pytest.raises(UsageError, match="minutes=0.3 is too little to train: a step takes 0.1 s, and 21 s go by"):
        choose(0.3)
    with pytest.raises(UsageError, match="minutes=0.5 would do"):
        choose(0.3)
    assert choose(0.5)["trainer"]["max_time"] == "00:00:00:09"


@pytest.mark.parametrize("word", ["model.n_embd=64", "optimizer=adamw", "experiment=shakespeare_cpu", "compile=true"])
def test_what_is_chosen_cannot_be_given(command, word: str):
    key = word.partition("=")[0]
    status, _, err = command("data=text_files", "data.files=book.txt", "minutes=1", word)
    assert (status, err) == (
        2,
        f"train.py: {key}= does not go with minutes=, which chooses the model and how it is trained\n",
    )


def test_minutes_are_a_number_above_zero(command):
    for value in ("0", "inf", "nan"):
        assert command(f"minutes={value}")[::2] == (2, f"train.py: minutes must be above 0 and finite, got {value}\n")
    assert command("minutes=long")[0] == 2


def test_a_run_is_whole_and_its_choices_are_kept(command, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dial, "written", lambda seconds: "00:00:00:01")  # whatever is left
    words = ("data=text_files", "data.files=book.txt", "tokenizer=byte", "run_dir=run")
    status, out, err = command(*words, "minutes=14")  # a busy machine has time for it
    assert (status, err) == (0, "")
    assert out.startswith("minutes=14: ")
    cfg = yaml.safe_load(Path("run/config.yaml").read_text())
    assert cfg["minutes"] is None
    assert cfg["model"]["block_size"] == 128
    assert json.loads(Path("run/summary.json").read_text())["status"] == "completed"
    assert "measures anew; what it chose here is in config.yaml" in Path("run/report.html").read_text()
    status, out, err = command("resume=run", "minutes=1")
    assert (status, out) == (2, "")
    assert err.startswith("train.py: minutes= does not go with resume=")
    assert "no step was left" in command("resume=run")[1]
