"""Progress of a run: a live line on a terminal, otherwise one line per epoch."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

_ROOM_FOR_A_BAR = 100  # terminal columns; a narrower terminal shows only the text


class ProgressDisplay:
    """A context manager that shows the progress of a run."""

    def __init__(
        self, title: str, epochs: int, steps_per_epoch: int, done: int, console: Console, unit: str = "img/s"
    ) -> None:
        self._console = console
        self._title = title
        self._epochs = epochs
        self._steps_per_epoch = steps_per_epoch
        self._progress: Progress | None = None
        self._task = TaskID(0)
        self._metric = ""
        self._unit = unit
        if console.is_terminal:
            bar = [BarColumn(bar_width=12)] if console.width >= _ROOM_FOR_A_BAR else []
            self._progress = Progress(
                TextColumn("[bold]{task.description}"),
                *bar,
                TextColumn("{task.fields[text]}"),
                TimeRemainingColumn(compact=True),
                TextColumn("left"),
                console=console,
                refresh_per_second=5,
                transient=True,
            )
            total = epochs * steps_per_epoch
            self._task = self._progress.add_task(title, total=total, completed=done, text="compiling ...")

    def __enter__(self) -> ProgressDisplay:
        if self._progress:
            self._progress.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._progress:
            self._progress.stop()

    def step(self, step: int, epoch: int, loss: float, ms_per_step: float, examples_per_second: float) -> None:
        """Show a step: its epoch (from 1), its number in the run, and how fast it was."""
        if not self._progress:
            return
        within = (step - 1) % self._steps_per_epoch + 1
        text = (
            f"epoch {epoch}/{self._epochs} step {within}/{self._steps_per_epoch} loss {loss:#.3g}"
            f"{self._metric} {ms_per_step:.0f} ms/step {examples_per_second:.0f} {self._unit}"
        )
        self._progress.update(self._task, completed=step, text=text)

    def epoch(self, epoch: int, train_loss: float, metric: tuple[str, float] | None, seconds: float) -> None:
        """Print the result of an epoch (on a terminal, above the live line)."""
        result = "" if metric is None else f"  test {self._shown(metric)}"
        self._print(f"{self._title}: epoch {epoch}/{self._epochs}  loss {train_loss:.4g}{result}  {seconds:.1f} s")

    def evaluation(self, step: int, metric: tuple[str, float]) -> None:
        """Print the result of an evaluation within an epoch."""
        self._print(f"{self._title}: step {step}  test {self._shown(metric)}")

    def _shown(self, metric: tuple[str, float]) -> str:
        """Format a metric; the live line repeats it from now on."""
        name, value = metric
        shown = f"{name} {value:.2%}" if name == "accuracy" else f"{name} {value:.4g}"
        self._metric = f" {shown}"
        return shown

    def _print(self, text: str) -> None:
        """Print a line, above the live one."""
        console = self._progress.console if self._progress else self._console
        console.print(text, highlight=False, soft_wrap=True)
