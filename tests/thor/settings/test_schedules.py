import mindspore as ms
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mindspore import nn

import thor
from thor.settings.schedules import HostSchedule

STEPS = 5004  # per epoch: ImageNet at a global batch of 256

# The recipe for ResNet-50 on ImageNet, to the digits published with it: epoch, then learning rate and damping.
ASCEND = [
    (1 / 5004, 0.0580291, 0.0299996),
    (1, 0.0536869, 0.027993),
    (10, 0.0247061, 0.0150108),
    (20, 0.00838188, 0.0075108),
    (30, 0.00191886, 0.00375811),
    (39, 0.000126335, 0.00201522),
    (40, 4.66719e-05, 0.00188041),
]
GPU = [
    (1 / 5004, 0.0567189, 0.0234497),
    (1, 0.0513028, 0.0220759),
    (10, 0.0187163, 0.0128201),
    (20, 0.00448163, 0.00700876),
    (30, 0.000597712, 0.00383169),
    (39, 1.5325e-05, 0.00222518),
    (40, 4.77204e-06, 0.00209478),
]
RECIPES = [
    (ASCEND, thor.PolynomialRate(0.05803, 4.0839, 53, STEPS), thor.ExponentialDamping(0.03, 0.50036, STEPS)),
    (GPU, thor.PolynomialRate(0.05672, 4.9687, 50, STEPS), thor.ExponentialDamping(0.02345, 0.5467, STEPS)),
]


@pytest.mark.parametrize(("table", "rate", "damping"), RECIPES, ids=["Ascend", "GPU"])
def test_the_published_recipe(table, rate, damping):
    for epoch, expected_rate, expected_damping in table:
        step = round(epoch * STEPS) - 1
        assert rate(step) == pytest.approx(expected_rate, rel=5e-6)  # half a unit in the sixth digit
        assert damping(step) == pytest.approx(expected_damping, rel=2e-5)  # the table prints five to six


def test_the_rate_is_zero_from_its_end_on():
    rate = thor.PolynomialRate(0.1, 2.0, 10, 100)
    assert rate(998) > 0
    assert rate(999) == rate(5000) == 0


def test_the_rate_halves_in_the_named_epochs_alone():
    plain, halved = (thor.PolynomialRate(0.1, 2.0, 50, 10, halve_at=at) for at in ((), (3, 4)))
    ratios = [halved(step) / plain(step) for step in (28, 29, 38, 39)]
    assert ratios == [1, 0.5, 0.5, 0.25]


def test_the_interval_grows_by_its_factor_up_to_its_end():
    interval = thor.GrowingInterval(10, 100, 1.5)
    step, taken = 0, []
    while len(taken) < 9:
        taken.append(interval(step))
        step += taken[-1]
    assert taken == [10, 15, 22, 33, 50, 75, 100, 100, 100]


@given(st.integers(1, 50), st.integers(0, 500), st.floats(1, 3), st.lists(st.integers(0, 10**6), max_size=10))
def test_an_interval_never_shrinks_and_stays_in_its_bounds(start, more, factor, steps):
    interval = thor.GrowingInterval(start, start + more, factor)
    found = [interval(step) for step in sorted(steps)]
    assert found == sorted(found)
    assert all(isinstance(value, int) and start <= value <= start + more for value in found)
    assert interval(0) == start


@given(st.integers(1, 50), st.integers(0, 500), st.floats(1.001, 3), st.integers(1, 600))
def test_the_step_of_a_length_is_the_first_with_an_interval_so_long(start, more, factor, length):
    interval = thor.GrowingInterval(start, start + more, factor)
    first, reached = interval.step_of(length), min(length, start + more)
    assert interval(first + 1) >= reached  # one step of slack for rounding
    assert first == 0 or interval(first - 2 if first > 1 else 0) < reached


def test_a_factor_of_one_is_a_constant_interval():
    assert thor.GrowingInterval(7, 100, 1.0).step_of(50) == 0
    assert {thor.GrowingInterval(7, 100, 1.0)(step) for step in range(1000)} == {7}


def test_a_host_schedule_takes_numbers_callables_and_mindspores_own():
    assert HostSchedule("damping", 0.5)(3) == 0.5
    assert HostSchedule("damping", lambda step: 0.1 * (step + 1))(3) == pytest.approx(0.4)
    cell = nn.ExponentialDecayLR(0.1, 0.9, 4, is_stair=True)
    assert HostSchedule("damping", cell)(8) == pytest.approx(0.081)
    assert HostSchedule("damping", lambda step: ms.Tensor(0.25))(0) == 0.25
    assert HostSchedule("interval", lambda step: np.int64(3), low=1, above=False, integer=True)(0) == 3


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: thor.PolynomialRate(-1, 4, 53, 10), ("PolynomialRate", "initial", "-1", "positive")),
        (lambda: thor.PolynomialRate(1, 4, 53, 0), ("steps_per_epoch", "0", "positive")),
        (lambda: thor.ExponentialDamping(0.1, 0, 10), ("ExponentialDamping", "decay", "0", "positive")),
        (lambda: thor.GrowingInterval(0, 10), ("start", "0", "at least 1")),
        (lambda: thor.GrowingInterval(10, 5), ("end", "5", "at least start=10")),
        (lambda: thor.GrowingInterval(1, 5, 0.5), ("factor", "0.5", "at least 1")),
        (lambda: thor.GrowingInterval(1, 5, float("inf")), ("GrowingInterval factor", "inf", "finite")),
        (lambda: thor.PolynomialRate(1, 4, 53, 10, (39, -1)), ("PolynomialRate halve_at[1]", "-1", "at least 0")),
        (lambda: HostSchedule("damping", lambda step: -1.0)(7), ("damping", "-1.0", "step 7", "greater than 0")),
        (lambda: HostSchedule("damping", lambda step: float("nan"))(7), ("damping", "nan", "finite")),
    ],
)
def test_a_wrong_schedule_is_refused_with_name_value_and_what_is_allowed(make, words):
    with pytest.raises(ValueError) as caught:
        make()
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: thor.GrowingInterval(1, 5, "2"), "GrowingInterval factor must be a number, but got '2' of type str"),
        (
            lambda: thor.PolynomialRate(1, 4, 53, 10, halve_at=39),
            r"halve_at must be a tuple of epochs, such as .*\(39,\) or \(\), but got 39 of type int",
        ),
        (lambda: thor.PolynomialRate(1, 4, 53, 10, ("39",)), r"halve_at\[0\] must be a number, but got '39'"),
    ],
)
def test_a_wrong_type_in_a_schedule_is_refused_at_construction(make, message):
    with pytest.raises(TypeError, match=message):
        make()
