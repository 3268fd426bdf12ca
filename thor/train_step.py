"""TrainStep: one training step, from a batch to updated weights.

The host decides which compiled functions run (step/graphs.py); no graph contains a decision of the trace rule:

    plain step        backward + precondition + update, in one function
    curvature step    backward with factors; running averages; refresh on the host, if due; precondition + update
    accumulation      every micro-batch adds its gradients to sums; the rest of the step follows the last micro-batch
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mindspore import Tensor, nn

from first_order.base import FirstOrder
from first_order.cells import set_unregistered
from first_order.checks import check_int
from thor.distributed.agreement import same_everywhere
from thor.distributed.ranks import copy_first
from thor.optimizer import THOR
from thor.runtime import device
from thor.runtime.graph_ops import forget_compiled_construct
from thor.runtime.parameters import int_parameter, read, write
from thor.shared_settings import shared_settings
from thor.step.accumulation import Accumulators
from thor.step.diagnose import first_bad_layer, likely_cause, stop_message
from thor.step.graphs import Flags, StepGraphs, forward_of
from thor.step.moving_averages import MovingAverages
from thor.step.storage_watch import StorageWatch
from thor.step.update import Update, no_more_parameters


class TrainStep(nn.Cell):
    """``loss = step(x, y)``: forward, backward, curvature when it is due, and the update of the weights.

    ``ms.Model`` trains it too: ``Model(step).train(epochs, dataset, callbacks, dataset_sink_mode=False)``. Give
    ``eval_network=nn.WithEvalCell(net, loss_fn)`` and ``metrics`` to evaluate during training (``Model.fit``).

    Args:
        net: the network that ``optimizer`` was made for.
        loss_fn: ``loss_fn(net(*inputs[:-1]), inputs[-1])``, a mean over the batch; None if ``net`` returns the loss.
        optimizer: a :class:`thor.THOR`.
        accumulate: number of micro-batches whose gradients (and factors) are averaged into one step.
        jit: compile the step, in GRAPH_MODE and in PYNATIVE_MODE. False runs it operator by operator, for debugging.
    """

    def __init__(
        self, net: nn.Cell, loss_fn: Callable[..., Any] | None, optimizer: THOR, *, accumulate: int = 1,
        jit: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(auto_prefix=False)
        if not isinstance(optimizer, THOR):
            raise TypeError(f"optimizer must be a thor.THOR, but got {type(optimizer).__name__}")
        if optimizer.network is not net:
            raise ValueError("optimizer was made for another network: build THOR(net, ...) and TrainStep on one object")
        if loss_fn is not None and not callable(loss_fn):
            raise TypeError(f"loss_fn must be callable or None, but got {loss_fn!r}")
        self.accumulate = check_int("accumulate", accumulate, 1)
        self.network, self.optimizer = net, optimizer
        set_unregistered(self, loss_fn=loss_fn)
        self.jit = bool(jit)
        device.allow_deep_graphs()
        self._moving = MovingAverages(net)
        self._bound = False
        if not optimizer.options.auto:  # with "auto" the first step binds, once it has chosen the block size
            self._bind()
        self.set_train()

    def _bind(self) -> None:
        """Set up everything that depends on the optimizer's final layers and state."""
        optimizer, options, ranks = self.optimizer, self.optimizer.options, self.optimizer.ranks
        inner, layers = optimizer.inner, optimizer.captured
        if ranks is not None:
            same_everywhere(ranks, shared_settings(optimizer, self.accumulate))
            copy_first(list(self.network.get_parameters()))
        sums = Accumulators(self.accumulate, inner.parameters, layers) if self.accumulate > 1 else None
        if sums is not None:
            self.micro_step = int_parameter("micro_step", 0)
            self.micro_steps = int_parameter("micro_steps", self.accumulate)
            self.sums, self.factor_sums, self.loss_sum = sums.gradients, sums.statistics, sums.loss
        self.update = Update(inner, layers, options.clip, optimizer.decays, options.clip_each, ranks)
        forward = forward_of(self.network, self.loss_fn)
        self.step_graphs = StepGraphs(forward, layers, self.update, ranks=ranks, sums=sums, jit=self.jit)
        state = [*self.network.get_parameters(), *optimizer.own_state.curvature, *inner.get_parameters()]
        self._state_watch = StorageWatch(state)  # all Parameters that graphs read or write
        self._sums_watch = StorageWatch([] if sums is None else sums.gradients)
        self._inner_changes = -1  # inner.changes, which counts changes of its options, when graphs were compiled
        self._scales: dict[float, Tensor] = {}
        self._sent_by_refresh = 0
        optimized = {id(weight) for weight in inner.parameters}
        self._not_optimized = [
            p for p in self.network.get_parameters() if id(p) not in optimized and not p.requires_grad
        ]
        roots = (self.network, *_cells_in(self.loss_fn))
        self._flagged_cells = [cell for root in roots for _, cell in root.cells_and_names()]
        self._bound = True

    # -- for users -----------------------------------------------------------------------------------------------

    @property
    def graphs(self) -> int:
        """Number of functions compiled so far."""
        return self.step_graphs.built if self._bound else 0

    @property
    def compilations(self) -> int:
        """Number of functions with factors compiled so far."""
        return self.step_graphs.curvature_built if self._bound else 0

    @property
    def messages(self) -> dict[str, int]:
        """Bytes that this rank sends in collectives, by kind of step; empty on one device.

        The kinds are "plain" and "curvature", as soon as there was such a step, and "refresh" for the bytes that the
        last refresh sent in addition to its curvature step.
        """
        across, ranks = self.update.across, self.optimizer.ranks
        each = 0 if across is None else across.bytes
        sent = {kind: count + each for kind, count in self.step_graphs.message_bytes.items()}
        return sent | ({} if ranks is None else {"refresh": self._sent_by_refresh})

    # -- the step ------------------------------------------------------------------------------------------------

    def __call__(self, *inputs: Any) -> Tensor:
        """Make one step, or one micro-batch of it, and return the unscaled loss."""
        optimizer = self.optimizer
        if optimizer.options.auto:
            optimizer.profile_blocks(self.loss_fn, inputs)
            self._bind()
        self._before_step()
        gathering = optimizer.own_state.gathers_now
        if gathering:
            self.step_graphs.take_layers(optimizer.own_state.active_layers)
        step = self._accumulated_step if self.accumulate > 1 else self._single_batch_step
        loss, finite = step(gathering, self._scale(), *inputs)
        failed = finite is not None and optimizer.finished(finite)
        if gathering or self.accumulate > 1 or not self._state_watch.noted:  # a plain step changes no storage
            self._state_watch.note()
            self._sums_watch.note()
        where = first_bad_layer(self.network, self.loss_fn, self.update.weights, inputs) if failed else None
        if finite is False:
            self._moving.mend()
        if failed:
            where = where or likely_cause(self.step_graphs.scaled, self.accumulate > 1, optimizer.ranks is not None)
            raise FloatingPointError(stop_message(optimizer.step, read(optimizer.own_state.bad_steps), where))
        return loss

    def _before_step(self) -> None:
        """Notice loaded or changed state, check the network, and prepare the inner optimizer."""
        optimizer = self.optimizer
        self._notice_changes()
        if not self._state_watch.noted and optimizer.ranks is not None:  # ranks may have loaded different checkpoints
            same_everywhere(optimizer.ranks, shared_settings(optimizer, self.accumulate))
        optimizer.integrity.check()
        if isinstance(optimizer.inner, FirstOrder) and (self.accumulate == 1 or read(self.micro_step) == 0):
            optimizer.inner.prepare()
        self._moving.before_step()
        optimizer.set_learning_rate()

    def _single_batch_step(self, gathering: bool, scale: Tensor | None, *inputs: Any) -> tuple[Tensor, bool]:
        if gathering:
            return self._refresh_and_apply(scale, *self.step_graphs.curvature(scale, *inputs))
        loss, finite = self.step_graphs.plain(scale, *inputs)
        return loss, bool(finite.asnumpy())

    def _refresh_and_apply(
        self, scale: Tensor | None, loss: Tensor, finite: Tensor, *gradients: Tensor
    ) -> tuple[Tensor, bool]:
        """Average the fresh statistics, refresh if it is due, and move the weights; do nothing if not ``finite``.

        ``gradients`` are those of the weights, followed by the statistics.
        """
        if not bool(finite.asnumpy()):
            return loss, False
        optimizer, graphs, count = self.optimizer, self.step_graphs, len(self.update.weights)
        state, options = optimizer.own_state, optimizer.options
        gain, weight = state.gain(graphs.in_graph, options.factor_decay)
        graphs.average(scale, gain, *gradients[count:])
        state.schedule_gathering(weight, options.gather_interval(state.step))
        if state.refreshes_now:
            self._sent_by_refresh = optimizer.refresh(graphs.in_graph)
        loss, finite = graphs.apply(loss, *gradients[:count])
        return loss, bool(finite.asnumpy())

    def _accumulated_step(self, gathering: bool, scale: Tensor | None, *inputs: Any) -> tuple[Tensor, bool | None]:
        """Process one micro-batch, and after the last one finish the step. Returns (loss, finite), None before that."""
        graphs = self.step_graphs
        if read(self.micro_steps) != self.accumulate:  # loaded sums are of a step with other micro-batches
            write(self.micro_steps, self.accumulate)
            write(self.micro_step, 0)
        if not read(self.micro_step):  # an interrupted step may have left sums behind
            graphs.clear_sums()
        loss = graphs.add(gathering, scale, *inputs)
        done = read(self.micro_step) + 1
        write(self.micro_step, done % self.accumulate)
        if done < self.accumulate:
            return loss, None
        if gathering:
            return self._refresh_and_apply(scale, *graphs.finish_curvature(scale))
        total, finite = graphs.finish(scale)
        return total, bool(finite.asnumpy())

    def construct(self, *_: Any) -> None:
        """Raise RuntimeError; called only if the step is compiled into another graph, as data sinking does."""
        raise RuntimeError(
            "thor.TrainStep decides on the host and cannot be part of another graph: "
            "use Model.train(..., dataset_sink_mode=False), and call it outside ms.jit"
        )

    # -- housekeeping --------------------------------------------------------------------------------------------

    def _scale(self) -> Tensor | None:
        """The loss scale as a Tensor for graphs, a new one only if the scale has changed; None if nothing is scaled.

        A graph takes longer with an argument that it does not use.
        """
        if not self.step_graphs.scaled:
            return None
        value = self.optimizer.own_state.scale.asnumpy()
        if value[0] not in self._scales:
            self._scales = {value[0]: Tensor(value.copy())}
        return self._scales[value[0]]

    def _flags(self) -> Flags:
        """The flags of Cells and weights that graphs are compiled for."""
        trains = tuple(weight.requires_grad for weight in self.update.weights)
        return Flags(tuple(cell.training for cell in self._flagged_cells), trains)

    def _notice_changes(self) -> None:
        """Follow what has been loaded, and options, flags and weights that have changed since the last step."""
        inner, graphs = self.optimizer.inner, self.step_graphs
        changes = getattr(inner, "changes", 0)
        if changes != self._inner_changes:
            no_more_parameters(inner, self.optimizer.decays)
            graphs.release()
            self._inner_changes = changes
        if self._state_watch.moved:
            self._moving.forget()
            self._state_watch.forget()
            forget_compiled_construct(inner)
            if self.accumulate > 1 and not self._sums_watch.moved:
                write(self.micro_step, 0)  # the sums were not loaded and belong to a lost step
        unfrozen = next((p.name for p in self._not_optimized if p.requires_grad), None)
        if unfrozen is not None:
            raise RuntimeError(
                f"weight {unfrozen} has requires_grad=True now, but the optimizer was made without it: make a new "
                f"optimizer (thor.detach(net) first), or name the weight in its params from the start"
            )
        graphs.scale_loss(self.optimizer.scaled)
        graphs.follow(self._flags())


def _cells_in(loss_fn: Callable[..., Any] | None) -> list[nn.Cell]:
    """The Cells that a loss function is, is a method of, or has in its closure."""
    values = [loss_fn, getattr(loss_fn, "__self__", None), *(c.cell_contents for c in _closure(loss_fn))]
    return [value for value in values if isinstance(value, nn.Cell)]


def _closure(function: Any) -> tuple[Any, ...]:
    return getattr(function, "__closure__", None) or ()
