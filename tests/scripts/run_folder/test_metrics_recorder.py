"""What a resumed run keeps of its lines, and what it will write again."""

import csv

import pytest

from scripts.run_folder.metrics_recorder import Recorder, read_metrics
from scripts.run_folder.progress_record import Position
from thor.curvature.trace_rule import Decision, RefreshRecord


@pytest.mark.parametrize(
    ("position", "kept"),
    [
        (Position(step=8, step_in_epoch=8), ["step"]),
        (Position(step=9, step_in_epoch=9), ["step", "refresh"]),
        (Position(step=10, step_in_epoch=10), ["step", "refresh", "step"]),  # saved before the evaluation
        (Position(step=10, epoch=1), ["step", "refresh", "step", "epoch"]),
    ],
)
def test_lines_that_are_to_come_again_go(tmp_path, position, kept):
    recorder = Recorder(tmp_path)
    recorder.step(step=8, epoch=0.8, loss=2.0, ms_per_step=1.0, seconds=0.8)
    recorder.refresh(9, RefreshRecord(4, "layer", 1.0, None, Decision.UPDATE))  # of two batches an update
    recorder.step(step=10, epoch=1.0, loss=2.0, ms_per_step=1.0, seconds=1.0)
    recorder.epoch(step=10, epoch=1, train_loss=2.0, seconds=1.0, compiling=0.1)
    recorder.close()
    Recorder(tmp_path, position).close()
    assert [line["kind"] for line in read_metrics(tmp_path)] == kept
    with (tmp_path / "refreshes.csv").open() as file:
        assert [row["step"] for row in csv.DictReader(file)] == ["9"] * kept.count("refresh")
