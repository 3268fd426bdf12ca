"""The cost of a collective in the alpha-beta model: a fixed time per hop and a time per byte (pure).

    seconds = hops * alpha + volume * bytes * beta

                        ring                      recursive halving and doubling (p a power of two)
    all-reduce          2 (p-1), 2 (p-1)/p        2 log2 p, 2 (p-1)/p
    all-gather          (p-1), (p-1)/p            log2 p, (p-1)/p            bytes: of the gathered result

The entries are hops and volume for p ranks (Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication
Operations in MPICH", 2005). For other p, halving runs on the largest power of two below p. Each remaining rank first
sends its data to one of these ranks (all of it, or for an all-gather 1/p of the gathered result) and receives the
result at the end.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from first_order.checks import check_int, number
from thor.runtime.json_files import parse

COLLECTIVES = ("all_reduce", "all_gather")
ALGORITHMS = ("ring", "halving")
#: "auto": the faster of the two, as communication libraries choose.
CHOICES = ("auto", *ALGORITHMS)
FORMAT = "thor-network"


def hops_and_volume(collective: str, ranks: int, algorithm: str) -> tuple[float, float]:
    """(hops, volume) of a collective: the sequential messages, and the bytes sent per byte of its size."""
    if collective not in COLLECTIVES:
        raise ValueError(f"collective must be one of {', '.join(COLLECTIVES)}, but got {collective!r}")
    if algorithm not in ALGORITHMS:
        raise ValueError(f"algorithm must be one of {', '.join(ALGORITHMS)}, but got {algorithm!r}")
    if ranks == 1:
        return 0.0, 0.0
    passes = 2 if collective == "all_reduce" else 1  # all-reduce: reduce-scatter, then all-gather
    if algorithm == "ring":
        return passes * (ranks - 1), passes * (ranks - 1) / ranks
    power = 1 << (ranks.bit_length() - 1)
    hops, volume = passes * math.log2(power), passes * (power - 1) / power
    if power == ranks:
        return hops, volume
    return hops + 2, volume + 1 + (1 if collective == "all_reduce" else 1 / ranks)


@dataclass(frozen=True)
class Link:
    """A link with a latency of ``alpha`` seconds per hop and ``beta`` seconds per byte."""

    alpha: float
    beta: float

    def __post_init__(self) -> None:
        number("alpha", self.alpha, 0.0)
        number("beta", self.beta, 0.0)


@dataclass(frozen=True)
class Network:
    """The links of each collective, inside a node and between nodes.

    Args:
        links: the link of each collective inside a node; libraries implement collectives differently, so links differ.
        between: the links for groups that span several nodes; None for the same as ``links``.
        node: devices per node; consecutive ranks fill one node after the other.
        algorithm: "ring", "halving" or "auto", the faster of both.
    """

    links: Mapping[str, Link]
    between: Mapping[str, Link] | None = None
    node: int = 8
    algorithm: str = "auto"

    def __post_init__(self) -> None:
        for links in (self.links, self.between):
            if links is not None and set(links) != set(COLLECTIVES):
                raise ValueError(f"links must be given for {', '.join(COLLECTIVES)}, but are for {', '.join(links)}")
        check_int("node", self.node, 1)
        if self.algorithm not in CHOICES:
            raise ValueError(f"algorithm must be one of {', '.join(CHOICES)}, but got {self.algorithm!r}")

    @classmethod
    def uniform(cls, inside: Link, between: Link | None = None, *, node: int = 8, algorithm: str = "auto") -> Network:
        """A network with the same links for every collective."""
        outside = None if between is None else dict.fromkeys(COLLECTIVES, between)
        return cls(dict.fromkeys(COLLECTIVES, inside), outside, node, algorithm)

    def seconds(self, collective: str, group: Sequence[int], size: float) -> float:
        """Seconds of a collective of ``size`` bytes among the ranks of ``group``.

        An all-reduce whose ranks are spread evenly over nodes may be hierarchical: a reduce-scatter inside each node,
        an all-reduce of each share between nodes, and an all-gather inside each node. The faster way counts.
        """
        nodes = Counter(rank // self.node for rank in group)
        if self.between is None or len(nodes) == 1:
            return self._cost(self.links[collective], collective, len(group), size)
        flat = self._cost(self.between[collective], collective, len(group), size)
        local = nodes[group[0] // self.node]
        if collective != "all_reduce" or set(nodes.values()) != {local}:
            return flat
        inside = self._cost(self.links[collective], collective, local, size)
        return min(flat, inside + self._cost(self.between[collective], collective, len(nodes), size / local))

    def _cost(self, link: Link, collective: str, ranks: int, size: float) -> float:
        """Seconds on one kind of link, with the network's algorithm."""
        times = []
        for algorithm in ALGORITHMS if self.algorithm == "auto" else (self.algorithm,):
            hops, volume = hops_and_volume(collective, ranks, algorithm)
            times.append(hops * link.alpha + volume * size * link.beta)
        return min(times)

    def to_dict(self) -> dict[str, Any]:
        """The content of the JSON file."""
        return {"format": FORMAT} | asdict(self)

    @classmethod
    def load(cls, path: str | Path) -> Network:
        """What ``scripts/bench/collectives.py`` wrote; a ValueError says what is wrong with it."""
        try:
            data = parse(Path(path).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ValueError(
                f"{path}: no such file; measure one with: python scripts/bench/collectives.py --out {path}"
            ) from None
        except (OSError, ValueError) as error:
            raise ValueError(f"{path}: cannot be read as JSON: {error}") from error
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise ValueError(f"{path}: not measured collectives of thor (no format = {FORMAT!r})")
        try:
            inside, outside = (
                None if data[key] is None else {name: Link(**link) for name, link in data[key].items()}
                for key in ("links", "between")
            )
            if inside is None:
                raise ValueError("links must be given")
            return cls(inside, outside, data["node"], data["algorithm"])
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise ValueError(f"{path}: a part is missing or wrong: {type(error).__name__}: {error}") from error
