"""The theorems of thor/ over networks drawn at random: operator by operator (jit=False), one of them compiled too.

``THOR_FUZZ_CASES=300`` draws that many networks for each theorem, other ones in every run; without it a few, always the
same. A failure prints the smallest plan that Hypothesis finds for it.
"""

import os
import tempfile
from contextlib import contextmanager
from unittest import mock

import mindspore as ms
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from mindspore import nn

import thor
from tests.support import random_reference as wanted
from tests.support import reference
from tests.support.networks import make, values
from tests.support.random_networks import batches, build, loss_fn, plans
from thor.factors import blocks, formulas

CASES = int(os.environ.get("THOR_FUZZ_CASES", "0"))
FUZZ = settings(
    max_examples=CASES or 6, deadline=None, derandomize=not CASES, database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)  # fmt: skip
FUZZ_STEPS = settings(FUZZ, max_examples=CASES // 3 + 1 if CASES else 3)  # six steps a network instead of one
FUZZ_COMPILED = settings(FUZZ, max_examples=CASES // 10 + 1 if CASES else 4)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.LayerNorm)
EPSILON = float(np.finfo(np.float32).eps)


def draw(plan, count=1):
    """The plan's network and its batches."""
    return build(plan), batches(plan, wanted.output_shape(plan), count)


def optimize(plan, net, **options):
    """(optimizer, step) with the plan's settings."""
    chosen = thor.BlockPlan(block_size=plan.block_size, split=plan.split, rank=plan.rank, order=plan.order)
    given_ = {"lr": 1.0, "damping": plan.damping, "block_size": chosen, "skip": skipped(plan),
              "factor_share": plan.share} | options  # fmt: skip
    operations = blocks.WHOLE_INVERSE_OPERATIONS if plan.whole else -1
    with convolutions(plan), mock.patch.object(blocks, "WHOLE_INVERSE_OPERATIONS", operations):
        return make(net, loss_fn=loss_fn, **given_)


@contextmanager
def convolutions(plan):
    """Convolutions, and the gathering of their factors, take the plan's way."""
    positions = 1 if plan.parts else formulas.PART_POSITIONS
    with mock.patch.dict(os.environ, {"THOR_CONVOLUTION": plan.path}), \
            mock.patch.object(formulas, "PART_POSITIONS", positions):  # fmt: skip
        yield


def cells_of(plan, net, name):
    """A layer's Cells: two where they are tied."""
    index = int(name.split(".")[1])
    tied = plan.layers[plan.names.index(name)].use == "tied"
    return {f"layers.{i}": net.layers[i] for i in range(index, index + 1 + tied)}


def skipped(plan):
    """Patterns for the layers that a plan skips."""
    found = [(name, layer) for name, layer in zip(plan.names, plan.layers, strict=True) if layer.aside == "skipped"]
    index = [int(name.split(".")[1]) for name, _ in found]
    return [rf"^layers\.({i}|{i + (layer.use == 'tied')})$" for i, (_, layer) in zip(index, found, strict=True)]


def probes(optimizer, name):
    """Q of A and of G per copy, before they turn."""
    layer = next(y for y in optimizer.captured if y.name == name)
    made = []
    for factor in (layer.a, layer.g):
        q = factor.probe.asnumpy().astype(np.float64)
        made.append(list(q[:, : factor.cut.dim]) if factor.cut.split == "block+rank" else [None] * factor.copies)
    return list(zip(*made, strict=True))


def by_group(factor, diagonal):
    """``optimizer.factors`` with its axis of groups, whatever their number."""
    return factor if factor.ndim == (2 if diagonal else 3) else factor[None]


def ordered(plan, layer, sums):
    """A convolution's A in the order in which it is cut, and that order."""
    dim = len(sums.matrix)
    cut = layer.kind == "conv" and plan.order == "position" and dim > plan.block_size
    order = wanted.position_order(layer) if cut else np.arange(dim)
    if sums.matrix.ndim == 1:
        return sums, order
    return wanted.Sums(sums.matrix[np.ix_(order, order)], sums.mean[order], sums.uses), order


def split_pair(plan, layer, pair, probe):
    """What stands for (A, G): the whole matrices' approximations by the split; None where float32 cannot tell them."""
    (a, _), g = ordered(plan, layer, pair[0]), pair[1]
    found = []
    for sums, bias, q in ((a, layer.homogeneous, probe[0]), (g, False, probe[1])):
        if sums.matrix.ndim == 1:
            found.append(np.diag(sums.matrix))
        elif q is not None and wanted.probe_condition(sums.matrix, q) == np.inf:
            found.append(None)  # Q^T A Q is singular to float32: which directions count is a matter of rounding
        else:
            found.append(sum(wanted.split(sums, plan, bias, q)))
    return found


def close(found, target, scale, message):
    """Largest difference, relative to a scale that both are sums of."""
    difference = np.abs(np.asarray(found, np.float64) - target).max()
    assert difference <= scale, f"{message}: off by {difference:.3g}, where {scale:.3g} is rounding"


@FUZZ
@given(plans())
def test_attaching_changes_nothing_and_detaching_undoes_it(plan):
    net, ((x, _),) = draw(plan)
    net.set_train(False)
    before, output = values(net), net(x).asnumpy()
    kinds = {name: type(cell) for name, cell in net.cells_and_names()}
    keys = {name: set(vars(cell)) for name, cell in net.cells_and_names()}
    optimizer, _ = optimize(plan, net)
    net.set_train(False)
    assert [record.name for record in optimizer.layers] == [name for name, _ in plan.captured()]
    assert [name for name, _ in net.cells_and_names()] == list(kinds)
    assert all(isinstance(cell, kinds[name]) for name, cell in net.cells_and_names())
    assert list(values(net)) == list(before)
    assert all(value.tobytes() == before[name].tobytes() for name, value in values(net).items())
    attached = net(x).asnumpy()
    if plan.path == "native":
        np.testing.assert_array_equal(attached, output)
    else:  # sums of patches are taken in another order
        close(attached, output, 1e-5 * max(1.0, np.abs(output).max()), "output")
    thor.detach(net)
    assert {name: type(cell) for name, cell in net.cells_and_names()} == kinds
    assert {name: set(vars(cell)) for name, cell in net.cells_and_names()} == keys
    np.testing.assert_array_equal(net(x).asnumpy(), output)


@FUZZ
@given(plans())
def test_factors_equal_the_gram_matrices_of_what_each_layer_saw_and_sent_back(plan):
    """Gathered and not refreshed, so that "block+rank" still stands on the probe it began with."""
    net, ((x, target),) = draw(plan)
    made = wanted.run_twin(plan, x, target)
    optimizer, step = optimize(plan, net, lr=0.0)
    starts = {name: probes(optimizer, name) for name, _ in plan.captured()}
    optimizer.own_state.next_refresh.set_data(ms.Tensor([10**9], ms.int32))
    with convolutions(plan):
        step(x, target)
    for name, layer in plan.captured():
        pairs = wanted.factors_of(plan, made, plan.names.index(name))
        found = [by_group(f, layer.kind == "embedding" and i == 0) for i, f in enumerate(optimizer.factors(name))]
        assert len(found[0]) == len(found[1]) == len(pairs) == layer.kernel.group
        for k, pair in enumerate(pairs):
            for side, target_, sums in zip((0, 1), split_pair(plan, layer, pair, starts[name][k]), pair, strict=True):
                if target_ is None:
                    continue
                ours = np.diag(found[side][k]) if found[side][k].ndim == 1 else found[side][k]
                condition = 1.0
                if starts[name][k][side] is not None:
                    condition = wanted.probe_condition(ordered(plan, layer, sums)[0].matrix if side == 0 else
                                                       sums.matrix, starts[name][k][side])  # fmt: skip
                # float32 sums of at most 200 rows, whose roundings mostly cancel; a probe adds its condition number
                scale = 100 * EPSILON * condition * max(np.abs(sums.matrix).max(), 1e-30)
                close(ours, target_, scale, f"{name}, {'AG'[side]}, group {k}")


def damped_inverses(a, g, damping):
    """(A^-1, G^-1), damped by pi, and the sum of their condition numbers."""
    if np.trace(a) > 0 and np.trace(g) > 0:
        of_a, of_g = reference.pi_damping(a, g, damping)
    else:
        of_a = of_g = np.sqrt(damping)
    conditions = sum(1 + np.linalg.eigvalsh(f)[-1] / d for f, d in ((a, of_a), (g, of_g)))
    return reference.damped_inverse(a, of_a), reference.damped_inverse(g, of_g), conditions


def as_matrices(layer, weight, bias):
    """[groups, O, I (+1)], the bias last; for an embedding [1, D, V]."""
    if layer.kind == "embedding":
        return weight.T[None]
    matrix = weight.reshape(layer.kernel.group, len(weight) // layer.kernel.group, -1)
    return np.concatenate([matrix, bias.reshape(*matrix.shape[:2], 1)], 2) if layer.homogeneous else matrix


def of_weights(layer, cell, by_name):
    """A layer's part of a dict by the weights' names, as matrices in float64."""
    weight = cell.embedding_table if layer.kind == "embedding" else cell.weight
    bias = by_name[cell.bias.name].astype(np.float64) if layer.homogeneous else None
    return as_matrices(layer, by_name[weight.name].astype(np.float64), bias)


def check_step(plan, jit):
    """New weight = old - G^-1 dW A^-1 at learning rate 1, through the explicit Kronecker product."""
    net, ((x, target),) = draw(plan)
    made = wanted.run_twin(plan, x, target)
    optimizer, step = optimize(plan, net, jit=jit)
    starts = {name: probes(optimizer, name) for name, _ in plan.captured()}
    with convolutions(plan):
        step(x, target)
    assert optimizer.step == 1 and read_escalations(optimizer) == 0
    after = values(net)
    for name, layer in plan.captured():
        cell = next(iter(cells_of(plan, net, name).values()))
        gradients, old, new = (of_weights(layer, cell, source) for source in (made.gradients, made.weights, after))
        for k, pair in enumerate(wanted.factors_of(plan, made, plan.names.index(name))):
            a, g = split_pair(plan, layer, pair, starts[name][k])
            if a is None or g is None:
                continue
            order = ordered(plan, layer, pair[0])[1]
            a_inverse, g_inverse, condition = damped_inverses(a, g, plan.damping)
            back = np.argsort(order)
            direction = reference.kron_direction(gradients[k][:, order], a_inverse, g_inverse)[:, back]
            # an inverse in float32 is off by its condition number; so is the product, relative to the norms in it
            size = np.linalg.norm(g_inverse, 2) * np.linalg.norm(gradients[k]) * np.linalg.norm(a_inverse, 2)
            for q, sums in zip(starts[name][k], (ordered(plan, layer, pair[0])[0], pair[1]), strict=True):
                condition *= 1.0 if q is None else wanted.probe_condition(sums.matrix, q)
            scale = 20 * EPSILON * condition * size + 2 * EPSILON * (np.abs(old[k]).max() + np.abs(direction).max())
            close(old[k] - new[k], direction, scale, f"{name}, group {k}")


@FUZZ
@given(plans())
def test_a_step_is_the_gradient_between_the_damped_inverses_of_its_factors(plan):
    check_step(plan, jit=False)


@pytest.mark.slow  # each compiles
@FUZZ_COMPILED
@given(plans())
def test_so_is_a_compiled_step(plan):
    check_step(plan, jit=True)


def read_escalations(optimizer):
    return int(optimizer.escalations.asnumpy()[0])


@FUZZ
@given(plans())
def test_under_large_damping_the_direction_is_the_gradients(plan):
    net, ((x, target),) = draw(plan)
    made = wanted.run_twin(plan, x, target)
    damping = 1e12
    _, step = optimize(plan, net, lr=damping, damping=damping)
    with convolutions(plan):
        step(x, target)
    after = values(net)
    for name, layer in plan.captured():
        cell = next(iter(cells_of(plan, net, name).values()))
        gradient, old, new = (of_weights(layer, cell, source) for source in (made.gradients, made.weights, after))
        size = np.linalg.norm(gradient)
        if size < 1e-4 * np.linalg.norm(old):
            continue  # too small a step to be seen in float32 weights
        moved = old - new
        assert (moved * gradient).sum() >= (1 - 1e-4) * size * np.linalg.norm(moved), name
        np.testing.assert_allclose(np.linalg.norm(moved), size, rtol=1e-2, err_msg=name)


@FUZZ_STEPS
@given(plans())
def test_a_loaded_state_goes_on_bit_for_bit(plan):
    rule = {"lr": 0.01, "momentum": 0.9, "interval": 2, "factor_interval": 1, "factor_decay": 0.9}
    net, data = draw(plan, 4)
    optimizer, step = optimize(plan, net, **rule)
    other = build(plan)
    fresh, other_step = optimize(plan, other, **rule)
    with convolutions(plan):
        for pair in data[:2]:
            step(*pair)
        with tempfile.TemporaryDirectory() as folder:
            ms.save_checkpoint(net, f"{folder}/net.ckpt")
            ms.save_checkpoint(optimizer.state(), f"{folder}/thor.ckpt")
            ms.load_param_into_net(other, ms.load_checkpoint(f"{folder}/net.ckpt"))
            fresh.load(ms.load_checkpoint(f"{folder}/thor.ckpt"))
        for pair in data[2:]:
            assert step(*pair).asnumpy().tobytes() == other_step(*pair).asnumpy().tobytes()
    for one, two in ((net, other), (optimizer, fresh)):
        theirs = values(two)
        assert all(value.tobytes() == theirs[name].tobytes() for name, value in values(one).items())


REASONS = {"frozen": "frozen", "skipped": "matches skip"}


@FUZZ
@given(plans(aside=True))
def test_what_is_frozen_or_skipped_has_no_factors_and_a_reason(plan):
    net, ((x, target),) = draw(plan)
    made = wanted.run_twin(plan, x, target)
    optimizer, step = optimize(plan, net, lr=0.1)
    expected = {}
    for name, layer in zip(plan.names, plan.layers, strict=True):
        reason = REASONS.get(layer.aside)
        if layer.kind.endswith("norm"):
            reason = "normalisation is not captured (norms=False)"
        expected |= dict.fromkeys(cells_of(plan, net, name), reason) if reason else {}
    assert {item.name: item.reason for item in optimizer.left_out} == expected
    with convolutions(plan):
        step(x, target)
    after = values(net)
    for name, layer in zip(plan.names, plan.layers, strict=True):
        cell = next(iter(cells_of(plan, net, name).values()))
        if not layer.captured:
            with pytest.raises(KeyError, match="no captured layer"):
                optimizer.factors(name)
        if layer.aside == "frozen":
            assert all((after[p.name] == made.weights[p.name]).all() for p in cell.get_parameters())
        elif layer.aside == "frozen bias":
            assert (after[cell.bias.name] == made.weights[cell.bias.name]).all()
        elif layer.aside == "skipped" or isinstance(cell, NORMS):
            for p in cell.trainable_params():
                plain = made.weights[p.name] - 0.1 * made.gradients[p.name]
                scale = 1e-5 * np.abs(made.gradients[p.name]).max() + 2 * EPSILON * np.abs(plain).max()
                close(after[p.name], plain, scale, p.name)
