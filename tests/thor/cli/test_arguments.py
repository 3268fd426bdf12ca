"""Values of command-line options: what is read, and the message where it is refused."""

from pathlib import Path

import pytest

from thor.cli import arguments
from thor.runtime.errors import UserError


def test_what_is_read():
    assert arguments.counts("--devices", "64,8,8") == [8, 64]
    assert arguments.fractions("--fractions", "0.5,0.125") == [0.125, 0.5]
    assert arguments.block_sizes("--dims", "16,1,16") == [1, 16]
    assert arguments.shape("--input", "8,3,224,224") == (8, 3, 224, 224)
    assert arguments.share("--threshold", 0.5) == 0.5
    assert arguments.budget("--budget", float("inf")) == float("inf")
    assert arguments.one_of("--device", "cpu", ("CPU", "GPU")) == "CPU"
    assert arguments.not_negative("--latency-us", 0) == 0
    assert arguments.json_with_picture("--out", Path("a.json")) == Path("a.json")
    assert arguments.profile_with_picture("--out", Path("a")) == Path("a")


@pytest.mark.parametrize(
    ("check", "value", "words"),
    [
        (arguments.counts, "8,x", "'8,x': give numbers with commas between them, as in 8,64,256"),
        (arguments.counts, "0,8", "must be at least 1, but got 0"),
        (arguments.fractions, "half", "'half': give numbers with commas between them, as in 0.5,0.125"),
        (arguments.block_sizes, "16", "'16': give at least two different positive integers, as in 1,16,32,64"),
        *(
            (arguments.shape, bad, f"{bad!r}: give batch,channels,... as positive integers, as in 8,3,224,224")
            for bad in ("8", "8,x", "8,0", "8,-1", "", "8;3")
        ),
        (arguments.share, 1.0, "must lie between 0 and 1, but got 1.0"),
        (arguments.share, float("nan"), "must lie between 0 and 1, but got nan"),
        (arguments.positive, 0.0, "must be finite and greater than 0, but got 0.0"),
        (arguments.not_negative, -1.0, "must be finite and at least 0, but got -1.0"),
        (arguments.budget, 0.0, "must be greater than 0 seconds, but got 0.0"),
        (arguments.budget, float("nan"), "must be greater than 0 seconds, but got nan"),
        (arguments.json_with_picture, Path("a.png"), "a.png: give a name that ends in .json"),
        (arguments.profile_with_picture, Path("a.png"), "a.png: the picture is written beside the profile"),
    ],
)
def test_what_is_refused_has_option_value_and_what_is_allowed(check, value, words):
    with pytest.raises((UserError, ValueError)) as caught:
        check("--option", value)
    assert str(caught.value).startswith("--option ") and words in str(caught.value)


def test_a_name_that_is_none_of_the_allowed():
    with pytest.raises(UserError, match="--device TPU: must be one of CPU, GPU"):
        arguments.one_of("--device", "TPU", ("CPU", "GPU"))
