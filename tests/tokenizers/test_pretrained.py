import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tinygpt.errors import UserError
from tinygpt.tokenizers import BPETokenizer, PretrainedTokenizer, Unknown


def load(library: Tokenizer, end_of_text: str | None = None, unknown: Unknown = "error") -> PretrainedTokenizer:
    library.save("tokenizer.json")
    return PretrainedTokenizer.train([], "tokenizer.json", end_of_text, unknown)


def byte_level() -> Tokenizer:
    return Tokenizer.from_str(BPETokenizer.train(["hello hello"], vocab_size=262).to_json())


def word_piece() -> Tokenizer:
    words = ["[UNK]", "[CLS]", "[SEP]", "hello", "##s", "[", "sep", "]", "."]
    library = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer()
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece()
    library.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    library.add_special_tokens(["[UNK]", "[CLS]", "[SEP]"])
    library.enable_truncation(2)
    library.enable_padding(length=9)
    return library


def unigram() -> Tokenizer:
    pieces = [("<unk>", 0.0), ("</s>", 0.0), ("▁", -3.0), ("a", -2.0), ("b", -2.0), ("▁ab", -2.0)]
    library = Tokenizer(models.Unigram(pieces, unk_id=0))
    library.pre_tokenizer, library.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    library.add_special_tokens(["<unk>", "</s>"])
    return library


def byte_fallback() -> Tokenizer:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "▁a"]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    library = Tokenizer(models.BPE(vocabulary, [("▁", "a")], unk_token="<unk>", byte_fallback=True))
    library.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    fallback = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    library.decoder = decoders.Sequence(fallback)
    library.add_special_tokens([AddedToken("</s>", normalized=True), AddedToken("<s>", normalized=False)])
    return library


def test_nothing_is_added_cut_off_or_padded_and_special_tokens_are_text():
    tokenizer = load(word_piece())
    assert tokenizer.encode("Hellos [SEP].").tolist() == [3, 4, 5, 6, 7, 8]
    assert (tokenizer.end_of_text, tokenizer.vocab_size) == (2, 9)
    assert tokenizer.decode([3, 4, 2, 1, 8]) == "hellos [CLS]."
    assert tokenizer.n_bytes.tolist() == [5, 5, 0, 6, 1, 2, 4, 2, 1]


def test_a_unigram_file_never_gives_its_end_of_text_for_text():
    assert load(unigram()).encode("ab ab").tolist() == [5, 5]
    assert load(unigram()).n_bytes.tolist() == [5, 0, 1, 1, 1, 3]
    assert load(unigram(), unknown="skip").encode("ab</s>bé").tolist() == [5, 4]
    assert load(unigram(), unknown="replace").encode("ab</s>bé").tolist() == [5, 0, 4, 0]
    for text, what in (("ab</s>b", "'</s>' at character 2"), ("abé", "'é' at character 2")):
        with pytest.raises(UserError, match=rf"{what} is not text that this tokenizer has ids for; .*unknown=skip"):
            load(unigram()).encode(text)


def test_bytes_stand_in_for_characters_that_a_file_lacks():
    tokenizer = load(byte_fallback())
    assert tokenizer.encode("a aé").tolist() == [261, 261, 0xC3 + 3, 0xA9 + 3]
    for text in ("a aé", "a</s>a", "<s>", "<0x41>", "🙂"):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids.tolist()) == text
        assert tokenizer.n_bytes[ids].sum() == len(text.encode()) + 1  # and the space put in front
        assert not {0, 1, 2} & set(ids.tolist())


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("normalized", [True, False])
def test_an_added_end_of_text_is_text_where_it_is_written(special: bool, normalized: bool):
    library = byte_level()
    library.add_tokens([AddedToken("<stop>", special=special, normalized=normalized), AddedToken("    ")])
    tokenizer = load(library, "<stop>")
    assert (tokenizer.end_of_text, tokenizer.vocab_size, tokenizer.n_bytes[262:].tolist()) == (262, 264, [0, 4])
    ids = tokenizer.encode("a<stop>    b").tolist()
    assert 262 not in ids
    assert 263 in ids  # not special: how the file encodes four spaces
    assert tokenizer.decode([*ids, 262]) == "a<stop>    b"


def test_a_file_without_a_usual_end_of_text_gets_one_behind_its_vocabulary():
    library = Tokenizer(models.WordLevel({"a": 0, "b": 70_000, "?": 1}, unk_token="?"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = load(library)
    assert (tokenizer.end_of_text, tokenizer.vocab_size) == (70_001, 70_002)
    assert tokenizer.encode("b a").tolist() == [70_000, 0]
    assert tokenizer.decode([70_000, 70_001, 500]) == "b"
    assert np.flatnonzero(tokenizer.n_bytes).tolist() == [0, 1, 70_000]


def test_the_file_is_kept_whole_and_not_needed_again():
    library = word_piece()
    tokenizer = load(library)
    Path("tokenizer.json").unlink()
    assert json.loads(tokenizer.to_json()) == json.loads(library.to_str())
    for again in (PretrainedTokenizer(**tokenizer.config), pickle.loads(pickle.dumps(tokenizer))):
        assert again.encode("hellos [SEP]").tolist() == tokenizer.encode("hellos [SEP]").tolist() == [3, 4, 5, 6, 7]


def test_a_folder_means_the_tokenizer_json_in_it(tmp_path: Path):
    byte_level().save(str(tmp_path / "tokenizer.json"))
    assert PretrainedTokenizer.train([], str(tmp_path)).vocab_size == 262


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"there.json cannot be read: No such file or directory; tokenizer.path names a tokenizer.json or"),
        (b"\xff\xfe", "there.json is no tokenizer.json, it is not even UTF-8 text"),
        (b"{", "there.json: this is no tokenizer.json that the tokenizers library can read .Expecting property name"),
        (b"[]", "there.json: this is no tokenizer.json"),
        (b'{"model": {"vocab": {}}}', "there.json: this is no tokenizer.json"),
    ],
)
def test_what_is_no_tokenizer_json_is_named(content: bytes | None, message: str):
    if content is not None:
        Path("there.json").write_bytes(content)
    with pytest.raises(UserError, match=message):
        PretrainedTokenizer.train([], "there.json")


def test_an_end_of_text_that_the_file_lacks_is_named():
    with pytest.raises(UserError, match="tokenizer.json: the vocabulary has no token '<stop>'; name one that ends"):
        load(byte_level(), "<stop>")
    with pytest.raises(ValueError, match="unknown must be error, skip or replace, got 'drop'"):
        load(byte_level(), unknown="drop")  # type: ignore[arg-type]


def test_a_token_of_ordinary_text_ends_no_text():
    library = byte_level()
    with pytest.raises(UserError, match="'h' is a token that text encodes to; name one that only ends a text"):
        load(library, end_of_text="h")
    with pytest.raises(UserError, match="the vocabulary has no token ''"):
        load(library, end_of_text="")
    assert load(library, end_of_text="<|endoftext|>").end_of_text == library.token_to_id("<|endoftext|>")
    with pytest.raises(UserError, match=r"this tokenizer.json has no tokens"):
        load(Tokenizer(models.BPE()))


def test_a_file_that_would_lose_text_without_a_word_is_refused():
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.train_from_iterator(["abc abc"], trainers.BpeTrainer(special_tokens=["<|endoftext|>"], show_progress=False))
    for unknown in ("error", "replace"):
        with pytest.raises(UserError, match="would be lost without a word; tokenizer.unknown=skip allows that"):
            load(library, unknown=unknown)
    assert load(library, unknown="skip").encode("abc xyz").tolist() == library.encode("abc ").ids


@pytest.mark.parametrize("unknown", ["error", "skip", "replace"])
def test_a_model_without_an_unknown_token_says_so_in_one_line(unknown):
    library = Tokenizer(models.WordLevel({"a": 0, "</s>": 1}, unk_token="<unk>"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = load(library, unknown=unknown)
    assert tokenizer.encode("a a").tolist() == [0, 0]
    with pytest.raises(UserError, match="the tokenizer has no ids for some of the text"):
        tokenizer.encode("a b")
