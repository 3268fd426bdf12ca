"""From measured collectives to a network's latency and bandwidth: least squares (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from thor.simulation.network import ALGORITHMS, COLLECTIVES, Link, Network, hops_and_volume


@dataclass(frozen=True)
class Sample:
    """One measured collective: ``size`` bytes (of an all-gather: the gathered whole) among ``ranks`` processes."""

    collective: str
    ranks: int
    size: int
    seconds: float


@dataclass(frozen=True)
class Fit:
    """A network, and per collective the root mean square of log(fitted / measured): 0.1 is off by a tenth."""

    network: Network
    residual: dict[str, float]


def fit(samples: Sequence[Sample]) -> Fit:
    """The alpha and beta of every collective, with the algorithm that explains the times best.

    What is squared is log(fitted / measured): over four decades of size, differences would see the largest messages
    alone, and relative differences would favour times that are too short.

    Raises:
        ValueError: where a collective has fewer than two sizes, or a single process sent to itself.
    """
    for name in COLLECTIVES:
        if len({sample.size for sample in samples if sample.collective == name}) < 2:
            raise ValueError(f"{name} must be measured at two sizes at least, to tell latency from bandwidth")
    if min(sample.ranks for sample in samples) < 2:
        raise ValueError("a collective of one process costs nothing; measure with at least 2")
    fits = [_fit_as(samples, algorithm) for algorithm in ALGORITHMS]
    return min(fits, key=lambda found: sum(found.residual.values()))


def _fit_as(samples: Sequence[Sample], algorithm: str) -> Fit:
    links, residual = {}, {}
    for name in COLLECTIVES:
        own = [sample for sample in samples if sample.collective == name]
        shape = np.array([hops_and_volume(name, sample.ranks, algorithm) for sample in own])
        terms = shape * np.array([(1.0, sample.size) for sample in own])
        links[name], residual[name] = _fit_link(terms, np.array([sample.seconds for sample in own]))
    # what was measured is one machine: all its ranks are one node
    return Fit(Network(links, node=max(sample.ranks for sample in samples), algorithm=algorithm), residual)


def _fit_link(terms: NDArray[np.float64], seconds: NDArray[np.float64]) -> tuple[Link, float]:
    """The link for which ``terms`` [n, 2] @ (alpha, beta) is nearest to ``seconds`` [n], and the residual."""
    logs = np.log(seconds)

    def difference(link: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.log(terms @ np.exp(link)) - logs  # of logarithms, so that both stay positive

    start = np.log((seconds / terms.T).min(axis=1))  # the most that each can be without the other
    found = least_squares(difference, start, xtol=1e-12, ftol=1e-12)
    alpha, beta = (float(value) for value in np.exp(found.x))
    return Link(alpha, beta), float(np.sqrt(np.mean(np.square(found.fun))))
