"""The compiled functions of a training step, each built when it is first called.

    plain               backward + precondition + update
    gradients           backward alone, for a loop of the user's own
    curvature           backward with factors, followed by
      average             fresh statistics into the running averages
      apply               precondition + update
    clear               set the sums over micro-batches to zero
    add                 backward of a micro-batch, added to the sums
    finish              means of the sums + precondition + update
    add_curvature       backward of a micro-batch with factors, added to the sums
    finish_curvature    means of the sums, followed by average and apply

No graph contains a decision of the trace rule: the host decides which functions it calls. Every function takes its
tensors as separate arguments, never as a tuple.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, ops

from first_order.compiled import CompiledFunction, clear_failed_call
from thor.capture.attach import open_ports
from thor.curvature.layer import Layer
from thor.distributed.ranks import Ranks
from thor.distributed.reduce import Means, unreduced
from thor.runtime import device
from thor.runtime.dropout_seeds import DropoutSeeds
from thor.runtime.graph_ops import entry, over
from thor.runtime.modes import operator_by_operator
from thor.runtime.parameters import give_own_storage
from thor.step.accumulation import Accumulators, Adder, Clearer, ScaledSums
from thor.step.compiled_for import Flags, FlagWatch
from thor.step.diagnose import no_factors, works
from thor.step.estimate import Estimate
from thor.step.finite_check import checker, in_one_thread
from thor.step.forward import Forward, examples_of
from thor.step.layer_update import Moving, places_behind
from thor.step.loss_scaling import scaling

logger = logging.getLogger("thor")

Compiled = Callable[..., Any]

#: Functions whose gradients include the factors of the layers in the curvature graph.
CURVATURE_GRAPHS = ("curvature", "add_curvature", "finish_curvature")
#: Functions that are built anew when layers leave the curvature graph.
OF_ACTIVE_LAYERS = (*CURVATURE_GRAPHS, "average")
#: Functions that take inputs of unknown lengths. The formulas of the factors are compiled for known ones.
OF_ANY_LENGTH = ("plain", "gradients")
#: Flags whose functions are kept; those of other flags, the longest unused ones, are released.
KEPT_FLAGS = 8
#: Layers that have stopped since the curvature graph was compiled leave it once their cost is this share of all layers'
#: cost, so that stopping compiles the graph at most four times more.
RECOMPILE_SHARE = 0.25
#: More functions than are compiled at one step, so that each gets a number, and random numbers, of its own.
SEEDS_PER_STEP = 1000


class Steps(Protocol):
    """What counts the steps (:class:`thor.optimizer_state.StepCounts`)."""

    step: int


class StepGraphs:
    """The compiled functions of one :class:`thor.TrainStep`.

    Args:
        forward: the forward pass; with ``has_aux`` the functions that run it return (result, further outputs).
        layers: all captured layers.
        update: preconditions gradients and moves the weights.
        ranks: the ranks of a data-parallel job; None for one process.
        sums: sums over micro-batches; None if each batch is a step.
        jit: False runs everything operator by operator.
        state: counts the steps, for the random numbers of the functions.

    Attributes:
        in_graph: indices of the layers in the curvature graph.
        lengths: inputs with unknown lengths, one Tensor each, for which functions are compiled once; None for none.
        scaled: True if the loss is scaled.
        flags: what the present functions are compiled for.
        built: number of functions compiled so far.
        curvature_built: number of those with factors.
        message_bytes: bytes that the means over ranks send, by kind of step.
    """

    def __init__(
        self, forward: Forward, layers: Sequence[Layer], update: Moving, *, ranks: Ranks | None,
        sums: Accumulators | None, jit: bool, state: Steps,
    ) -> None:  # fmt: skip
        self.parameters = [*forward.net.get_parameters(), *forward.other_parameters()]
        self.forward, self.has_aux, self.layers, self.update = forward.function(), forward.has_aux, layers, update
        self.weights = update.inner.parameters
        if not jit:
            give_own_storage(self.weights)
        self.ranks, self.sums, self.jit, self.state = ranks, sums, jit, state
        self.lengths: tuple[Any, ...] | None = None
        self.scaled, self.built, self.curvature_built = False, 0, 0
        self.message_bytes: dict[str, int] = {}
        self.watch = FlagWatch(forward.cells(), self.weights, constants=jit)
        self.flags = Flags((), (True,) * len(self.weights))
        self._ports = [port for layer in layers for port in layer.ports]
        self._seeds = DropoutSeeds(cell for _, cell in forward.cells())
        self._functions: dict[tuple[str, Flags], tuple[Compiled, int]] = {}
        self._in_graph: dict[Flags, list[int]] = {}  # by flags, the longest unused first

    # -- the cache of compiled functions ---------------------------------------------------------------------------

    def follow_flags(self) -> None:
        """Take the functions of the present flags; those of other flags are kept for their return."""
        flags = self.watch.flags()
        if flags == self.flags:
            return
        before, self.flags = self.flags, flags
        self.update.frozen = tuple(at for at, trains in enumerate(flags.trains) if not trains)
        self._in_graph[flags] = self._in_graph.pop(flags, [])
        if len(self._in_graph) > KEPT_FLAGS:
            oldest = next(iter(self._in_graph))
            del self._in_graph[oldest]
            self._drop(lambda name, of: of == oldest)
            logger.warning(
                "%s has changed, and the step was compiled for %d states of the network already: a state that comes "
                "back later is compiled again. A value that changes often belongs in a Parameter",
                self.watch.difference(before, flags), KEPT_FLAGS,
            )  # fmt: skip

    @property
    def in_graph(self) -> list[int]:
        """Indices of the layers in the curvature graph."""
        return self._in_graph.get(self.flags, [])

    def take_layers(self, active: Sequence[int]) -> None:
        """Let the curvature graph hold every active layer; drop others once ``RECOMPILE_SHARE`` of the cost stopped."""
        stopped = sum(self.layers[i].cost for i in self.in_graph if i not in active)
        missing = not set(active) <= set(self.in_graph)
        if missing or stopped >= RECOMPILE_SHARE * sum(layer.cost for layer in self.layers):
            self._in_graph[self.flags] = list(active)
            self._drop(lambda name, of: name in OF_ACTIVE_LAYERS and of == self.flags)

    @property
    def compiled(self) -> dict[tuple[str, Flags], CompiledFunction]:
        """The compiled functions by name and flags."""
        return {key: each for key, (each, _) in self._functions.items() if isinstance(each, CompiledFunction)}

    def scale_loss(self, scaled: bool) -> None:
        """Compile for a loss that is scaled, or for one that is not."""
        if scaled != self.scaled:
            self.scaled = scaled
            self.release()

    def release(self) -> None:
        """Free all functions; each is compiled again when it is next called."""
        self._drop(lambda name, of: True)

    def _drop(self, leaves: Callable[[str, Flags], bool]) -> None:
        for key in [key for key in self._functions if leaves(*key)]:
            function, _ = self._functions.pop(key)
            if isinstance(function, CompiledFunction):
                function.release()

    def _run(self, name: str, build: Callable[[], Compiled], *tensors: Any) -> Any:
        """Call a function, which is built if this is its first call."""
        key = (name, self.flags)
        if key not in self._functions:
            self._functions[key] = (self._built(name, build), self.state.step * SEEDS_PER_STEP + self.built - self.jit)
        function, number = self._functions[key]
        with self._seeds.numbered(number * self.jit):
            return function(*tensors)

    def _gathering(self, name: str, build: Callable[[], Compiled], inputs: Sequence[Any], *tensors: Any) -> Any:
        """Call a function with open ports; if it fails, say whether the ports are the reason."""
        try:
            with open_ports(self._ports, examples_of(inputs, unknown=0)):
                return self._run(name, build, *tensors)
        except (TypeError, ValueError, RuntimeError, AttributeError) as error:
            clear_failed_call()
            if works(self.gradients, tensors[0], *inputs):
                raise RuntimeError(no_factors(error)) from error
            raise

    def _built(self, name: str, build: Callable[[], Compiled]) -> Compiled:
        self.curvature_built += name in CURVATURE_GRAPHS
        if not self.jit:
            return operator_by_operator(build)
        device.trim_memory()  # that compiling the previous graph has left
        self.built += 1
        function = CompiledFunction(build(), self.parameters)
        if self.lengths is not None and name in OF_ANY_LENGTH:
            scale = Tensor(np.ones(1, np.float32)) if self.scaled else None
            function.set_inputs(scale, *self.lengths)
        return function

    # -- the functions ---------------------------------------------------------------------------------------------

    def plain(self, scale: Tensor | None, *inputs: Any) -> tuple[Any, ...]:
        """A complete step without curvature: (loss, whether the step was finite and the weights have moved)."""
        return self._run("plain", self._build_plain, scale, *inputs)

    def curvature(self, scale: Tensor | None, *inputs: Any) -> tuple[Any, ...]:
        """The backward pass with factors: (loss, whether everything is finite, *gradients, *statistics)."""
        return self._gathering("curvature", self._build_curvature, inputs, scale, *inputs)

    def gradients(self, scale: Tensor | None, *inputs: Any) -> tuple[Any, ...]:
        """The backward pass: (loss, whether everything is finite, *gradients)."""
        return self._run("gradients", self._build_gradients, scale, *inputs)

    def average(self, scale: Tensor | None, gain: Tensor, *statistics: Tensor) -> None:
        """Update the running averages with fresh statistics."""
        self._run("average", self._build_average, scale, gain, *statistics)

    def apply(self, loss: Tensor, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        """Precondition gradients and update: (loss, whether the step was finite and the weights have moved)."""
        return self._run("apply", self._build_apply, loss, *gradients)

    def add(self, gathering: bool, scale: Tensor | None, weight: Tensor | None, *inputs: Any) -> tuple[Any, ...]:
        """Add a micro-batch's gradients, and its factors if ``gathering``, times ``weight`` to the sums.

        ``weight`` is None for 1. Returns the loss of the micro-batch.
        """
        if not gathering:
            return self._run("add", self._build_add, scale, weight, *inputs)
        return self._gathering("add_curvature", self._build_add_curvature, inputs, scale, weight, *inputs)

    def finish(self, scale: Tensor | None, share: Tensor, examples: Tensor) -> tuple[Tensor, Tensor]:
        """As :meth:`plain`, from the sums over the micro-batches times ``share``, for so many ``examples``."""
        return self._run("finish", self._build_finish, scale, share, examples)

    def finish_curvature(self, scale: Tensor | None, share: Tensor, examples: Tensor) -> tuple[Tensor, ...]:
        """As :meth:`curvature`, from the sums over the micro-batches times ``share``, for so many ``examples``."""
        return self._run("finish_curvature", self._build_finish_curvature, scale, share, examples)

    def clear_sums(self) -> None:
        """Set the sums over the micro-batches to zero."""
        self._run("clear", self._build_clear)

    # -- builders of the functions ---------------------------------------------------------------------------------

    def _build_plain(self) -> Compiled:
        differentiate = self._differentiate(self.weights)
        _, inverse, down = scaling(self.scaled)
        update, mean = self.update, self._mean_over_ranks("plain", self.weights)

        def plain(scale, *inputs):
            loss, gradients, aux = differentiate(scale, *inputs)
            loss, gradients = mean(loss, gradients, examples_of(inputs))
            inverse_scale = inverse(scale)
            (loss,) = down((loss,), inverse_scale)
            return update(loss, down(gradients, inverse_scale)) + aux

        return plain

    def _build_gradients(self) -> Compiled:
        return self._differentiating("plain", list(self.weights))

    def _build_curvature(self) -> Compiled:
        return self._differentiating("curvature", self._variables())

    def _differentiating(self, kind: str, variables: list[Parameter]) -> Compiled:
        """The backward pass by ``variables``, of which the weights come first."""
        differentiate = self._differentiate(variables)
        (_, inverse, down), count = scaling(self.scaled), len(self.weights)
        mean, checked = self._mean_over_ranks(kind, variables), checker()

        def curvature(scale, *inputs):
            loss, gradients, aux = differentiate(scale, *inputs)
            loss, gradients = mean(loss, gradients, examples_of(inputs))
            inverse_scale = inverse(scale)
            (loss,), weights = down((loss,), inverse_scale), down(gradients[:count], inverse_scale)
            return checked(loss, weights, gradients[count:]) + aux

        return curvature

    def _build_average(self) -> Compiled:
        estimate = Estimate([self.layers[i] for i in self.in_graph], self.scaled)
        _, inverse, _ = scaling(self.scaled)

        def average(scale, gain, *fresh):
            return estimate(gain, inverse(scale), fresh)

        return average

    def _build_apply(self) -> Compiled:
        update = self.update

        def apply(loss, *gradients):
            return update(loss, gradients)

        return apply

    def _build_add(self) -> Compiled:
        return self._adding(self.weights, list(self._sums.gradients))

    def _build_add_curvature(self) -> Compiled:
        return self._adding(self._variables(), self._sums_in_graph())

    def _adding(self, variables: Sequence[Parameter], sums: list[Parameter]) -> Compiled:
        differentiate = self._differentiate(variables)
        adder, (_, inverse, down) = Adder(sums, self._sums.loss), scaling(self.scaled)

        def add(scale, weight, *inputs):
            loss, gradients, aux = differentiate(scale, *inputs)
            (loss,) = down((loss,), inverse(scale))
            return (in_one_thread(ops.depend(loss, adder(loss, gradients, weight))),) + aux

        return add

    def _build_finish(self) -> Compiled:
        sums, update = ScaledSums(list(self._sums.gradients), self._sums.loss, self.weights), self.update
        _, inverse, down = scaling(self.scaled)
        mean = self._mean_over_ranks("plain", self.weights)

        def finish(scale, share, examples):
            loss, gradients = sums(share)
            loss, gradients = mean(loss, gradients, examples)
            return update(loss, down(gradients, inverse(scale)))

        return finish

    def _build_finish_curvature(self) -> Compiled:
        sums = ScaledSums(self._sums_in_graph(), self._sums.loss, self._variables())
        (_, inverse, down), count, checked = scaling(self.scaled), len(self.weights), checker()
        mean = self._mean_over_ranks("curvature", self._variables())

        def finish(scale, share, examples):
            loss, means = sums(share)
            loss, means = mean(loss, means, examples)
            return checked(loss, down(means[:count], inverse(scale)), means[count:])

        return finish

    def _build_clear(self) -> Compiled:
        clearing = Clearer(self._sums.all)

        def clear():
            return clearing()

        return clear

    # -- parts that the builders share -----------------------------------------------------------------------------

    @property
    def _sums(self) -> Accumulators:
        assert self.sums is not None, "a step without micro-batches has no sums"
        return self.sums

    def _variables(self) -> list[Parameter]:
        """The variables of a curvature graph's gradients: the weights, then the port Parameters of its layers."""
        return [*self.weights, *(p for i in self.in_graph for p in self.layers[i].port_parameters)]

    def _sums_in_graph(self) -> list[Parameter]:
        """The sums of the gradients by :meth:`_variables`."""
        per = len(self.layers[0].port_parameters)
        statistics = [self._sums.statistics[i * per + j] for i in self.in_graph for j in range(per)]
        return [*self._sums.gradients, *statistics]

    def _differentiate(self, variables: Sequence[Parameter]) -> Compiled:
        """``(scale, *inputs)`` -> (scaled loss, its gradients by ``variables``, (further outputs,) or ()).

        The gradient of a frozen weight is zero, and its backward pass is left out.
        """
        forward, has_aux, frozen, (up, _, _) = self.forward, self.has_aux, self.update.frozen, scaling(self.scaled)

        def scaled_loss(scale, *inputs):
            found = forward(*inputs)
            if has_aux:
                return up(found[0], scale), found[1:]
            return up(found, scale)

        trained = [variable for at, variable in enumerate(variables) if at not in frozen]
        zeros, places = tuple(variables[at] for at in frozen), places_behind(len(variables), frozen)
        value_and_grad = ms.value_and_grad(scaled_loss, None, trained, has_aux=has_aux)

        def differentiate(scale, *inputs):
            loss, gradients = value_and_grad(scale, *inputs)
            aux = ()
            if has_aux:
                loss, aux = loss
                aux = (aux,)
            if frozen:
                gradients = over(ops.partial(entry, over(ops.zeros_like, zeros) + gradients), places)
            return loss, gradients, aux

        return differentiate

    def _mean_over_ranks(self, kind: str, variables: Sequence[Parameter]) -> Compiled:
        """``(loss, gradients, examples)`` -> means of (loss, gradients) over ranks, weighted by their examples."""
        if self.ranks is None:
            return unreduced
        blocks = {id(f.blocks) for y in self.layers for f in (y.a, y.g)}
        shapes, symmetric = [v.shape for v in variables], [id(v) in blocks for v in variables]
        means = Means(shapes, symmetric, self.ranks.sharing.fusion)
        self.message_bytes[kind] = means.sums.bytes
        return means
