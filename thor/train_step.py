"""TrainStep: one training step, from a batch to updated weights.

The host decides which compiled functions run (step/graphs.py); no graph contains a decision of the trace rule:

    plain step        backward + precondition + update, in one function
    curvature step    backward with factors; running averages; refresh on the host, if due; precondition + update
    accumulation      every micro-batch adds its gradients to sums; the rest of the step follows the last micro-batch
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from mindspore import Parameter, ParameterTuple, Tensor, nn

from first_order.base import FirstOrder
from first_order.cells import set_unregistered
from first_order.checks import check_int, flag
from first_order.compiled import clear_failed_call
from first_order.storage_watch import StorageWatch
from thor.ahead import Ahead
from thor.distributed.agreement import same_everywhere
from thor.distributed.ranks import copy_first
from thor.optimizer import THOR
from thor.plain_optimizer import PlainOptimizer
from thor.refreshing import Refreshing
from thor.runtime import device
from thor.runtime.graph_ops import forget_compiled_construct
from thor.runtime.parameters import read
from thor.settings.kinds import INVERSE
from thor.settings.learning_rate import RateList
from thor.shared_settings import compare_over_ranks, shared_settings
from thor.step.accumulation import Accumulators
from thor.step.diagnose import first_bad_layer, likely_cause, stop_message
from thor.step.differentiated import Differentiated
from thor.step.forward import Forward, examples_of, further
from thor.step.graphs import StepGraphs
from thor.step.layer_update import no_more_parameters
from thor.step.micro_batches import MicroBatches
from thor.step.moving_averages import MovingAverages
from thor.step_control import step_control, update_of


class TrainStep(nn.Cell):
    """``loss = step(x, y)``: forward, backward, curvature when it is due, and the update of the weights.

    A batch is given by position, ``step(x, y)``, or by name, ``step(input_ids=x, labels=y)``; NumPy arrays are taken
    too. ``ms.Model`` trains it: ``Model(step).train(epochs, dataset, callbacks, dataset_sink_mode=False)``. Give
    ``eval_network=nn.WithEvalCell(net, loss_fn)`` and ``metrics`` to evaluate during training (``Model.fit``). On a GPU
    or an Ascend ``ms.data_sink(step, dataset)`` makes a function that takes each batch from the device's queue.

    Args:
        net: the network; for :class:`thor.THOR` the one that the optimizer was made for.
        loss_fn: ``loss_fn(net(*inputs), *labels)``, a mean over the batch. The labels are the last inputs of a batch,
            as many as ``loss_fn`` has required arguments behind the output. None if ``net`` returns the loss.
        optimizer: a :class:`thor.THOR` or any ``nn.Optimizer``.
        has_aux: whether network or loss return (loss, ...); a step then returns ``(loss, aux)``, and ``aux`` is what
            follows the loss, as one value or as a tuple of several.
        accumulate: number of micro-batches whose gradients (and factors) are averaged into one step.
        jit: compile the step, in GRAPH_MODE and in PYNATIVE_MODE. False runs it operator by operator, for debugging.
        loss_scale, max_bad_steps: as those of THOR, for an ``nn.Optimizer``; THOR has its own.
        clip_norm: for an ``nn.Optimizer``, limit of the norm of all gradients together; None for no limit.
    """

    control: THOR | PlainOptimizer
    loss_fn: Callable[..., Any] | None
    _bound = _compared = False

    def __init__(
        self, net: nn.Cell, loss_fn: Callable[..., Any] | None, optimizer: nn.Cell, *, has_aux: bool = False,
        accumulate: int = 1, jit: bool = True, loss_scale: Any = None, max_bad_steps: int | None = None,
        clip_norm: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__(auto_prefix=False)
        if not isinstance(net, nn.Cell):
            raise TypeError(f"net must be an nn.Cell, but got {type(net).__name__}")
        if loss_fn is not None and not callable(loss_fn):
            raise TypeError(f"loss_fn must be callable or None, but got {loss_fn!r}")
        self.accumulate = check_int("accumulate", accumulate, 1)
        control = step_control(net, optimizer, loss_scale, max_bad_steps, clip_norm)
        self.network, self.optimizer = net, optimizer
        if isinstance(control, PlainOptimizer):
            self.own_state = control.own_state  # THOR has its state as a child of its own
        self.forward_pass = self.make_forward(net, loss_fn, flag("has_aux", has_aux))
        set_unregistered(self, loss_fn=loss_fn, control=control)
        self.jit = bool(jit)
        device.allow_deep_graphs()
        self._moving = MovingAverages(net)
        self._lengths: tuple[Any, ...] | None = None
        if not self._chooses_blocks:  # the first step binds, once it has chosen the block size
            self._bind()
        self.set_train()

    def make_forward(self, net: nn.Cell, loss_fn: Callable[..., Any] | None, has_aux: bool) -> Forward:
        """How a batch goes through network and loss."""
        return Forward(net, loss_fn, has_aux)

    @property
    def _chooses_blocks(self) -> bool:
        return isinstance(self.control, THOR) and self.control.options.auto

    def _bind(self) -> None:
        """Set up everything that depends on the optimizer's final layers and state."""
        control, ranks = self.control, self.control.ranks
        others = self.forward_pass.other_parameters()
        names = {p.name for p in (*self.network.get_parameters(), *self.optimizer.get_parameters())}
        self.loss_parameters = ParameterTuple([p for p in others if p.name not in names])  # in checkpoints of the step
        if ranks is not None:
            same_everywhere(ranks, shared_settings(control, self.accumulate))
            copy_first([*self.network.get_parameters(), *others])
        layers = control.captured if isinstance(control, THOR) else []
        sums = Accumulators(control.inner.parameters, layers) if self.accumulate > 1 else None
        if sums is not None:
            self.micro_batches = MicroBatches(self.accumulate)
            self.sums, self.factor_sums, self.loss_sum = sums.gradients, sums.statistics, sums.loss
        self.update = update_of(control)
        self._ahead = Ahead(control, single=sums is None, jit=self.jit)
        if self._ahead.possible:
            self.update.mend_in_graph(self._moving)
        self.step_graphs = StepGraphs(
            self.forward_pass, layers, self.update, ranks=ranks, sums=sums, jit=self.jit, state=control.own_state
        )
        self.step_graphs.lengths = self._lengths
        own = control.own_state.in_graphs
        state = [*self.network.get_parameters(), *others, *own, *control.inner.get_parameters()]
        self._state_watch = StorageWatch(state)  # covers everything that graphs read and write
        self._sums_watch = StorageWatch([] if sums is None else sums.gradients)
        self._inner_changes = -1  # inner.changes, which counts changes of its options, when graphs were compiled
        self._scales: dict[float, Tensor] = {}
        self._refreshing = Refreshing(control, self.update) if isinstance(control, THOR) else None
        optimized = {id(weight) for weight in control.inner.parameters}
        unknown = (p for p in self.network.get_parameters() if id(p) not in optimized)
        self._not_optimized = [p for p in unknown if not p.requires_grad]
        self._rates = RateList(control.inner)
        self._bound = True

    # -- for users -----------------------------------------------------------------------------------------------

    def parameters_and_names(self, name_prefix: str = "", expand: bool = True) -> Iterator[tuple[str, Parameter]]:
        """As of any Cell, with the last step counted: checkpoints are made of it."""
        if self._bound:
            self.control.own_state.settle()
        return super().parameters_and_names(name_prefix, expand)

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
        if not self._bound:
            return {}
        across, ranks = self.update.across, self.control.ranks
        each = 0 if across is None else across.bytes
        sent = {kind: count + each for kind, count in self.step_graphs.message_bytes.items()}
        return sent | ({} if ranks is None else {"refresh": 0 if self._refreshing is None else self._refreshing.sent})

    def set_inputs(self, *inputs: Any, **named: Any) -> None:
        """Compile plain steps once for all lengths of the axes that are None in the shapes of these Tensors.

        A curvature step is compiled anew for each shape, since the formulas of the factors need all lengths; so is a
        micro-batch.
        """
        self._lengths = self.forward_pass.bind(inputs, named)
        if self._bound:
            self.step_graphs.lengths = self._lengths
            self.step_graphs.release()

    # -- the step ------------------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Make one step, or one micro-batch of it, and return the unscaled loss, or (loss, aux) with ``has_aux``."""
        inputs, gathering = self._start(args, kwargs)
        self._read_functions()
        step = self._accumulated_step if self.accumulate > 1 else self._single_batch_step
        with self._clear_errors(inputs):
            loss, finite, *aux = step(gathering, self._scale(), *inputs)
            self.control.own_state.settle()  # the step before
            if isinstance(finite, Tensor) and not self._ahead.leaves_flag:
                finite = bool(finite.asnumpy())
        if isinstance(finite, Tensor):
            self._note_storage(False)
            self.control.own_state.count_later(partial(self._end_later, finite, inputs))
        else:
            self._end(finite, gathering, inputs)
        return (loss, further(aux[0])) if aux else loss

    def differentiate(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Differentiated:
        """The first half of a step: loss and gradients of a batch, with fresh statistics if they are due."""
        inputs, gathering = self._start(args, kwargs)
        scale, count = self._scale(), len(self.update.weights)
        run = self.step_graphs.curvature if gathering else self.step_graphs.gradients
        with self._clear_errors(inputs):
            (loss, finite, *values), aux = self._without_aux(run(scale, *inputs))
        self._note_storage(gathering)
        statistics = tuple(values[count:]) if gathering else None
        return Differentiated(inputs, scale, loss, finite, tuple(values[:count]), statistics, tuple(map(further, aux)))

    def move(self, found: Differentiated, gradients: Sequence[Tensor]) -> Tensor:
        """The second half of a step: refresh if it is due, and move the weights by these gradients."""
        self._read_functions()
        loss = found.loss
        if found.statistics is not None:
            loss, finite = self._refresh_and_apply(found.scale, loss, found.finite, *gradients, *found.statistics)
        elif finite := bool(found.finite.asnumpy()):
            loss, moved = self.step_graphs.apply(loss, *gradients)
            finite = bool(moved.asnumpy())
        self._end(finite, found.statistics is not None, found.inputs)
        return loss

    def _read_functions(self) -> None:
        """Read hyper-parameters that are functions, once for each step that moves the weights."""
        if isinstance(self.control.inner, FirstOrder) and (self.accumulate == 1 or self.micro_batches.begins):
            self.control.inner.prepare()

    def _start(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], bool]:
        """Bind the batch and prepare the step; also whether it gathers factors."""
        inputs = self.forward_pass.bind(args, kwargs)
        control = self.control
        if control.own_state.uncounted and not (self._bound and self._ahead.launches and not self._state_watch.moved):
            control.own_state.settle()
        if not self._bound:
            if self._chooses_blocks:
                control.profile_blocks(self.forward_pass.loss_alone(), inputs)
            self._bind()
        self._before_step()
        if self._refreshing is None or not control.own_state.gathers_now:
            return inputs, False
        if active := self._refreshing.layers:
            self.step_graphs.take_layers(active)
        return inputs, bool(active)

    def _end(self, finite: bool | None, gathering: bool, inputs: tuple[Any, ...]) -> None:
        """Count the step, and stop training after too many that were not finite; ``finite`` is None within a step."""
        failed = finite is not None and self.control.finished(finite)
        self._note_storage(gathering or self.accumulate > 1)
        where = first_bad_layer(self.forward_pass, self.update.weights, inputs) if failed else None
        if finite is False:
            self._moving.mend()
        if failed:
            state, ranks = self.control.own_state, self.control.ranks
            damped = isinstance(self.control, THOR) and self.control.options.kind == INVERSE
            where = where or likely_cause(self.step_graphs.scaled, self.accumulate > 1, ranks is not None, damped)
            raise FloatingPointError(stop_message(state.step, read(state.bad_steps), where, damped))

    def _end_later(self, finite: Tensor, inputs: tuple[Any, ...]) -> None:
        """As :meth:`_end`, for a plain step whose flag has not been read."""
        self._end(bool(finite.asnumpy()), False, inputs)

    def _note_storage(self, changed: bool) -> None:
        """Remember where values lie; ``changed`` if that may be elsewhere than before, as after no plain step."""
        if changed or not self._state_watch.noted:
            self._state_watch.note()
            self._sums_watch.note()

    @contextmanager
    def _clear_errors(self, inputs: tuple[Any, ...]) -> Iterator[None]:
        """Say what is wrong with the loss, if that is why a graph cannot be compiled or run."""
        try:
            yield
        except (TypeError, ValueError, RuntimeError, AttributeError) as error:
            clear_failed_call()
            complaint = self.forward_pass.complaint(inputs)
            if complaint is None:
                raise
            raise TypeError(complaint) from error

    def _before_step(self) -> None:
        """Notice loaded or changed state, check the network, and write the learning rate."""
        control = self.control
        self._notice_changes()
        if not self._compared and control.ranks is not None:  # ranks may have loaded different checkpoints
            compare_over_ranks(control, self.accumulate)
            if self.accumulate > 1:  # loaded sums are those of one rank
                self.micro_batches.begin_anew()
            self._compared = True  # a load that only some ranks notice later must not make them wait for the others
        self._moving.before_step()
        self._rates.before_step()
        if isinstance(control, THOR):
            control.integrity.check()
        if self._refreshing is not None and self._refreshing.adopt_if_due() and self._state_watch.noted:
            self._state_watch.note()
        if control.host_rate is not None:
            control.host_rate.write(control.own_state.step)

    def _single_batch_step(self, gathering: bool, scale: Tensor | None, *inputs: Any) -> tuple[Any, ...]:
        """(loss, finite), and with ``has_aux`` the further outputs; ``finite`` of a plain step is yet to be read."""
        run = self.step_graphs.curvature if gathering else self.step_graphs.plain
        outputs, aux = self._without_aux(run(scale, *inputs))
        if gathering:
            return (*self._refresh_and_apply(scale, *outputs), *aux)
        return (*outputs, *aux)

    def _without_aux(self, outputs: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """What a graph returns, and with ``has_aux`` apart from it the further outputs, which come last."""
        return (outputs[:-1], outputs[-1:]) if self.forward_pass.has_aux else (outputs, ())

    def _refresh_and_apply(
        self, scale: Tensor | None, loss: Tensor, finite: Tensor, *gradients: Tensor
    ) -> tuple[Tensor, bool]:
        """Average the fresh statistics, refresh if it is due, and move the weights; do nothing if not ``finite``.

        ``gradients`` are those of the weights, followed by the statistics.
        """
        if not bool(finite.asnumpy()):
            return loss, False
        optimizer, graphs, count = self.control, self.step_graphs, len(self.update.weights)
        assert isinstance(optimizer, THOR) and self._refreshing is not None
        state, options = optimizer.own_state, optimizer.options
        gain, weight = self._refreshing.gain(graphs.in_graph)
        graphs.average(scale, gain, *gradients[count:])
        state.schedule_gathering(weight, options.gather_interval(state.step))
        self._refreshing.refresh_if_due()
        loss, finite = graphs.apply(loss, *gradients[:count])
        return loss, bool(finite.asnumpy())

    def _accumulated_step(self, gathering: bool, scale: Tensor | None, *inputs: Any) -> tuple[Any, ...]:
        """Process one micro-batch, and after the last one finish the step: (loss, finite); before that finite is None.

        With ``has_aux`` the further outputs of the micro-batch follow.
        """
        graphs, batches, examples = self.step_graphs, self.micro_batches, examples_of(inputs)
        if batches.begin():  # an interrupted step may have left sums behind
            graphs.clear_sums()
        (loss,), aux = self._without_aux(graphs.add(gathering, scale, batches.weight(examples), *inputs))
        if not batches.count(examples):
            return (loss, None, *aux)
        if gathering:
            sums = graphs.finish_curvature(scale, batches.share, batches.examples)
            return (*self._refresh_and_apply(scale, *sums), *aux)
        total, finite = graphs.finish(scale, batches.share, batches.examples)
        return (total, bool(finite.asnumpy()), *aux)

    def construct(self, *_: Any) -> None:
        """Raise RuntimeError; called only if the step is compiled into another graph, as data sinking does."""
        raise RuntimeError(
            "thor.TrainStep decides on the host and cannot be part of another graph: use Model.train(..., "
            "dataset_sink_mode=False) or, to sink data, ms.data_sink(step, dataset); and call it outside ms.jit"
        )

    # -- housekeeping --------------------------------------------------------------------------------------------

    def _scale(self) -> Tensor | None:
        """The loss scale as a Tensor for graphs, a new one only if the scale has changed; None if nothing is scaled.

        A graph takes longer with an argument that it does not use.
        """
        if not self.step_graphs.scaled:
            return None
        value = self.control.own_state.scale.asnumpy()
        if value[0] not in self._scales:
            self._scales = {value[0]: Tensor(value.copy())}
        return self._scales[value[0]]

    def _notice_changes(self) -> None:
        """Follow what has been loaded, and options, flags and weights that have changed since the last step."""
        control, graphs, inner = self.control, self.step_graphs, self.control.inner
        changes = getattr(inner, "changes", 0)
        if changes != self._inner_changes:
            no_more_parameters(inner, len(self.update.weights))
            graphs.release()
            self._inner_changes = changes
        if self._state_watch.moved:
            control.own_state.loads += 1
            self._moving.forget()
            self._rates.forget()
            if self._refreshing is not None:
                self._refreshing.forget()
            if control.host_rate is not None:
                control.host_rate.forget()
            if self.jit:
                self._state_watch.restore()
            self._state_watch.forget()
            forget_compiled_construct(inner)
            if self.accumulate > 1 and (control.ranks is not None or not self._sums_watch.moved):
                self.micro_batches.begin_anew()  # the sums belong to a lost step, or are those of one rank
        # another step may have adopted new caches, or noticed a load
        self.update.renew_groups(control.own_state.loads if self._state_watch.noted else None)
        unfrozen = next((p.name for p in self._not_optimized if p.requires_grad), None)
        if unfrozen is not None:
            raise RuntimeError(
                f"weight {unfrozen} has requires_grad=True now, but the optimizer was made without it: make a new "
                f"optimizer (thor.detach(net) first), or name the weight in its params from the start"
            )
        graphs.scale_loss(control.scaled)
        graphs.follow_flags()
