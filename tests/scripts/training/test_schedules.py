import pytest

from scripts.settings.schedule_settings import Schedule
from scripts.training.schedules import in_words, schedule_function


@pytest.mark.parametrize("shape, middle", [("constant", 1.0), ("linear", 0.5), ("cosine", 0.5), ("polynomial", 0.25)])
def test_shapes_start_full_and_meet_their_middle(shape, middle):
    rate = schedule_function(0.1, Schedule(shape=shape), epochs=4, updates_per_epoch=10)
    assert rate(0) == pytest.approx(0.1)
    assert rate(20) == pytest.approx(0.1 * middle)
    assert all(rate(update) > 0 for update in range(40))


def test_warm_up_rises_to_the_full_rate():
    rate = schedule_function(1.0, Schedule(shape="constant", warmup_epochs=0.5), epochs=2, updates_per_epoch=10)
    assert [rate(update) for update in range(6)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])


def test_final_share_and_end_epoch():
    rate = schedule_function(1.0, Schedule(shape="linear", final=0.2, end_epoch=1.0), 3, 10)
    assert rate(5) == pytest.approx(0.6) and rate(25) == pytest.approx(0.2)


def test_end_in_updates_is_the_end_in_epochs():
    by_update, by_epoch = (
        schedule_function(
            3.0, Schedule(shape="polynomial", power=4.0, final=0.1, **end), epochs=9, updates_per_epoch=10
        )
        for end in ({"end_update": 25}, {"end_epoch": 2.5})
    )
    assert [by_update(update) for update in range(40)] == [by_epoch(update) for update in range(40)]
    assert by_update(24) > by_update(25) == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ({"shape": "constant"}, "0.1, constant"),
        ({"shape": "constant", "warmup_epochs": 2}, "0.1, constant, after 2 epochs of warm-up"),
        ({"shape": "cosine", "final": 0.1}, "0.1, cosine to 0.01 at epoch 4"),
        ({"shape": "polynomial", "end_update": 30000}, "0.1, polynomial of power 2 to 0 at update 30000"),
        (
            {"shape": "thor", "power": 4.5, "end_epoch": 53, "halve_at": [39, 40]},
            "0.1, thor of power 4.5 to 0 at epoch 53, halved at epochs 39, 40",
        ),
    ],
)
def test_a_schedule_in_words(schedule, words):
    assert in_words(0.1, Schedule(**schedule), 4) == words
