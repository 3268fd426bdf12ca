import pytest

from scripts.data import wordpiece
from thor.runtime.errors import UserError

TEXTS = [
    "The quick brown fox jumped over the lazy dog; the dogs were quicker than the fox.\n" * 3,
    "Jumping, jumps, jumped: a jumper of 1815 jumped over £20,000 and the café's dogs.\n" * 2,
]


def test_special_pieces_come_first_and_text_survives(tmp_path):
    built = wordpiece.vocabulary(TEXTS, 150, tmp_path)
    assert [built.decode([number]) for number in range(5)] == list(wordpiece.SPECIAL)
    assert (wordpiece.PAD, wordpiece.UNKNOWN, wordpiece.START, wordpiece.END, wordpiece.MASK) == (0, 1, 2, 3, 4)
    tokens = built.encode(TEXTS[0])
    assert tokens.max() < len(built) <= 150 and tokens.min() >= 5
    assert built.decode(tokens).startswith("the quick brown fox jumped over the lazy dog ; the dogs were quicker")
    assert built.decode(built.encode("Café")) == "cafe"
    assert built.encode("漢").tolist() == [wordpiece.UNKNOWN]
    assert "##ing" not in built.tokenizer.get_added_tokens_decoder().values()
    assert len(built.tokenizer.get_added_tokens_decoder()) == 5


def test_frequent_words_are_one_piece_and_others_several(tmp_path):
    built = wordpiece.vocabulary(TEXTS, 150, tmp_path)
    assert len(built.encode("jumped dogs the")) == 3
    assert len(built.encode("quickest")) > 1


def test_the_same_texts_give_the_same_vocabulary(tmp_path):
    """The library alone does not: it numbers pieces in the order of a hash table."""
    texts = [" ".join(f"{a}{b}{c}" for a in "klmnop" for b in "aeiou" for c in "rstvw") * 2]
    files = []
    for number in range(4):
        wordpiece.vocabulary(texts, 120, tmp_path / str(number))
        files += (tmp_path / str(number)).iterdir()
    assert len({file.name for file in files}) == 1 and len({file.read_bytes() for file in files}) == 1


def test_the_cache_is_used_and_belongs_to_text_and_size(tmp_path):
    first = wordpiece.vocabulary(TEXTS, 150, tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_text(path.read_text().replace('"fox"', '"cat"'))
    assert "cat" in wordpiece.vocabulary(TEXTS, 150, tmp_path).tokenizer.get_vocab()
    assert "cat" not in first.tokenizer.get_vocab()
    wordpiece.vocabulary(TEXTS, 140, tmp_path)
    wordpiece.vocabulary(TEXTS[:1], 150, tmp_path)
    wordpiece.vocabulary(["".join(TEXTS)], 150, tmp_path)
    assert len(list(tmp_path.iterdir())) == 4


def test_errors(tmp_path):
    with pytest.raises(UserError, match="vocabulary size must be at least 100, and is 99"):
        wordpiece.vocabulary(TEXTS, 99, tmp_path)
    wordpiece.vocabulary(TEXTS, 150, tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_text(path.read_text()[:200])
    with pytest.raises(UserError, match=rf"{path.name}: not a vocabulary \(.*\); delete it, and it is built anew"):
        wordpiece.vocabulary(TEXTS, 150, tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"the vocabulary cannot be written \((Not a directory|File exists)\)"):
        wordpiece.vocabulary(TEXTS, 150, tmp_path / "file")
