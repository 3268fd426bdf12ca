"""Fits latency and bandwidth of a network to measured collectives by least squares (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from thor.simulation.network import ALGORITHMS, COLLECTIVES, Link, Network, hops_and_volume


@dataclass(frozen=True)
class Sample:
    """One measured collective of ``size`` bytes among ``ranks`` processes; an all-gather counts the gathered bytes."""

    collective: str
    ranks: int
    size: int
    seconds: float


@dataclass(frozen=True)
class Fit:
    """A network and, per collective, the residual: the root mean square of log(fitted / measured).

    A residual of 0.1 is an error of about 10 %.
    """

    network: Network
    residual: dict[str, float]


def fit(samples: Sequence[Sample]) -> Fit:
    """Fit alpha and beta of every collective, with the algorithm that has the smallest residuals.

    The residuals are log(fitted / measured). Message sizes span decades: absolute differences would weigh only the
    largest messages, and relative differences would favour times that are too short.

    Raises:
        ValueError: if a collective has fewer than two sizes, or a sample has only one process.
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
    # samples come from one machine, so all ranks are one node
    return Fit(Network(links, node=max(sample.ranks for sample in samples), algorithm=algorithm), residual)


def _fit_link(terms: NDArray[np.float64], seconds: NDArray[np.float64]) -> tuple[Link, float]:
    """The link that fits ``terms`` [n, 2] @ (alpha, beta) to ``seconds`` [n] in the logarithm, and the residual."""
    logs = np.log(seconds)

    def difference(link: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.log(terms @ np.exp(link)) - logs  # link holds log(alpha), log(beta): both stay positive

    start = np.log((seconds / terms.T).min(axis=1))  # the largest alpha for beta = 0, and beta for alpha = 0
    found = least_squares(difference, start, xtol=1e-12, ftol=1e-12)
    alpha, beta = (float(value) for value in np.exp(found.x))
    return Link(alpha, beta), float(np.sqrt(np.mean(np.square(found.fun))))
