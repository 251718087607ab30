import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library

from tinygpt.tokenizers import BPETokenizer, fingerprint


def tokens(tokenizer: BPETokenizer, text: str) -> list[str]:
    return [tokenizer.decode([i]) for i in tokenizer.encode(text).tolist()]


def test_the_most_frequent_pair_is_merged_first():
    tokenizer = BPETokenizer.train(["aaabdaaabac"], vocab_size=260)
    assert json.loads(tokenizer.to_json())["model"]["merges"] == [["a", "a"], ["a", "b"], ["aa", "ab"]]
    assert tokens(tokenizer, "aaabdaaabac") == ["aaab", "d", "aaab", "a", "c"]
    assert (tokenizer.vocab_size, tokenizer.end_of_text) == (260, 259)


def test_a_text_with_few_pairs_reaches_a_smaller_vocabulary():
    tokenizer = BPETokenizer.train(["aaabdaaabac"], vocab_size=10_000)
    assert tokenizer.vocab_size == len(tokenizer.n_bytes) == 256 + 7 + 1
    assert tokens(tokenizer, "aaabdaaabac") == ["aaabdaaabac"]


def test_bytes_and_end_of_text_are_the_least_vocabulary():
    assert BPETokenizer.train(["aaa"], vocab_size=257).vocab_size == 257
    with pytest.raises(ValueError, match="vocab_size must be at least 257, the bytes and the end of text, got 256"):
        BPETokenizer.train(["aaa"], vocab_size=256)


def test_merges_are_learned_from_the_beginning_alone_where_asked():
    documents = ["aa aa aa aa ", "bb bb bb bb bb bb "]
    assert BPETokenizer.train(documents, train_bytes=12).to_json() == BPETokenizer.train(documents[:1]).to_json()
    assert BPETokenizer.train(documents, train_bytes=13).to_json() == BPETokenizer.train(documents).to_json()
    with pytest.raises(ValueError, match="train_bytes must be at least 1, or null for all, got 0"):
        BPETokenizer.train(documents, train_bytes=0)


def test_bytes_that_training_has_not_seen_are_kept():
    tokenizer = BPETokenizer.train(["abc"])
    text = "".join(map(chr, range(0x100))) + "李🙂"
    assert tokenizer.decode(tokenizer.encode(text).tolist()) == text


def test_half_a_character_decodes_to_the_replacement_character():
    tokenizer = BPETokenizer.train([""])
    assert tokenizer.decode(tokenizer.encode("é🙂").tolist()[:-1]) == "é\ufffd"


def test_training_twice_gives_the_same_file():
    documents = ["the cat sat on the mat\n", "abcabcab", "<|endoftext|>" * 20]
    first, second = (BPETokenizer.train(iter(documents), vocab_size=280) for _ in range(2))
    assert first.to_json() == second.to_json()
    assert fingerprint(first) == fingerprint(second) != fingerprint(BPETokenizer.train(documents, vocab_size=270))


def test_no_merge_makes_an_end_of_text_however_often_it_is_written():
    tokenizer = BPETokenizer.train(["<|endoftext|>" * 20])
    assert tokens(tokenizer, "<|endoftext|>") == ["<|", "endoftext", "|>"]
    assert Library.from_str(tokenizer.to_json()).encode("<|endoftext|>").tokens == ["<|", "endoftext", "|>"]


@given(
    st.text(st.sampled_from("aZst1é李'.,(<🙂\u0301\0\x1c \n\t\r\xa0\u2028\u3000"), max_size=60) | st.text(max_size=60),
    st.integers(1, 9),
)
def test_cutting_the_text_changes_no_token(text: str, size: int):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tinygpt.tokenizers.library.PIECE", size)
        patch.setattr("tinygpt.tokenizers.library.KEPT", 10 * size)  # words are forgotten, too
        tokenizer = BPETokenizer.train(["a a. 's it's 1 1\n\n  a", text], vocab_size=400)
        ids = [tokenizer.encode(text).tolist() for _ in range(2)]
    assert ids == [Library.from_str(tokenizer.to_json()).encode(text).ids] * 2
