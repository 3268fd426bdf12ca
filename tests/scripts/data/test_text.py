import numpy as np
import pytest

from scripts.data import text, wordpiece
from scripts.data.source import IGNORED
from scripts.data.text import MaskedText, NextPieces
from thor.runtime.errors import UserError

WORDS = 1000
SEQUENCES = np.random.default_rng(0).integers(5, WORDS, (50, 42)).astype(np.int32)
SEQUENCES[:, 0], SEQUENCES[:, -1] = wordpiece.START, wordpiece.END


def masked(**options):
    return MaskedText(**{"sequences": SEQUENCES, "words": WORDS, "batch_size": 8, **options})


def following(**options):
    return NextPieces(**{"sequences": SEQUENCES, "words": WORDS, "batch_size": 8, **options})


def _restored(batch):
    """The sequences as they were, and the positions as a mask."""
    tokens, positions, labels = batch
    restored, hidden = tokens.copy(), np.zeros(tokens.shape, bool)
    np.put_along_axis(restored, positions, labels.reshape(positions.shape), axis=1)
    np.put_along_axis(hidden, positions, True, axis=1)
    return restored, hidden


def test_labels_are_what_was_hidden_and_nothing_else_changes():
    plan = masked(seed=1)
    assert len(plan) == 6 and plan.predictions == 6  # 15 % of 40
    for batch, chosen in zip(plan.epoch(0), plan._order.batches(0), strict=True):
        tokens, positions, labels = batch
        assert tokens.shape == (8, 42) and positions.shape == (8, 6) and labels.shape == (48,)
        assert {array.dtype for array in batch} == {np.dtype(np.int32)}
        restored, hidden = _restored(batch)
        assert np.array_equal(restored, SEQUENCES[chosen])
        assert (hidden.sum(1) == 6).all() and not hidden[:, [0, -1]].any()
        assert np.array_equal(tokens[~hidden], SEQUENCES[chosen][~hidden])
        assert (np.diff(positions, axis=1) > 0).all()


def test_80_10_10():
    plan = masked(sequences=np.tile(SEQUENCES, (40, 1)), batch_size=100)
    shown, truth, where = [], [], []
    for tokens, positions, labels in plan.epoch(0):
        shown.append(np.take_along_axis(tokens, positions, axis=1).reshape(-1))
        truth.append(labels)
        where.append(positions.reshape(-1))
    shown, truth, where = map(np.concatenate, (shown, truth, where))
    assert len(shown) == 12_000
    assert np.mean(shown == wordpiece.MASK) == pytest.approx(0.8, abs=0.015)
    assert np.mean(shown == truth) == pytest.approx(0.1, abs=0.012)
    random = shown[(shown != wordpiece.MASK) & (shown != truth)]
    assert random.min() >= 5 and random.max() < WORDS
    assert random.mean() == pytest.approx((5 + WORDS) / 2, rel=0.05)
    assert np.bincount(where, minlength=42)[1:-1] == pytest.approx(300, rel=0.25)  # every place alike


def test_batches_depend_on_seed_and_epoch_and_a_start_only_skips():
    whole = list(masked(seed=3).epoch(2))
    for start in (0, 2, 6):
        rest = list(masked(seed=3).epoch(2, start))
        assert len(rest) == 6 - start
        for found, expected in zip(rest, whole[start:], strict=True):
            assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))
    assert not np.array_equal(next(masked(seed=4).epoch(2))[0], whole[0][0])
    assert not np.array_equal(next(masked(seed=3).epoch(3))[0], whole[0][0])


def test_a_sequence_is_hidden_anew_in_each_epoch():
    """The same words at two epochs, other places."""
    places = []
    for epoch in (0, 1):
        plan = masked(seed=1)
        order = np.concatenate(list(plan._order.batches(epoch)))
        positions = np.concatenate([positions for _, positions, _ in plan.epoch(epoch)])
        places.append({int(index): tuple(row) for index, row in zip(order, positions, strict=True)})
    common = places[0].keys() & places[1].keys()
    assert len(common) > 40 and all(places[0][index] != places[1][index] for index in common)


@pytest.mark.parametrize("source", [masked, following])
def test_ranks_share_a_global_batch(source):
    whole = list(source(seed=1).epoch(0))
    parts = [list(source(seed=1, batch_size=4, rank=rank, ranks=2).epoch(0)) for rank in (0, 1)]
    for batch, *shares in zip(whole, *parts, strict=True):
        for expected, *pieces in zip(batch, *shares, strict=True):
            assert np.array_equal(expected, np.concatenate(pieces))


def test_evaluation_asks_the_same_every_time_about_every_sequence():
    plan = masked(training=False, seed=1)
    first, second = list(plan.epoch(0)), list(plan.epoch(9))
    assert len(first) == len(plan) == 7
    assert all(
        np.array_equal(a, b) for one, two in zip(first, second, strict=True) for a, b in zip(one, two, strict=True)
    )
    labels = np.concatenate([labels for _, _, labels in first])
    assert (labels[: 50 * 6] >= 5).all() and (labels[50 * 6 :] == IGNORED).all() and len(labels) == 56 * 6
    restored = np.concatenate([_restored(batch)[0] for batch in first])
    assert np.array_equal(restored[:50], SEQUENCES)


def test_each_piece_is_asked_for_after_those_before_it():
    plan = following(seed=1)
    assert len(plan) == 6
    for (tokens, labels), chosen in zip(plan.epoch(3), plan._order.batches(3), strict=True):
        assert tokens.shape == (8, 40) and labels.shape == (320,) and tokens.dtype == labels.dtype == np.int32
        labels = labels.reshape(8, 40)
        assert (tokens[:, 0] == wordpiece.START).all() and np.array_equal(tokens[:, 1:], labels[:, :-1])
        assert np.array_equal(labels, SEQUENCES[chosen][:, 1:-1])  # all pieces, and not the end
    for rest, whole in zip(following(seed=1).epoch(3, 4), list(plan.epoch(3))[4:], strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(rest, whole, strict=True))


def test_what_fills_the_last_batch_of_an_evaluation_does_not_count():
    batches = list(following(training=False).epoch(0))
    labels = np.concatenate([labels for _, labels in batches]).reshape(56, 40)
    assert np.array_equal(labels[:50], SEQUENCES[:, 1:-1]) and (labels[50:] == IGNORED).all()
    assert (batches[-1][0][2:] == 0).all()


def test_words_must_cover_the_tokens():
    with pytest.raises(UserError, match=rf"words must be above {SEQUENCES.max()}, the largest token, and is 500"):
        masked(words=500)


def test_documents_are_cut_into_marked_sequences(tmp_path):
    documents = {"a": "one two three four five six seven " * 9, "b": "eight nine ten " * 9}
    vocabulary = wordpiece.vocabulary(list(documents.values()), 200, tmp_path)
    found = text.sequences(documents, vocabulary, 12)
    pieces = [vocabulary.encode(document) for document in documents.values()]
    assert len(found) == sum(len(part) // 10 for part in pieces)
    assert (found[:, 0] == wordpiece.START).all() and (found[:, -1] == wordpiece.END).all()
    first = len(pieces[0]) // 10
    assert np.array_equal(found[:first, 1:-1].reshape(-1), pieces[0][: 10 * first])
    assert np.array_equal(found[first:, 1:-1].reshape(-1), pieces[1][: 10 * (len(found) - first)])
    with pytest.raises(UserError, match="length must be at least 8 tokens, and is 7"):
        text.sequences(documents, vocabulary, 7)
    with pytest.raises(UserError, match="b: too short for one sequence of 512 tokens"):
        text.sequences({"b": documents["b"]}, vocabulary, 512)


def test_hidden_files_are_no_documents(tmp_path):
    (tmp_path / "emma.txt").write_text("a fine day")
    (tmp_path / "._emma.txt").write_bytes(b"\x00\x05\x16\x07\xff")  # as macOS puts beside it
    assert text.read(tmp_path) == {"emma": "a fine day"}


def test_a_document_or_the_end_of_each_is_held_out():
    documents = {"a": "x" * 100, "b": "y" * 50, "c": "z" * 40}
    assert text.split(documents, "b") == ({"a": "x" * 100, "c": "z" * 40}, {"b": "y" * 50})
    train, test = text.split(documents)
    assert {name: len(part) for name, part in test.items()} == {"a": 5, "b": 2, "c": 2}
    assert all(train[name] + test[name] == document for name, document in documents.items())
    with pytest.raises(UserError, match="held_out = 'd': must be one of a, b, c; or --data.held_out null holds"):
        text.split(documents, "d")
    with pytest.raises(UserError, match="held_out = 'a': is the only document, .*; --data.held_out null holds"):
        text.split({"a": "x"}, "a")


def test_files_are_read_or_named(tmp_path):
    (tmp_path / "b.txt").write_text("Zwei £.", encoding="utf-8")
    (tmp_path / "a.txt").write_text("Eins.")
    (tmp_path / "notes.md").write_text("No text.")
    assert text.read(tmp_path) == {"a": "Eins.", "b": "Zwei £."}
    assert text.read(tmp_path / "b.txt") == {"b": "Zwei £."}
    (tmp_path / "a.txt").write_bytes("Caf\xe9".encode("latin-1"))
    with pytest.raises(UserError, match=r"a\.txt: not UTF-8 text \(byte 3\); convert it"):
        text.read(tmp_path)
    (tmp_path / "a.txt").write_text(" \n")
    with pytest.raises(UserError, match=r"a\.txt: holds no text"):
        text.read(tmp_path)
    with pytest.raises(UserError, match=r"c\.txt: no such file"):
        text.read(tmp_path / "c.txt")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"empty: holds no NAME\.txt"):
        text.read(tmp_path / "empty")
