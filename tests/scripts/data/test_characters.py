from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scripts.data import characters, wordpiece
from scripts.data.wordpiece import SPECIAL, UNKNOWN


def test_characters_are_numbered_in_their_order_after_the_special_tokens():
    words = characters.vocabulary(["Ba\nb", "ab é"])
    assert len(words) == len(SPECIAL) + 6
    np.testing.assert_array_equal(words.encode("\n Babé"), np.arange(5, 11))
    np.testing.assert_array_equal(words.encode("a[CLS]z"), [8, *[UNKNOWN] * 6]), "[CLS] in a text is its characters"


@given(st.text(min_size=1), st.text())
def test_a_text_of_known_characters_comes_back(text, other):
    words = characters.vocabulary([text, other])
    encoded = words.encode(text)
    assert len(encoded) == len(text) and words.decode(encoded.tolist()) == text
    assert (encoded >= len(SPECIAL)).all() and encoded.max() < len(words)


def test_the_rarest_become_unknown(monkeypatch):
    monkeypatch.setattr(characters, "MAX_CHARACTERS", 2)
    words = characters.vocabulary(["aabbc"])
    assert Counter(words.encode("abcc").tolist()) == Counter([5, 6, UNKNOWN, UNKNOWN])


def test_a_saved_vocabulary_is_the_same(tmp_path):
    words = characters.vocabulary(["In the beginning"])
    (tmp_path / "vocabulary.json").write_text(words.text())
    read = wordpiece.read(tmp_path / "vocabulary.json", "")
    np.testing.assert_array_equal(read.encode("the Beginning"), words.encode("the Beginning"))
