"""The alpha-beta model: what is known of collectives, and of the file that holds measured ones."""

import itertools
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thor.simulation.fit import Sample, fit
from thor.simulation.network import ALGORITHMS, COLLECTIVES, Link, Network, hops_and_volume

ALPHA, BETA = 1e-5, 1e-9
RANKS = st.integers(1, 300)
SIZES = st.floats(0, 1e9)


def uniform(**settings):
    return Network.uniform(Link(ALPHA, BETA), **settings)


@pytest.mark.parametrize(
    ("collective", "algorithm", "ranks", "wanted"),
    [
        ("all_reduce", "ring", 4, (6, 1.5)),  # 2 (p-1) hops, each of a p-th part
        ("all_reduce", "halving", 8, (6, 1.75)),
        ("all_reduce", "halving", 6, (4 + 2, 1.5 + 2)),  # four of them, and two that hand over and get back
        ("all_gather", "ring", 4, (3, 0.75)),
        ("all_gather", "halving", 4, (2, 0.75)),
        ("all_gather", "halving", 8 + 4, (5, 0.875 + 1 / 12 + 1)),  # here only what is theirs, a twelfth
    ],
)
def test_hops_and_volume_by_hand(collective, algorithm, ranks, wanted):
    assert hops_and_volume(collective, ranks, algorithm) == pytest.approx(wanted, rel=1e-12)


@given(RANKS, SIZES, st.sampled_from(COLLECTIVES))
def test_auto_is_the_faster_algorithm_and_one_rank_pays_nothing(ranks, size, collective):
    times = [uniform(algorithm=algorithm).seconds(collective, range(ranks), size) for algorithm in ALGORITHMS]
    assert uniform().seconds(collective, range(ranks), size) == min(times)
    assert uniform().seconds(collective, [3], size) == 0


@given(RANKS.filter(lambda ranks: ranks > 1), SIZES)
def test_an_all_reduce_costs_at_least_the_bandwidth_bound(ranks, size):
    bound = 2 * (ranks - 1) / ranks * size * BETA  # Patarasuk and Yuan, 2009
    assert uniform().seconds("all_reduce", range(ranks), size) >= bound * (1 - 1e-12)


def test_a_group_within_a_node_has_the_links_of_the_node_wherever_it_lies():
    network = Network.uniform(Link(ALPHA, BETA), Link(10 * ALPHA, 10 * BETA), node=4)
    inside = network.seconds("all_gather", (4, 5, 6, 7), 1e6)
    assert inside == uniform().seconds("all_gather", range(4), 1e6)
    assert network.seconds("all_gather", (3, 4, 5, 6), 1e6) == pytest.approx(10 * inside)


def test_an_all_reduce_over_nodes_may_go_by_node_first():
    slow = Link(ALPHA, 100 * BETA)
    network = Network.uniform(Link(ALPHA, BETA), slow, node=4)
    size = 1e8
    inside = uniform().seconds("all_reduce", range(4), size)
    across = Network.uniform(slow).seconds("all_reduce", range(2), size / 4)
    assert network.seconds("all_reduce", range(8), size) == inside + across
    flat = Network.uniform(slow).seconds("all_reduce", range(7), size)
    assert network.seconds("all_reduce", range(7), size) == flat  # 4 and 3 ranks: no equal shares


def test_a_faster_link_between_nodes_is_used_flat():
    """One rank a node: there is nothing to do inside."""
    network = Network.uniform(Link(ALPHA, BETA), Link(ALPHA, 2 * BETA), node=4)
    assert network.seconds("all_reduce", (0, 4), 1e6) == Network.uniform(Link(ALPHA, 2 * BETA)).seconds(
        "all_reduce", (0, 4), 1e6
    )


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_fit_finds_the_links_that_the_times_were_made_with(algorithm):
    links = {name: Link(ALPHA * i, BETA / i) for i, name in enumerate(COLLECTIVES, 1)}
    network = Network(links, algorithm=algorithm)
    samples = [
        Sample(name, ranks, size, network.seconds(name, range(ranks), size))
        for name, ranks, size in itertools.product(COLLECTIVES, (2, 4, 8), (4096, 65536, 2**25))
    ]
    found = fit(samples)
    assert found.network.algorithm == algorithm
    for name, link in links.items():
        assert found.network.links[name].alpha == pytest.approx(link.alpha, rel=1e-6)
        assert found.network.links[name].beta == pytest.approx(link.beta, rel=1e-6)
        assert found.residual[name] < 1e-6
    assert found.network.node == 8 and found.network.between is None


def test_the_residual_is_relative():
    """Times off by a factor of 1.1 up and down in turn: the links are found, and a tenth is left, log 1.1."""
    network = uniform(algorithm="ring")
    samples = [
        Sample(name, 2, size, network.seconds(name, range(2), size) * (1.1 if turn % 2 else 1 / 1.1))
        for name in COLLECTIVES
        for turn, size in enumerate(itertools.chain.from_iterable((2**k, 2**k) for k in range(12, 26)))
    ]
    found = fit(samples)
    for name in COLLECTIVES:
        assert found.residual[name] == pytest.approx(math.log(1.1))
        assert found.network.links[name].beta == pytest.approx(BETA, rel=1e-6)


def test_one_size_tells_no_latency_from_bandwidth():
    with pytest.raises(ValueError, match="all_gather must be measured at two sizes"):
        fit([Sample("all_reduce", 2, size, 1.0) for size in (1, 2)] + [Sample("all_gather", 2, 1, 1.0)])


def test_one_process_is_no_measurement():
    with pytest.raises(ValueError, match="measure with at least 2"):
        fit([Sample(name, 1, size, 1.0) for name in COLLECTIVES for size in (1, 2)])


def test_a_network_survives_its_file(tmp_path):
    network = Network.uniform(Link(ALPHA, BETA), Link(2 * ALPHA, BETA), node=4, algorithm="halving")
    (tmp_path / "network.json").write_text(json.dumps(network.to_dict() | {"host": "a machine"}))
    assert Network.load(tmp_path / "network.json") == network


GOOD = Network.uniform(Link(ALPHA, BETA)).to_dict()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, ("no such file", "scripts/bench/collectives.py")),
        ("{", ("cannot be read as JSON",)),
        ("[]", ("format = 'thor-network'",)),
        (json.dumps(GOOD | {"node": 0}), ("node must be at least 1", "0")),
        (json.dumps(GOOD | {"links": None}), ("links must be given",)),
        (json.dumps(GOOD | {"algorithm": "tree"}), ("algorithm must be one of auto, ring, halving", "'tree'")),
        (json.dumps(GOOD | {"links": {"all_gather": {"alpha": 1, "beta": 1}}}), ("all_reduce, all_gather",)),
        (
            json.dumps(GOOD | {"links": GOOD["links"] | {"all_gather": {"alpha": -1, "beta": 1}}}),
            ("alpha must be finite and at least 0", "-1"),
        ),
        (json.dumps({key: value for key, value in GOOD.items() if key != "node"}), ("KeyError", "node")),
    ],
)
def test_a_bad_file_is_named_with_what_is_wrong(tmp_path, content, words):
    path = tmp_path / "network.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError) as caught:
        Network.load(path)
    assert all(word in str(caught.value) for word in (str(path), *words)), caught.value


@pytest.mark.parametrize(("collective", "algorithm"), [("reduce", "ring"), ("all_reduce", "tree")])
def test_unknown_names_are_refused(collective, algorithm):
    with pytest.raises(ValueError, match="must be one of"):
        hops_and_volume(collective, 2, algorithm)


def test_no_collective_costs_less_than_a_latency():
    assert uniform().seconds("all_gather", range(2), 0) == ALPHA
    assert math.isclose(uniform().seconds("all_reduce", range(2), 0), 2 * ALPHA)
