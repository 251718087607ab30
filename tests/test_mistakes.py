"""What `python train.py` answers to a wrong command line: one line, the right exit status, nothing left behind."""

from pathlib import Path

import pytest

from tests.conftest import TINY

MISTAKES = [
    (["model.n_layr=3"], 2, "there is no key model.n_layr; did you mean n_layer? The keys of model are: block_size,"),
    (["foo=3"], 2, "there is no key foo. The keys are: attention, callbacks, compile, data, debug, determin"),
    (["data.foo.bar=3"], 2, "there is no key data.foo. The keys of data are: "),
    (["+model.foo=3"], 2, "there is no key model.foo. The keys of model are:"),
    (["modle.n_layer=2"], 2, "there is no key modle; did you mean model? The keys are: attention, callbacks, compile,"),
    (["model.n_layer.x=2"], 2, "there is no key model.n_layer.x. What was chosen for model.n_layer has no keys"),
    (["model=gpt9"], 2, "there is no model=gpt9; model is one of: gpt2"),
    (["nothing=gpt9"], 2, "there is no key nothing."),
    (["logger=[tensorboard,foo]"], 2, "there is no logger=foo; logger is one of: csv, none, tensorboard, wandb"),
    (["minutes=abc"], 2, "minutes must be float or null, got 'abc'"),
    (["run_dir=book.txt/x"], 2, "book.txt/x cannot be used: Not a directory"),
    (["model.n_layer=abc"], 2, "model.n_layer must be int, got 'abc'"),
    (["model.n_layer=2.5"], 2, "model.n_layer must be int, got 2.5"),
    (["data.batch_size=aut"], 2, "data.batch_size must be a number of rows, or auto, got 'aut'"),
    (["model.dropout=high"], 2, "model.dropout must be float, got 'high'"),
    (["model.init=kaiming"], 2, "model.init must be one of gpt2, xavier, zero, got 'kaiming'"),
    (["attention=flash"], 2, "there is no attention=flash; attention is one of: chunked, flex, manual, sdpa, sliding_"),
    (["attention=flex"], 2, "attention: flex trains on a GPU alone (cuda), got cpu; take another attention"),
    (["attention=chunked", "attention.strip=0"], 2, "attention: strip must be at least 1, got 0"),
    (["attention=sliding_window", "model.n_random=1"], 2, "attention: sliding_window has no random blocks; set model."),
    (["attention.strip=16"], 2, "there is no key attention.strip. What was chosen for attention has no keys"),
    (["model.window=[4,null,4]"], 2, "model: window must have 1 to n_layer=1 entries, got 3"),
    (["model.window=[]"], 2, "model: window must have 1 to n_layer=1 entries, got 0"),
    (["model.window=0"], 2, "model: window must be at least 1, or null for all tokens, got 0"),
    (["model.window=[4,x]"], 2, "model.window must be int or list[int or null] or null, got [4, 'x']"),
    (["model.n_global=2"], 2, "model: n_global adds to what a window lets a token see; set window too"),
    (["compile=maybe"], 2, "compile must be bool, got 'maybe'"),
    (["eval_every=0"], 2, "eval_every must be at least 1, got 0"),
    (["model.n_embd=32", "model.n_head=5"], 2, "model: n_embd must be a multiple of n_head, got n_embd=32, n_head=5"),
    (["trainer.max_steps=0"], 2, "trainer: max_steps must be at least 1, or -1 with a max_time, got 0"),
    (["trainer.max_steps=-1"], 2, "trainer: max_steps must be at least 1, or -1 with a max_time, got -1"),
    (["trainer.max_time=5m"], 2, "trainer: max_time must be DAYS:HOURS:MINUTES:SECONDS, such as 00:00:05:00, got '5m'"),
    (["trainer.precision=16-mixed", "trainer.accelerator=cpu"], 2, "trainer: precision=16-mixed needs a GPU"),
    (["trainer.accelerator=quantum"], 2, "trainer: the device must be auto, cpu, gpu, cuda or mps, got 'quantum'"),
    (["trainer.devices=2"], 2, "trainer.devices must be 1, a run uses one device so far, got 2"),
    (["+trainer.max_epochs=3"], 2, "trainer.max_epochs cannot be set"),
    (["+trainer.max_epochs=3", "logger=wandb"], 2, "trainer.max_epochs cannot be set"),
    (["+model.vocab_size=5"], 2, "model.vocab_size cannot be set"),
    (["+foo=3"], 2, "there is no key foo."),
    (["init_from=nowhere"], 1, "there is no checkpoint nowhere"),
    (["~seed"], 2, "seed must be given"),
    (["~model"], 2, "model"),
    (["model=null"], 2, "model=null chooses nothing; model is one of: gpt2"),
    (["optimizer.betas=[0.9]"], 2, "optimizer: betas must be two numbers of at least 0 and below 1, got [0.9]"),
    (["callbacks.checkpoint.keep=0"], 2, "callbacks.checkpoint: keep must be at least 1, got 0"),
    (
        ["callbacks.samples.prompts=[]"],
        2,
        "callbacks.samples: prompts must name one at least; ",
    ),
    (["callbacks.samples.max_new_tokens=0"], 2, "callbacks.samples: max_new_tokens must be at least 1, got 0"),
    (["schedule.warmup_steps=-1"], 2, "schedule: warmup_steps must be at least 0, got -1"),
    (["data.files=[a(1).txt, b.txt]"], 2, 'quote the value twice: \'data.files=["a(1).txt","b.txt"]\''),
    (["data.files=[]"], 1, "data.files names no file; name files, a folder or a glob pattern"),
    (["optimizer.lr=-1"], 2, "optimizer: lr must be above 0 and finite, got -1"),
    (["optimizer.lr=inf"], 2, "optimizer: lr must be above 0 and finite, got inf"),
    (["trainer.accumulate_grad_batches=0"], 2, "trainer.accumulate_grad_batches must be at least 1, got 0"),
    (["trainer.gradient_clip_val=-1.0"], 2, "trainer.gradient_clip_val must be at least 0, got -1"),
    (["run_dir="], 2, "run_dir must name a directory, with ~ written out, got ''"),
    (["trainer.precision=16-foo"], 2, "trainer.precision must be"),
    (["tokenizer.unknown=drop"], 2, "tokenizer.unknown must be"),
    (["data.files=[a(1).txt]"], 2, "cannot be read; quote the value twice: 'data.files=[\"a(1).txt\"]'"),
    (["data.files=a=b.txt"], 2, "cannot be read; quote the value twice: 'data.files=\"a=b.txt\"'"),
    (["data.files=~/x, y"], 2, "cannot be read; quote the value twice: 'data.files=\"~/x, y\"'"),
    (["data.files=a.txt,b.txt"], 2, "are several values: a list is 'data.files=[a.txt,b.txt]', a sweep needs -m"),
    (["data.files=missing.txt"], 1, "data.files: there is no file 'missing.txt'"),
    (["model.block_size=9999"], 1, "fewer than model.block_size=9999"),
    (["data=hub"], 2, "data.path must be given: data.path=..."),
]


@pytest.mark.parametrize(("words", "status", "message"), MISTAKES, ids=[" ".join(words) for words, *_ in MISTAKES])
def test_a_mistake_is_one_line_and_leaves_nothing(command, words: list[str], status: int, message: str):
    base = TINY if "data=hub" not in words else ["run_dir=run"]
    got, out, err = command(*base, *words)
    assert message in err
    assert err.startswith("train.py: ")
    assert err.count("\n") == 1
    assert (got, out) == (status, "")
    assert not Path("run").exists()


def test_the_quoted_form_that_a_message_shows_works(command):
    Path("a(1), b=c.txt").write_text(Path("book.txt").read_text())
    assert command(*TINY, 'data.files="a(1), b=c.txt"')[0] == 0


def test_a_file_that_is_not_utf8_is_named(command):
    Path("book.txt").write_bytes(b"caf\xe9")
    status, _, err = command(*TINY)
    assert status == 1
    assert "book.txt is not UTF-8 text: byte 0xe9 at offset 3, line 1" in err
