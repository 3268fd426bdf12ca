import os
from collections import Counter

import pytest

from scripts.run_folder import heartbeat
from scripts.run_folder.heartbeat import DATA, DONE, EVALUATION, STARTING, STEP, Beat, Heart, read
from scripts.training.loop import train
from tests.scripts.training.test_loop import quiet
from tests.support.tiny_runs import tiny_settings


def test_signs_of_life(tmp_path, monkeypatch):
    """The first step of a process, wherever it goes on from, is part of its start."""
    monkeypatch.setenv(heartbeat.VARIABLE, str(tmp_path))
    heart, found = Heart(3), []
    for step, doing in ((0, STARTING), (6, DATA), (6, STEP), (7, DATA), (7, STEP), (8, EVALUATION), (8, DONE)):
        heart.beat(step, doing)
        found.append(read(tmp_path)[3])
    assert [beat.doing for beat in found] == [STARTING] * 3 + [DATA, STEP, EVALUATION, DONE]
    assert [beat.progress for beat in found] == sorted(beat.progress for beat in found)
    assert [beat.at for beat in found] == sorted(beat.at for beat in found)
    assert str(Beat(0, STARTING, 0.0)) == "while starting" and str(found[4]) == "after step 7 (step)"


def test_a_sign_of_life_that_cannot_be_left_ends_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv(heartbeat.VARIABLE, str(tmp_path / "beats"))
    heart = Heart(0)
    heart.beat(0, STARTING)
    (tmp_path / "beats").mkdir()
    heart.beat(1, DATA)
    assert list(read(tmp_path / "beats")) == [0], "the next one is there again"


@pytest.mark.parametrize("role", ["none", "MS_SCHED"])
def test_without_a_launcher_and_in_the_scheduler_nothing_is_left(tmp_path, monkeypatch, role):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(heartbeat.VARIABLE, raising=False)
    if role == "MS_SCHED":
        monkeypatch.setenv(heartbeat.VARIABLE, str(tmp_path))
        monkeypatch.setenv("MS_ROLE", role)
    heart = Heart(0)
    heart.beat(1, STEP)
    monkeypatch.setattr(os, "getppid", lambda: 1)
    assert not list(tmp_path.iterdir()) and not heart.orphaned


@pytest.mark.parametrize(("parent", "orphaned"), [(4711, False), (1, True)])
def test_orphans_notice(tmp_path, monkeypatch, parent, orphaned):
    monkeypatch.setenv(heartbeat.VARIABLE, str(tmp_path))
    monkeypatch.setattr(os, "getppid", lambda: 4711)
    heart = Heart(0)
    monkeypatch.setattr(os, "getppid", lambda: parent)
    assert heart.orphaned == orphaned


def test_a_long_evaluation_gives_a_sign_of_life_with_every_batch(tmp_path, monkeypatch):
    beats: Counter[tuple[int, str]] = Counter()
    monkeypatch.setattr(Heart, "beat", lambda self, step, doing: beats.update([(step, doing)]))
    train(tiny_settings(tmp_path, "momentum", epochs=1, eval_batch_size=8), console=quiet())
    assert beats[10, EVALUATION] == 1 + 5  # when it begins, and 40 images in batches of 8
