"""TrainStep: one training step, from a batch to moved weights.

The host decides which of a few compiled functions run; no graph holds a decision of the trace rule:

    plain step        backward + precondition + update, one function
    curvature step    backward with factors, then averages, then (refresh on the host), then precondition + update
    accumulation      the backward half adds up; the second half runs after the last micro-batch
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

from first_order.base import FirstOrder
from first_order.checks import check_int
from thor.distributed.agreement import refresh_alike, same_everywhere, settings_to_share
from thor.distributed.ranks import copy_first
from thor.distributed.reduce import Means, unreduced
from thor.optimizer import RECOMPILE_SHARE, THOR
from thor.runtime import device
from thor.runtime.parameters import addresses, int_parameter, read, write
from thor.step.accumulation import Adder, Clearer, Values, accumulators
from thor.step.diagnose import all_finite, complaint, first_bad_layer
from thor.step.estimate import Estimate
from thor.step.finite_check import checker, in_one_thread
from thor.step.loss_scaling import scaling
from thor.step.moving_averages import MovingAverages
from thor.step.update import Update, no_more_parameters

CURVATURE_GRAPHS = ("curvature", "add_curvature", "finish_curvature")
OF_ACTIVE_LAYERS = (*CURVATURE_GRAPHS, "average")  # built anew without layers that have stopped


class TrainStep(nn.Cell):
    """``loss = step(x, y)``: forward, backward, curvature when it is due, and the weights' update.

    Also what ``ms.Model`` trains: ``Model(step).train(epochs, dataset, callbacks, dataset_sink_mode=False)``; give
    ``eval_network=nn.WithEvalCell(net, loss_fn)`` and ``metrics`` to evaluate while training (``Model.fit``).

    Args:
        net: the network that ``optimizer`` was made for.
        loss_fn: ``loss_fn(net(*inputs[:-1]), inputs[-1])``, a mean over the batch; None if ``net`` returns the loss.
        optimizer: a :class:`thor.THOR`.
        accumulate: micro-batches whose gradients (and factors) are averaged into one step.
        jit: compile the step, in GRAPH_MODE and in PYNATIVE_MODE. False runs it operator by operator, for debugging.
    """

    def __init__(
        self, net: nn.Cell, loss_fn: Callable[..., Any] | None, optimizer: THOR, *, accumulate: int = 1,
        jit: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(auto_prefix=False)
        if not isinstance(optimizer, THOR):
            raise TypeError(f"optimizer must be a thor.THOR, but got {type(optimizer).__name__}")
        if optimizer._net is not net:
            raise ValueError("optimizer was made for another network: build THOR(net, ...) and TrainStep on one object")
        if loss_fn is not None and not callable(loss_fn):
            raise TypeError(f"loss_fn must be callable or None, but got {loss_fn!r}")
        self.accumulate = check_int("accumulate", accumulate, 1)
        self.network, self.optimizer = net, optimizer
        object.__setattr__(self, "loss_fn", loss_fn)
        self._jit = bool(jit)
        device.allow_deep_graphs()
        self._weights = optimizer.inner.parameters
        self._moving = MovingAverages(net)
        self.compilations = self.graphs = 0  # curvature graphs built so far, and compiled functions of any kind
        self._ports_open = False
        if not optimizer.options.auto:  # else the first step chooses the blocks; a Cell takes a name's Parameter once
            self._bind()
        self.set_train()

    def _bind(self) -> None:
        """Take up the optimizer's layers and state, once they are what they will be."""
        optimizer, options = self.optimizer, self.optimizer.options
        ranks, decays = optimizer.ranks, optimizer.decays
        self._update = Update(optimizer.inner, optimizer._captured, options.clip, decays, options.clip_each, ranks)
        if ranks is not None:
            same_everywhere(ranks, settings_to_share(optimizer, self.accumulate))
            copy_first(list(self.network.get_parameters()))
        self._in_graph = optimizer.active_layers
        self._compiled: dict[str, Callable[..., Any]] = {}
        # what graphs read and write
        self._state = [*self.network.get_parameters(), *optimizer.curvature, *optimizer.inner.get_parameters()]
        self._scales: dict[float, Tensor] = {}
        self._scaled = optimizer.scaled
        self._storage: list[int] = []
        self._changes = -1  # of the inner optimizer's options
        self._sums_storage: list[int] = []
        self._averaged: dict[str, int] = {}  # bytes of the means over ranks, by kind of step
        self._sent_by_refresh = 0
        self.sums = ()
        if self.accumulate > 1:
            self.micro_step = int_parameter("micro_step", 0)
            self.micro_steps = int_parameter("micro_steps", self.accumulate)
            self.sums, self.factor_sums, self.loss_sum = accumulators(self._weights, optimizer._captured)

    @property
    def messages(self) -> dict[str, int]:
        """Bytes that this rank puts into collectives, for each kind of step that came; empty on one device.

        "plain", "curvature", and "refresh": what the last refresh sent beyond its curvature step.
        """
        across, ranks = self._update.across, self.optimizer.ranks
        each = 0 if across is None else across.bytes
        sent = {kind: count + each for kind, count in self._averaged.items()}
        return sent | ({} if ranks is None else {"refresh": self._sent_by_refresh})

    # -- the step ------------------------------------------------------------------------------------------------

    def __call__(self, *inputs: Any) -> Tensor:
        """One step, or one micro-batch of it; answers with the unscaled loss."""
        optimizer = self.optimizer
        if optimizer.options.auto:
            optimizer.profile_blocks(self.loss_fn, inputs)
            self._bind()
        self._notice_loading()
        if not self._storage and optimizer.ranks is not None:  # what was loaded since may be of other steps
            same_everywhere(optimizer.ranks, settings_to_share(optimizer, self.accumulate))
        self._open_ports(False)
        optimizer.structure.check()
        if isinstance(optimizer.inner, FirstOrder) and (self.accumulate == 1 or read(self.micro_step) == 0):
            optimizer.inner.prepare()
        self._moving.before_step()
        optimizer.set_learning_rate()
        gathering = optimizer.gathers_now
        if gathering:
            self._drop_stopped_layers()
        step = self._accumulated_step if self.accumulate > 1 else self._whole_step
        loss, finite = step(gathering, self._scale(), *inputs)
        failed = finite is not None and optimizer.finished(finite)
        if gathering or self.accumulate > 1 or not self._storage:  # a plain step moves nothing that graphs read
            self._storage, self._sums_storage = addresses(self._state), addresses(self.sums)
        where = first_bad_layer(self.network, self.loss_fn, self._weights, inputs) if failed else None
        if finite is False:
            self._moving.mend()
        if failed:
            where = where or all_finite(self._scaled, self.accumulate > 1, optimizer.ranks is not None)
            raise FloatingPointError(complaint(optimizer.step, read(optimizer.bad_steps), where))
        return loss

    def _whole_step(self, gathering: bool, scale: Tensor | None, *inputs: Any) -> tuple[Tensor, bool]:
        if not gathering:
            loss, finite = self._function("plain", self._build_plain)(scale, *inputs)
            return loss, bool(finite.asnumpy())
        curvature = self._function("curvature", self._build_curvature)
        self._open_ports(True)
        outputs = curvature(scale, *inputs)
        self._open_ports(False)
        return self._finish_curvature(scale, *outputs)

    def _finish_curvature(self, scale, loss, finite, *gradients) -> tuple[Tensor, bool]:
        """Take the fresh statistics in, refresh if it is due, and move the weights; nothing if anything is not finite.

        ``gradients`` are those of the weights, and behind them the statistics.
        """
        if not bool(finite.asnumpy()):
            return loss, False
        optimizer, count = self.optimizer, len(self._weights)
        gain, weight = optimizer.gain(self._in_graph)
        self._function("average", self._build_average)(scale, gain, *gradients[count:])
        optimizer.gathered(weight)
        if optimizer.refreshes_now:
            self._sent_by_refresh = refresh_alike(optimizer, self._in_graph)
        loss, finite = self._function("apply", self._build_apply)(loss, *gradients[:count])
        return loss, bool(finite.asnumpy())

    def _accumulated_step(self, gathering: bool, scale: Tensor | None, *inputs: Any) -> tuple[Tensor, bool | None]:
        """One micro-batch; the last one of a step finishes it. ``finite`` is None in between."""
        if read(self.micro_steps) != self.accumulate:  # sums were loaded, of a step in other parts
            write(self.micro_steps, self.accumulate)
            write(self.micro_step, 0)
        if not read(self.micro_step):  # the step before may have been interrupted with its sums half used
            self._function("clear", self._build_clear)()
        name, build = ("add_curvature", self._build_add_curvature) if gathering else ("add", self._build_add)
        add = self._function(name, build)
        self._open_ports(gathering)
        loss = add(scale, *inputs)
        self._open_ports(False)
        done = read(self.micro_step) + 1
        write(self.micro_step, done % self.accumulate)
        if done < self.accumulate:
            return loss, None
        if not gathering:
            total, finite = self._function("finish", self._build_finish)(scale)
            finite = bool(finite.asnumpy())
        else:
            outputs = self._function("finish_curvature", self._build_finish_curvature)(scale)
            total, finite = self._finish_curvature(scale, *outputs)
        return total, finite

    def construct(self, *_: Any) -> None:
        """Reached only when the whole step is compiled into another graph, as data sinking does."""
        raise RuntimeError(
            "thor.TrainStep decides on the host and cannot be part of another graph: "
            "use Model.train(..., dataset_sink_mode=False), and call it outside ms.jit"
        )

    # -- the compiled functions ----------------------------------------------------------------------------------

    def _function(self, name: str, build: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
        if name not in self._compiled:
            device.trim_memory()  # of what compiling the graph before has left
            self.compilations += name in CURVATURE_GRAPHS
            self.graphs += self._jit
            self._compiled[name] = ms.jit(build()) if self._jit else build()
        return self._compiled[name]

    def _forward(self) -> Callable[..., Any]:
        net, loss_fn, (up, _, _) = self.network, self.loss_fn, self._scaling()

        def with_loss(scale, *inputs):
            return up(loss_fn(net(*inputs[:-1]), inputs[-1]), scale)

        def without_loss(scale, *inputs):
            return up(net(*inputs), scale)

        return without_loss if loss_fn is None else with_loss

    def _build_plain(self) -> Callable[..., Any]:
        differentiate = ms.value_and_grad(self._forward(), None, self._weights)
        _, inverse, down = self._scaling()
        update, mean = self._update, self._mean_over_ranks("plain", self._weights)

        def plain(scale, *inputs):
            loss, gradients = differentiate(scale, *inputs)
            loss, gradients = mean(loss, gradients, inputs)
            inverse_scale = inverse(scale)
            (loss,) = down((loss,), inverse_scale)
            return update(loss, down(gradients, inverse_scale))

        return plain

    def _build_curvature(self) -> Callable[..., Any]:
        differentiate = ms.value_and_grad(self._forward(), None, self._differentiated())
        (_, inverse, down), count = self._scaling(), len(self._weights)
        mean, checked = self._mean_over_ranks("curvature", self._differentiated()), checker()

        def curvature(scale, *inputs):
            loss, gradients = differentiate(scale, *inputs)
            loss, gradients = mean(loss, gradients, inputs)
            inverse_scale = inverse(scale)
            (loss,), weights = down((loss,), inverse_scale), down(gradients[:count], inverse_scale)
            return checked(loss, weights, gradients[count:])

        return curvature

    def _build_average(self) -> Callable[..., Any]:
        estimate, (_, inverse, _) = Estimate(self._graph_layers(), self._scaled), self._scaling()

        def average(scale, gain, *fresh):
            return estimate(gain, inverse(scale), fresh)

        return average

    def _build_apply(self) -> Callable[..., Any]:
        update = self._update

        def apply(loss, *gradients):
            return update(loss, gradients)

        return apply

    def _differentiated(self) -> list[Parameter]:
        layers = self._graph_layers()
        return [*self._weights, *(p for layer in layers for p in layer.port_parameters)]

    def _graph_layers(self) -> list[Any]:
        return [self.optimizer._captured[i] for i in self._in_graph]

    def _mean_over_ranks(self, kind: str, variables: Any) -> Callable[..., Any]:
        """(loss, gradients by ``variables``) averaged over the ranks, each counting by the examples of its inputs."""
        ranks = self.optimizer.ranks
        if ranks is None:
            return unreduced
        blocks = {id(f.blocks) for y in self.optimizer._captured for f in (y.a, y.g)}
        shapes, symmetric = [v.shape for v in variables], [id(v) in blocks for v in variables]
        means = Means(shapes, symmetric, ranks.sharing.fusion)
        self._averaged[kind] = means.sums.bytes

        def mean(loss, values, inputs):
            return means(loss, values, inputs[0].shape[0] if len(inputs) > 0 else 1)

        return mean

    def _scaling(self) -> tuple[Callable[..., Any], ...]:
        """What a graph does with the loss scale; compiled away where it is always 1."""
        return scaling(self._scaled)

    # -- accumulation --------------------------------------------------------------------------------------------

    def _graph_sums(self) -> list[Parameter]:
        """Accumulators of the layers in the curvature graph."""
        per = len(self.optimizer._captured[0].port_parameters)
        return [self.factor_sums[i * per + j] for i in self._in_graph for j in range(per)]

    def _build_add(self) -> Callable[..., Any]:
        return self._adding(self._weights, list(self.sums))

    def _build_add_curvature(self) -> Callable[..., Any]:
        return self._adding(self._differentiated(), [*self.sums, *self._graph_sums()])

    def _adding(self, variables: Any, sums: list[Parameter]) -> Callable[..., Any]:
        differentiate = ms.value_and_grad(self._forward(), None, variables)
        adder, (_, inverse, down) = Adder(sums, self.loss_sum), self._scaling()

        def add(scale, *inputs):
            loss, gradients = differentiate(scale, *inputs)
            (loss,) = down((loss,), inverse(scale))
            return in_one_thread(ops.depend(loss, adder(loss, gradients)))

        return add

    def _build_finish(self) -> Callable[..., Any]:
        sums, update = Values(list(self.sums), self.loss_sum, self._weights), self._update
        _, inverse, down = self._scaling()
        share, mean = 1.0 / self.accumulate, self._mean_over_ranks("plain", self._weights)

        def finish(scale):
            loss, gradients = sums(share)
            loss, gradients = mean(loss, gradients, ())
            return update(loss, down(gradients, inverse(scale)))

        return finish

    def _build_finish_curvature(self) -> Callable[..., Any]:
        sums = Values([*self.sums, *self._graph_sums()], self.loss_sum, self._differentiated())
        (_, inverse, down), count, checked = self._scaling(), len(self._weights), checker()
        share, mean = 1.0 / self.accumulate, self._mean_over_ranks("curvature", self._differentiated())

        def finish(scale):
            loss, means = sums(share)
            loss, means = mean(loss, means, ())
            return checked(loss, down(means[:count], inverse(scale)), means[count:])

        return finish

    def _build_clear(self) -> Callable[..., Any]:
        clearing = Clearer([*self.sums, *self.factor_sums, self.loss_sum])

        def clear():
            return clearing()

        return clear

    # -- housekeeping --------------------------------------------------------------------------------------------

    def _scale(self) -> Tensor | None:
        """The loss scale as graphs get it, made anew where it has moved; None where they do nothing with it.

        A graph that is given a Tensor and does nothing with it takes up to 0.7 ms longer (MindSpore 2.10 on a CPU).
        """
        if not self._scaled:
            return None
        value = self.optimizer.scale.asnumpy()
        if value[0] not in self._scales:
            self._scales = {value[0]: Tensor(value.copy())}
        return self._scales[value[0]]

    def _open_ports(self, active: bool) -> None:
        """Ports are read when a graph is compiled, and at every call in PyNative."""
        if active == self._ports_open:
            return
        self._ports_open = active
        for layer in self.optimizer._captured:
            for port in layer.ports:
                port.active = active

    def _notice_loading(self) -> None:
        """Compile anew if any Parameter got new storage since the last step, or Adafactor other options.

        ``load_param_into_net`` and ``set_data`` replace a Parameter's storage, and a compiled function would silently
        go on with the old one (measured with MindSpore 2.10).
        """
        inner = self.optimizer.inner
        moved = bool(self._storage) and self._storage != addresses(self._state)
        changed = getattr(inner, "changes", 0) != self._changes
        if changed:
            no_more_parameters(inner, self.optimizer.decays)
        if moved:
            self._moving.forget()
        if moved or changed:
            self._compiled.clear()
            self._storage, self._changes = [], getattr(inner, "changes", 0)
            # what MindSpore knows the compiled construct of an nn.Optimizer by, where the step itself is not compiled
            object.__setattr__(inner, "_create_time", time.time_ns())
        if not self._compiled:  # as the loaded state has it, before the first step too
            self._scaled, self._in_graph = self.optimizer.scaled, self.optimizer.active_layers
        if moved and self.accumulate > 1 and self._sums_storage == addresses(self.sums):
            write(self.micro_step, 0)  # the sums are of a step that is no more

    def _drop_stopped_layers(self) -> None:
        """Rebuild the curvature functions without stopped layers, once enough of their cost has stopped."""
        captured, active = self.optimizer._captured, set(self.optimizer.active_layers)
        stopped = sum(captured[i].cost for i in self._in_graph if i not in active)
        total = sum(layer.cost for layer in captured)
        if stopped >= RECOMPILE_SHARE * total:
            self._in_graph = [i for i in self._in_graph if i in active]
            for name in OF_ACTIVE_LAYERS:
                self._compiled.pop(name, None)
