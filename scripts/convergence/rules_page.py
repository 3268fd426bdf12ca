"""Writes docs/results/rules.md: the rules of the benchmark in words, from the rules file.

python scripts/convergence/rules_page.py            # run it after the rules have changed
python scripts/convergence/rules_page.py --check    # status 1 if the page has to be written anew
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.common.atomic_write import write_atomically  # noqa: E402
from scripts.common.errors import run_program  # noqa: E402
from scripts.convergence import plan, rules  # noqa: E402
from scripts.convergence.rules import LENGTH, Contender, Range, Rules, Space  # noqa: E402

PAGE = Path(__file__).resolve().parents[2] / "docs" / "results" / "rules.md"
SMALL = rules.DEFAULT.with_name("rules_small.yaml")

WORDS = """\
# The rules of the benchmark

`scripts/convergence/run.py` compares optimizers by rules that are fixed before the first run with a test seed. They are
data, in `scripts/convergence/rules.yaml`, and this page is made from that file. No setting is changed afterwards. If a
bug forces a change, everything that it concerns is run again. The result is published however it comes out.

## The search

- Every optimizer is tuned on every task by **{trials} runs** with seed {tuning_seed}. A setting outside its space
  below has its default.
- The first run is the **first guess**: the values that a user would begin with. The others are points of a scrambled
  Sobol sequence (seed {search_seed}) over the space. Ranges are searched on a logarithmic scale.
- Every optimizer searches its learning rate and the length of its schedule, which is {lengths} of the task's epochs.
  The shape of the schedule, the weight decay, and momentum or the first beta are searched too, as far as the table of
  the optimizers has them. All of them share the same {trials} runs, and so do a method's own settings where they are
  searched.
- {sharers} takes over the values of {shared}. The two differ in the trace rule only.
- Two trials of each search are kept: the one that reaches the target in the fewest epochs, and the one with the best
  final value. If no trial reaches the target, the one with the best final value takes both places. Of equal trials
  the earlier one counts.

## The target

The target of a task is the best final value in the search of {setters}, with its error or loss increased by
{slack:.0%}. No run with a test seed has a part in it. An optimizer may set the target and miss it with other seeds.
That counts like any other miss.

## What is measured

The runs that count have the seeds {test_seeds}. A seed gives every optimizer the same initial weights and the same
order of the examples. The optimizers take turns, seed by seed, on one machine.

1. **Time to target.** Each optimizer has the values that reached the target first, with their length of the schedule.
   The cost is counted up to the first evaluation that is at least as good as the target: epochs, seconds without
   compiling, and seconds with compiling. Evaluations take no part in the seconds. If runs trained at the same time,
   seconds are taken from one more run of each optimizer with its first seed, one run at a time on a machine that does
   nothing else. They hold for all seeds, which do the same work.
2. **Equal budget.** Each optimizer has the values that ended best, with a schedule over all epochs of the task. The
   value at the end counts.

Both comparisons also tell the peak memory of the process, and how many inverses or eigenbases THOR computed.

- A number of a table is the **median over the seeds**. A picture's band reaches from the lowest to the highest seed.
- A **miss** is a run that does not reach the target. Its cost is infinite, so that a median is finite only if more
  than half of the seeds reach the target. The table tells how many do.
- A run **breaks down** if its loss or its gradients are not finite. Its final value is worse than any other, and it is
  a miss.
- A **tie**: optimizers that reach the target at the same evaluation are equal in epochs.
- *What tuning buys* compares the first guess with the best of the {trials} trials. Both have seed {tuning_seed}, so
  that chance favours the best of several.

## What is not equal

- On the first four tasks many settings were tried before these rules were written, most of them of THOR with a
  damping. THOR's defaults with eigenbases, such as the factor of its rate and its growing interval, were chosen on
  these tasks too, and the benchmark does not search them. The ranges of all optimizers there contain what worked. On
  `bible` no setting was explored, and on `vit` only the thresholds of THOR_stop, with seed 11
  ([table](untuned.md#the-trace-rule-with-eigenbases)). The ranges of both are those of like tasks.
- Two things were changed after a first search, before any run with a test seed. On the autoencoder all five trials of
  the paper's THOR had broken down, so that the range of its rate was moved down by a factor of ten. SOAP was searched
  anew, for its eigenbases had not been orthogonal in directions without curvature.
- One contender was run again after runs with test seeds: inverses without a damping, on the autoencoder. Their default
  trace rule had stopped all layers within the first steps, which those runs brought to light. The default was mended
  before any run of this contender on another task.
- Seconds were measured again, of all optimizers of a task in turns. At first the whole of a run's first steps had
  counted as compiling, and not only what the compiler took of them. Then the computation of THOR's step became faster,
  and its compilation. Epochs and values are those of the first runs, which made the same steps up to rounding.
- Muon was run again on the language model, trials included. Its runs had given one of 13 hidden matrices to AdamW,
  because the output layer has no matrix of its own there. Muon's loss at equal budget fell from 5.142 to 4.942.
- K-FAC is THOR's code with inverses of whole factors and a relative damping. Each layer's step is as long as its
  gradient (`graft`), and goes through Momentum. All other optimizers are this project's own code too. Tests compare
  Adam with TensorFlow's, and Adafactor and Muon with PyTorch's.
- Weight decay is coupled for Momentum, Adam, Adafactor and all inverses, and decoupled for Muon, SOAP and THOR in
  eigenbases. AdamW takes no part.
- SOAP renews its eigenbases at every tenth step, its authors' default. THOR renews them at every step at first, and
  at every hundredth later. Neither interval is searched.
- Few trials and a few seeds leave chance a part. The pictures' bands show how large it is.

"""


def page(fixed: Rules, small: Rules) -> str:
    """The whole page."""
    sharers = {name: each for name, each in fixed.contenders.items() if each.tuned_as is not None}
    words = WORDS.format(
        trials=fixed.trials,
        tuning_seed=fixed.tuning_seed,
        search_seed=fixed.search_seed,
        lengths=_values(fixed.spaces[LENGTH]),
        sharers=_join([each.title for each in sharers.values()]),
        shared=_join(list(dict.fromkeys(fixed.contenders[fixed.searched_as(name)].title for name in sharers))),
        setters=_join([fixed.contenders[name].title for name in fixed.target.set_by]),
        slack=fixed.target.slack,
        test_seeds=_join([str(seed) for seed in fixed.test_seeds]),
    )
    parts = [_filled(words), "## The optimizers\n", *_optimizers(fixed), "\n## The tasks\n", *_tasks(fixed)]
    parts += ["\n## What is aimed at\n", *_goals(fixed)]
    parts += ["\n## How long it takes\n", *_hours(fixed, small)]
    return "\n".join(parts) + "\n"


def _goals(fixed: Rules) -> Iterator[str]:
    """A table of the goals."""
    yield "Costs to the target, as shares of the lowest cost of those that set the target, and of all first-order"
    yield "optimizers. At equal budget it is to end no worse than any of them. Tables have in bold what is missed.\n"
    yield "| task | optimizer | epochs | seconds | seconds, of all | seconds with compiling, of all |"
    yield "|---|---|---|---|---|---|"
    for name, task in fixed.tasks.items():
        if (goals := task.goals) is not None:
            shares = (goals.epochs, goals.seconds, goals.seconds_of_all, goals.with_compiling_of_all)
            cells = ["-" if share is None else f"{share:g}" for share in shares]
            yield f"| {name} | {fixed.contenders[goals.contender].title} | {' | '.join(cells)} |"


def _filled(words: str) -> str:
    """Markdown with its paragraphs and items broken into lines anew, for they have changed with what was put in."""
    parts: list[str] = []
    for line in words.splitlines():
        begins = not line or line.startswith(("#", "- ", "1. ", "2. "))
        if begins or not parts or not parts[-1] or parts[-1].startswith("#"):
            parts.append(line)
        else:
            parts[-1] += f" {line.strip()}"
    lines = []
    for part in parts:
        indent = " " * (2 if part.startswith("- ") else 3 if part[:2] in ("1.", "2.") else 0)
        fill = textwrap.TextWrapper(120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False).fill
        lines.append(part if part.startswith("#") else fill(part))
    return "\n".join(lines)


def _optimizers(fixed: Rules) -> Iterator[str]:
    """A table of the optimizers, with their spaces; a name in italics is one of the task's spaces."""
    yield "A word in italics is a space of the task, in the next table. *schedule* is one of:"
    yield f"{_values(fixed.spaces['schedule'])}.\n"
    yield "| optimizer | is searched | is fixed |"
    yield "|---|---|---|"
    for each in fixed.contenders.values():
        searched = [f"`{path}` {_space(space)}" for path, space in each.space.items() if path != LENGTH]
        yield f"| {each.title} | {', '.join(searched) or 'nothing'} | {_fixed(fixed, each)} |"


def _fixed(fixed: Rules, contender: Contender) -> str:
    """What a contender does not search."""
    parts = [f"`{path}` {_value(value)}" for path, value in contender.fixed.items()]
    if contender.preset is not None:
        parts.insert(0, "the published settings (`thor.presets.paper`), its schedules stretched over the run")
    if contender.tuned_as is not None:
        parts.insert(0, f"the values of {fixed.contenders[contender.tuned_as].title}")
    return ", ".join(parts) or "-"


def _tasks(fixed: Rules) -> Iterator[str]:
    """A table of the tasks, and one of their spaces."""
    yield "| task | network and data | epochs | steps an epoch | metric |"
    yield "|---|---|---|---|---|"
    for name, task in fixed.tasks.items():
        yield f"| {name} | {task.title} | {task.epochs} | {task.steps_per_epoch} | `{task.metric}` |"
    yield "\nA range is told as low, **first guess**, high.\n"
    names = list(dict.fromkeys(space for task in fixed.tasks.values() for space in task.spaces))
    yield f"| task | {' | '.join(f'*{name}*' for name in names)} |"
    yield "|---" * (len(names) + 1) + "|"
    for task_name, task in fixed.tasks.items():
        cells = [_space(task.spaces[name]) if name in task.spaces else "-" for name in names]
        yield f"| {task_name} | {' | '.join(cells)} |"


def _hours(fixed: Rules, small: Rules) -> Iterator[str]:
    """The two rules files with their numbers of runs."""
    yield "Estimated for one core of an AMD EPYC; `run.py --dry-run` tells it for each task.\n"
    yield "| rules | trials | test runs, at most | hours on one core |"
    yield "|---|---|---|---|"
    for path, own in ((rules.DEFAULT, fixed), (SMALL, small)):
        whole = plan.total(plan.plan(own, list(own.tasks), list(own.contenders)))
        yield f"| `{path.name}` | {whole.trials} | {whole.tests} | {whole.core_hours:.0f} |"
    yield f"\n`{SMALL.name}` has the same optimizers and spaces, with these differences:\n"
    yield f"- test seeds {_join([str(seed) for seed in small.test_seeds])}; lengths {_values(small.spaces[LENGTH])};"
    changed = [
        f"{name} {task.epochs}"
        + ("" if task.examples == fixed.tasks[name].examples else f" of {task.examples} examples")
        for name, task in small.tasks.items()
    ]
    yield f"- epochs: {', '.join(changed)}."


def _space(space: Space | str) -> str:
    """A space, or the name of one."""
    if isinstance(space, str):
        return f"*{space}*"
    if isinstance(space, Range):
        return f"{space.low:g}, **{space.first:g}**, {space.high:g}"
    return _values(space)


def _values(space: Space) -> str:
    """The values of a list, the first guess in bold."""
    if isinstance(space, Range):
        return _space(space)
    first, *others = map(_value, space)
    return _join([f"**{first}**" if others else first, *others], "or")


def _value(value: Any) -> str:
    """A value as in the file."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_value(each)}" for key, each in value.items()) + "}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _join(words: Sequence[str], last: str = "and") -> str:
    """Words in a sentence: a, b and c."""
    *others, final = words
    return f"{', '.join(others)} {last} {final}" if others else final


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page, or check it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 if the page is not up to date")
    options = parser.parse_args(arguments)
    text = page(rules.load(rules.DEFAULT), rules.load(SMALL))
    if options.check:
        return int(not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text)
    write_atomically(PAGE, text)
    return 0


if __name__ == "__main__":
    run_program(main)
