"""A profile's file: what is written is what is read, and nothing else is accepted."""

import json
import os
from dataclasses import replace

import pytest

from tests.support.profiles import DIMS, profile, timing
from thor import BlockPlan
from thor.profile.factor_shape import Timing
from thor.profile.profile_file import FORMAT, VERSION, Profile


def test_what_is_read_is_what_was_written(tmp_path):
    made = profile()
    made.threshold = 0.05
    made.save(tmp_path / "new" / "folder" / "profile.json")
    assert Profile.load(tmp_path / "new" / "folder" / "profile.json") == made


def test_the_profile_is_plain_json_with_every_raw_number(tmp_path):
    made = profile()
    made.save(tmp_path / "p.json")
    data = json.loads((tmp_path / "p.json").read_text())
    assert Timing(**data["calls"]["16"]) == made.calls[16]
    assert data["layers"][1]["a"]["loss"]["position"] == [0.7, 0.3, 0.008, 0.0]


def test_an_interrupted_profile_is_read_only_where_it_is_asked_for(tmp_path):
    path = tmp_path / "profile.json"
    part = profile(complete=False)
    part.layers.pop()
    del part.refreshes[64], part.calls[64]
    part.save(path)
    assert Profile.load(path, partial=True) == part
    with pytest.raises(ValueError, match="profile.json: the measurement was interrupted; run the same thor profile"):
        Profile.load(path)


def test_other_readers_find_the_choice_and_ours_computes_it_anew(tmp_path):
    path = tmp_path / "profile.json"
    profile().save(path)
    data = json.loads(path.read_text())
    assert (data["format"], data["version"]) == (FORMAT, VERSION)
    assert data["choice"]["chosen"] == profile().crossing().chosen
    data["choice"]["chosen"] = 4096
    path.write_text(json.dumps(data))
    assert Profile.load(path) == profile()


def test_the_curves_follow_from_the_numbers():
    made = profile()
    assert made.kept() == [1 / 6, 3 / 6, 4 / 6, 1.0]
    assert made.kept("position") == [1 / 6, 3 / 6, 5 / 6, 1.0]
    assert made.performance() == [made.calls[1].median / made.calls[n].median for n in DIMS]
    made.threshold = 0.3
    assert made.kept() == [1 / 6, 3 / 6, 1.0, 1.0]  # 0.3 itself is not below
    assert made.plan("block+rank", 5, "position") == BlockPlan(
        block_size=made.crossing("position").chosen, split="block+rank", rank=5, order="position"
    )


def test_a_layer_that_the_loss_does_not_depend_on_has_no_say_in_the_choice():
    """Its factors are zero: nothing is lost of them, at any block size."""
    made = profile()
    kept = made.kept()
    layer = made.layers[0]
    made.layers.append(replace(layer, a=_zero(layer.a), g=_zero(layer.g)))
    assert made.kept() == kept
    made.layers = made.layers[-1:]
    assert made.kept() == [1.0] * len(DIMS)


def _zero(factor):
    return replace(factor, norm=0.0, loss={order: [0.0] * len(DIMS) for order in factor.loss})


def test_a_save_that_is_broken_off_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "profile.json"
    profile().save(path)
    before = path.read_bytes()

    def broken(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(KeyboardInterrupt):
        profile(network="other").save(path)
    unwritable = profile()
    unwritable.calls[1] = timing(float("nan"))
    with pytest.raises(ValueError):
        unwritable.save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["profile.json"]


def test_a_file_that_is_not_there_says_how_to_make_one(tmp_path):
    with pytest.raises(ValueError, match="p.json: no such profile; measure one with: thor profile .* --out .*p.json"):
        Profile.load(tmp_path / "p.json")
    with pytest.raises(ValueError, match="cannot be read"):
        Profile.load(tmp_path)


@pytest.mark.parametrize("length", [0, 1, 0.3, 0.999])
def test_a_truncated_file_is_refused(length, tmp_path):
    path = tmp_path / "profile.json"
    profile().save(path)
    text = path.read_bytes()
    path.write_bytes(text[: length if isinstance(length, int) else int(length * len(text))])
    with pytest.raises(ValueError, match="profile.json: corrupt or truncated JSON .*; measure it again"):
        Profile.load(path)


def test_a_file_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "p.json").write_bytes(b"\x89PNG\r\n\x1a\n\xff")
    with pytest.raises(ValueError, match="p.json: cannot be read"):
        Profile.load(tmp_path / "p.json")


@pytest.mark.parametrize("data", [[], 3, None, {}, {"format": "other"}, {"dims": [1, 2]}])
def test_what_is_no_profile_is_refused(data, tmp_path):
    (tmp_path / "p.json").write_text(json.dumps(data))
    with pytest.raises(ValueError, match="p.json: not a profile of thor"):
        Profile.load(tmp_path / "p.json")


def change(*keys, value):
    def apply(data):
        for key in keys[:-1]:
            data = data[key]
        data[keys[-1]] = value

    return apply


def drop(*keys):
    def apply(data):
        for key in keys[:-1]:
            data = data[key]
        del data[keys[-1]]

    return apply


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (change("version", value=VERSION + 1), ("version 2 is newer than this thor's 1", "upgrade, or measure again")),
        (change("version", value="1"), ("version must be a positive integer", "'1'")),
        (change("version", value=0), ("version must be a positive integer", "0")),
        *((drop(key), ("missing", key)) for key in (
            "settings", "environment", "dims", "threshold", "calls", "blocks", "refreshes", "layers", "complete")),
        (drop("environment", "device"), ("environment", "lacks", "device")),
        (drop("layers", 0, "a"), ("missing", "'a'")),
        (drop("layers", 0, "cosine"), ("missing", "cosine")),
        (drop("layers", 1, "g", "dim"), ("missing", "dim")),
        (change("layers", 1, "g", "dim", value=0), ("dim of factor conv.g", "0")),
        (change("layers", 1, "g", "dim", value="785"), ("dim of factor conv.g", "785")),
        (change("layers", 1, "g", "copies", value=-3), ("copies of factor conv.g", "-3")),
        (change("layers", 0, "a", "norm", value=None), ("norm of factor first.a", "at least 0", "None")),
        (change("layers", 0, "a", "norm", value=-1.0), ("norm of factor first.a", "at least 0", "-1.0")),
        (drop("layers", 1, "a", "loss", "channel"), ("conv.a: loss", "lacks 'channel'")),
        (drop("layers", 1, "a", "error", "block+mean"), ("conv.a: error", "lacks 'block+mean'")),
        (drop("layers", 1, "cosine", "block"), ("conv: cosine", "lacks 'block'")),
        (drop("calls", "4"), ("calls", "lacks", "[4]")),
        (drop("blocks", "64"), ("blocks", "lacks", "[64]")),
        (drop("refreshes", "1"), ("refreshes", "lacks", "[1]")),
        (drop("calls", "4", "median"), ("median",)),
        (change("layers", 0, "a", "loss", "channel", value=[0.1]), ("first.a: loss 'channel'", "1 of 4 values")),
        (change("layers", 0, "g", "error", "block", value=[0.1] * 5), ("first.g: error 'block'", "5 of 4 values")),
        (change("layers", 0, "cosine", "block", value=[1.0]), ("first: cosine 'block'", "1 of 4 values")),
        (change("layers", 0, "a", "loss", "channel", 2, value="low"), ("first.a: loss 'channel'", "finite", "'low'")),
        (change("layers", 0, "cosine", "block", 2, value=None), ("first: cosine 'block'", "finite", "None")),
        (change("layers", 0, "a", "loss", "sideways", value=[0.1] * 4), ("unknown order or split", "first.a")),
        (change("layers", 0, "a", "error", "block+all", value=[0.1] * 4), ("unknown order or split", "first.a")),
        (change("layers", value=[]), ("no layers",)),
        (change("layers", value=3), ("TypeError",)),
        (change("dims", value=[64, 16, 4, 1]), ("dims must", "ascend", "64")),
        (change("dims", value=[0, 4, 16, 64]), ("dims must", "positive", "0")),
        (change("dims", value=[1]), ("dims must", "at least two")),
        (change("threshold", value=1.5), ("threshold", "between 0 and 1", "1.5")),
        (change("calls", "4", "median", value=0.0), ("times must be positive", "0.0")),
        (change("calls", "4", "median", value="fast"), ("times must be positive", "fast")),
        (change("calls", "4", "median", value=float("nan")), ("times must be positive", "nan")),
        (change("refreshes", "4", "timing", "high", value=-1.0), ("times must be positive", "-1.0")),
    ],
)  # fmt: skip
def test_a_part_that_is_missing_or_wrong_is_named(spoil, words, tmp_path):
    path = tmp_path / "profile.json"
    profile().save(path)
    data = json.loads(path.read_text())
    spoil(data)
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError) as caught:
        Profile.load(path)
    assert all(word in str(caught.value) for word in (str(path), *words)), str(caught.value)
