"""Markdown taken apart: its blocks of code, and everything else."""

import re
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(r" *(```+)(\w*)")


@dataclass
class Block:
    """A block of code with the fences around it, if any; ``line`` is the page's number of its first line, from 1."""

    language: str
    line: int
    lines: list[str]


def take_apart(page: Path) -> tuple[list[Block], list[str]]:
    """Blocks of code, fenced or indented, and all other lines."""
    blocks, others, end = [], [], None
    for number, line in enumerate(page.read_bytes().decode().split("\n"), 1):
        opens = FENCE.match(line)
        if end is not None:
            blocks[-1].lines.append(line)
            if line.strip() == end:
                end = None
        elif opens:
            end = opens[1]
            blocks.append(Block(opens[2], number, [line]))
        elif line.startswith("    ") and (not others or not others[-1].strip()):
            blocks.append(Block("", number, [line]))
        else:
            others.append(line)
    assert end is None, f"{page}: a block of code without an end"
    return blocks, others
