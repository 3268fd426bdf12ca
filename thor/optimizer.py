"""THOR: named state, the two clocks, refresh, and the inner optimizer that moves the weights."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from typing import Any

import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from thor.capture.attach import detach, left_as_found, tapped_cells
from thor.capture.integrity import Structure
from thor.capture.targets import LeftOut, Target, find_targets, keep_optimized
from thor.checkpoint import gathered_state, load_state, plan_parameter
from thor.curvature.factor import squeezed
from thor.curvature.inverter import Inverter, Job
from thor.curvature.layer import Layer, by_layer, cuts_of
from thor.curvature.trace_rule import Decision, RefreshRecord, TraceRule
from thor.distributed.exchange import PieceExchange, placement_of
from thor.distributed.ranks import Sharing, ranks_of_context
from thor.profile import auto
from thor.profile.profile_file import Profile
from thor.records import LayerRecord, describe_optimizer, log_layers, report_unused
from thor.runtime import convolution, device
from thor.runtime.parameters import float_parameter, int_parameter, read, write
from thor.settings import loss_scale as scales
from thor.settings.inner_optimizer import DEFAULT_MOMENTUM, inner_optimizer
from thor.settings.options import read_options

logger = logging.getLogger("thor")

ACTIVE, STOPPED = 0, 1
DEFAULT_RULE = TraceRule()
#: A stopped layer leaves the compiled curvature step once this share of the cost has stopped since the last
#: compilation, so that a run recompiles four times at the most.
RECOMPILE_SHARE = 0.25


class THOR(nn.Cell):
    r"""Second-order optimizer: per-layer Kronecker-factored natural gradient, refreshed by the trace rule.

    Each captured layer's gradient is preconditioned, :math:`(G + gI)^{-1}\, dW\, (A + aI)^{-1}`, then handed with all
    others to an ordinary first-order optimizer. Factors are gathered and inverted only now and then, and per layer
    only when the trace of the factor has moved (see :mod:`thor.refresh`). Use it through :class:`thor.TrainStep`.

    Args:
        net: the network. Its dense, convolution, embedding and, with ``norms``, normalisation layers are captured in
            place (thor/capture/targets.py lists them): names, values and outputs stay; ``thor.detach(net)`` undoes it.
            All other weights take the plain gradient.
        learning_rate: number, callable of the step, or anything ``nn.Momentum`` takes; None leaves ``inner``'s alone.
        damping: what is added to the Fisher block before inversion, number or callable of the step. Large values turn
            the direction to the gradient's and shrink the step; start at 0.03 and lower it as training settles.
        momentum, weight_decay: of the default inner Momentum.
        block_size: the largest diagonal block of a factor; a :class:`thor.BlockPlan`; the path of a profile that
            ``thor profile`` wrote; or "auto", which profiles at the first step and keeps the result for the next run.
        split, rank: what is kept beside the blocks, see :mod:`thor.factors.blocks`; a plan has its own.
        refresh: the trace rule; ``TraceRule.thor()``, ``.thor_stop()`` and ``.thor_nt()`` are the paper's.
        interval: steps from one candidate refresh to the next, int or callable (:class:`thor.GrowingInterval`).
        factor_interval: steps from one gathering of factors to the next. None: a tenth of ``interval``, or ``interval``
            itself where ``factor_decay`` is 0.
        factor_share: share of a batch's examples, the first ones, from which factors are gathered; 1 for all. The
            factors are the same in expectation and noisier; a curvature step costs that share of its extra time.
        factor_decay: of the factors' running average, which is bias-corrected; 0 keeps the last batch only.
        inner: the optimizer that moves the weights; None for ``nn.Momentum``.
        loss_scale: number, :class:`thor.DynamicLossScale` or a ``mindspore.amp`` scaler.
        clip: largest squared length of a step in the norm of the curvature (kl clip), usually 1e-3; None: no limit. For
            Momentum and SGD.
        clip_each: largest norm of each weight's gradient, before it is preconditioned. None for no limit.
        skip: regular expressions; layers whose name matches take the plain gradient.
        norms: whether scale and shift of normalisation layers are preconditioned, by their diagonal Fisher.
        params: parameter groups for the default Momentum, as ``nn.Optimizer`` takes them.
        weight_decay_mode: "coupled": added to the preconditioned direction, through momentum (the released THOR);
            "decoupled": w <- (1 - lr weight_decay) w, apart from the step, whatever moves the weights.
        inverse: "lapack", "cholesky" or "newton-schulz"; None for what suits the device.
        sharing: how the ranks of a data-parallel job share the inverses (:class:`thor.Sharing`); None for its defaults.
        max_bad_steps: non-finite steps in a row, each skipped whole, after which training stops with an error.
    """

    def __init__(
        self, net: nn.Cell, learning_rate: Any, damping: Any, momentum: float = DEFAULT_MOMENTUM,
        weight_decay: float = 0.0, *, block_size: Any = 128, split: str = "block+mean", rank: int = 16,
        refresh: TraceRule = DEFAULT_RULE, interval: Any = 100, factor_interval: Any = None, factor_decay: float = 0.95,
        inner: nn.Optimizer | None = None, loss_scale: Any = 1.0, clip: float | None = None, skip: Any = (),
        params: Any = None, weight_decay_mode: str = "coupled", inverse: str | None = None, max_bad_steps: int = 10,
        norms: bool = False, clip_each: float | None = None, sharing: Sharing | None = None, factor_share: float = 1.0,
    ) -> None:  # fmt: skip
        super().__init__(auto_prefix=False)
        if not isinstance(net, nn.Cell):
            raise TypeError(f"net must be an nn.Cell, but got {net!r} of type {type(net).__name__}")
        attached = [name for name, _ in tapped_cells(net)]
        if attached:
            raise ValueError(
                f"net is attached to a THOR optimizer already (layer {attached[0]} and {len(attached) - 1} more); "
                f"call thor.detach(net) first"
            )
        self.options = read_options(
            damping=damping, block_size=block_size, split=split, rank=rank, refresh=refresh, interval=interval,
            factor_interval=factor_interval, factor_decay=factor_decay, clip=clip, clip_each=clip_each,
            weight_decay=weight_decay, weight_decay_mode=weight_decay_mode, skip=skip, max_bad_steps=max_bad_steps,
            norms=norms, factor_share=factor_share,
        )  # fmt: skip
        self._scale_rule: scales.DynamicLossScale | None
        scale, self._scale_rule = scales.read(loss_scale)
        device.warn_of_cached_graphs()
        self._inverter = Inverter(device.inverse_method(inverse))
        moving = inner_optimizer(net, inner, learning_rate, momentum, self.options, params)
        self.inner, self._rate, self.decays = moving
        object.__setattr__(self, "_net", net)  # not a child: the network saves its own weights under its own names
        self._history: list[RefreshRecord] = []
        self._unused: set[str] = set()
        chosen = self._targets()
        self._profile_path = auto.cache_file(chosen, self._inverter.method) if self.options.auto else None
        if self._profile_path is not None:
            self._take_profile(auto.cached(self._profile_path))
        self.ranks = ranks_of_context(sharing)
        if self.ranks is not None and self.options.auto:
            raise ValueError(
                "block_size='auto' measures this process's machine, and ranks could choose differently: run "
                "`thor profile` once and give the path of its profile"
            )
        self._take_layers(chosen)
        self._name_state(scale)
        log_layers(self.layers, self._left_out)

    # -- construction --------------------------------------------------------------------------------------------

    def _targets(self) -> list[Target]:
        """Every layer that can be captured and is optimized."""
        targets, self._left_out = find_targets(self._net, self.options.skip, self.options.norms)
        optimized = {id(weight) for weight in self.inner.parameters}
        chosen, others = keep_optimized(targets, optimized)
        self._left_out += others
        if not chosen:
            why = "; ".join(f"{x.name} ({x.type}): {x.reason}" for x in self._left_out[:5]) or "it has no weights"
            raise ValueError(
                f"no layer to capture in {type(self._net).__name__}: THOR preconditions dense, convolution, embedding "
                f"and normalisation layers with trainable weights, and found none ({why})"
            )
        return chosen

    def _take_layers(self, targets: list[Target]) -> None:
        """Capture the targets; in a data-parallel job, share them out first."""
        plan, share, ranks = self.options.plan, self.options.factor_share, self.ranks
        self._column_of = [0] * len(targets)
        self.exchange: PieceExchange | None = None  # how ranks share a refresh; None where each does all of it
        if ranks is not None and ranks.sharing.shared:
            placement = placement_of([(t.copies, *cuts_of(t, plan)) for t in targets], ranks)
            self.exchange = self._inverter.exchange = PieceExchange(ranks, placement, [t.name for t in targets])
            self._column_of = list(placement.column_of)
        held = [ranks is None or column == ranks.own_column for column in self._column_of]
        self._captured = [Layer(t, plan, held=own, share=share) for t, own in zip(targets, held, strict=True)]
        convolution.forget_graphs(self._net)
        self.structure = Structure(self._net, self._captured)

    def _take_profile(self, profile: Profile | None) -> None:
        """Adopt the plan that a profile chose, if there is one."""
        if profile is not None:
            logger.info("%s", auto.describe_choice(profile))
            plan = profile.plan(self.options.plan.split, self.options.plan.rank)
            self.options = replace(self.options, plan=plan, auto=False)

    def profile_blocks(self, loss_fn: Any, inputs: tuple[Any, ...]) -> None:
        """Choose the block size on a first batch (``block_size="auto"``), and begin anew with the chosen plan."""
        assert self._profile_path is not None
        with left_as_found(self._net):
            detach(self._net)
            names = {layer.name for layer in self._captured}
            others = [f"^{re.escape(t.name)}$" for t in find_targets(self._net)[0] if t.name not in names]
            profile = auto.profile_for_training(
                self._net, loss_fn, inputs, self._profile_path, others, self._inverter.method
            )
        self._take_profile(profile)
        scale = float(self.scale.asnumpy()[0])
        self._params.clear()  # the stand-in plan's state: the new one stands in its own order
        self._take_layers(self._targets())
        self._name_state(scale)
        log_layers(self.layers, self._left_out)

    def _name_state(self, scale: float) -> None:
        """Everything training depends on, as Parameters; the plan first, for it checks what is loaded."""
        layers = self._captured
        self.plan = plan_parameter(self.options.plan, layers, lambda: self.options.auto)
        self.curvature = ParameterTuple([p for y in layers for f in (y.a, y.g) for p in f.parameters])
        self.step_count = int_parameter("step", 0)
        self.next_refresh = int_parameter("next_refresh", 0)
        self.next_gather = int_parameter("next_gather", 0)
        self.average_weight = float_parameter("average_weight", 0.0)
        self.status = int_parameter("status", np.full(len(layers), ACTIVE))
        self.refreshes = int_parameter("refreshes", np.zeros(len(layers)))
        self.kept = int_parameter("kept", np.zeros(len(layers)))
        self.traces = float_parameter("traces", np.zeros(2 * sum(y.copies for y in layers)))
        self.scale = float_parameter("loss_scale", scale)
        self.good_steps = int_parameter("good_steps", 0)
        self.bad_steps = int_parameter("bad_steps", 0)
        self.skipped_steps = int_parameter("skipped_steps", 0)
        self.escalations = int_parameter("escalations", 0)

    # -- what users read -----------------------------------------------------------------------------------------

    @property
    def layers(self) -> list[LayerRecord]:
        """One record per captured layer."""
        status, refreshes, kept = (p.asnumpy() for p in (self.status, self.refreshes, self.kept))
        return [
            LayerRecord(
                layer.name, layer.kind, layer.a.cut.dim, layer.g.cut.dim,
                ((layer.a.cut.count, layer.a.cut.size), (layer.g.cut.count, layer.g.cut.size)),
                "stopped" if status[i] == STOPPED else "active", int(refreshes[i]), int(kept[i]), layer.bytes,
            )
            for i, layer in enumerate(self._captured)
        ]  # fmt: skip

    @property
    def left_out(self) -> list[LeftOut]:
        """Layers with weights that take the plain gradient, and why."""
        return list(self._left_out)

    @property
    def history(self) -> list[RefreshRecord]:
        """The refresh decisions of this process, oldest first."""
        return list(self._history)

    @property
    def step(self) -> int:
        """Steps done; skipped ones do not count."""
        return read(self.step_count)

    def factors(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """(A, G) of a layer as dense float32, as approximated by its split; the bias is A's last coordinate.

        Where a plan with ``order="position"`` cuts A, its coordinates stand in that order. A grouped convolution has a
        leading axis of groups. A factor of which only the diagonal is kept (A of an embedding, G of a normalisation) is
        the vector on its diagonal.
        """
        layer = self._layer(name)
        return squeezed(layer.a.dense()), squeezed(layer.g.dense())

    def inverses(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """(A^-1, G^-1), damped, as applied, dense float32."""
        layer = self._layer(name)
        if not layer.held:
            raise ValueError(f"the inverses of layer {name} lie on other ranks (grad_worker_fraction)")
        return squeezed(layer.a.dense_inverse()), squeezed(layer.g.dense_inverse())

    def state(self) -> list[dict[str, Any]]:
        """Everything, for ``ms.save_checkpoint(state, path)``, also where ranks hold the inverses of some layers only.

        In a data-parallel job all ranks must call it, for they bring their parts together.
        """
        return gathered_state(self, self._captured, self._column_of, self.ranks)

    def load(self, parameters: dict[str, Parameter]) -> None:
        """Take over what ``ms.load_checkpoint`` read of a :meth:`state`: of inverses those that this rank holds."""
        load_state(self, self._captured, parameters)

    def memory(self) -> dict[str, int]:
        """Bytes of curvature state per layer, and in all under ``"total"``."""
        sizes = {layer.name: layer.bytes for layer in self._captured}
        return sizes | {"total": sum(sizes.values())}

    def _layer(self, name: str) -> Layer:
        found = next((layer for layer in self._captured if layer.name == name), None)
        if found is None:
            raise KeyError(f"no captured layer {name!r}; there are {', '.join(y.name for y in self._captured)}")
        return found

    def __repr__(self) -> str:
        return describe_optimizer(self, self.options, self._inverter.method)

    def construct(self, *_: Any) -> None:
        """Not for direct use: curvature needs the forward pass as well."""
        raise RuntimeError(
            "THOR needs the forward pass as well as gradients: use step = thor.TrainStep(net, loss_fn, optimizer) and "
            "loss = step(x, y), also inside Model(step).train(..., dataset_sink_mode=False)"
        )

    # -- what TrainStep asks -------------------------------------------------------------------------------------

    @property
    def active_layers(self) -> list[int]:
        """Indices of the layers that have not stopped."""
        return [i for i, s in enumerate(self.status.asnumpy()) if s == ACTIVE]

    @property
    def gathers_now(self) -> bool:
        """Whether this step gathers factors."""
        return self.step >= min(read(self.next_refresh), read(self.next_gather)) and bool(self.active_layers)

    @property
    def refreshes_now(self) -> bool:
        """Whether this step is a candidate refresh."""
        return self.step >= read(self.next_refresh) and bool(self.active_layers)

    def gain(self, indices: list[int]) -> tuple[Tensor, np.float32]:
        """Weight of a fresh factor in the running average, one a layer (0: stopped), and the average's new weight.

        mean_k = mean_{k-1} + (x_k - mean_{k-1}) / w_k with w_k = decay w_{k-1} + 1: the exponential average with its
        bias taken out.
        """
        weight = np.float32(self.options.factor_decay) * self.average_weight.asnumpy()[0] + np.float32(1)
        status = self.status.asnumpy()[indices]
        return Tensor(np.where(status == ACTIVE, np.float32(1) / weight, 0).astype(np.float32)), weight

    def gathered(self, weight: np.float32) -> None:
        """The estimates have taken in a fresh factor."""
        write(self.average_weight, weight)
        write(self.next_gather, self.step + self.options.gather_interval(self.step))

    def refresh(self, indices: list[int], traces: np.ndarray) -> None:
        """Decide for every active layer, from ``Layer.traces`` of layers ``indices``; invert what updates."""
        step, damping = self.step, float(self.options.damping(self.step))
        status, refreshes, kept = (p.asnumpy().copy() for p in (self.status, self.refreshes, self.kept))
        adopted = by_layer(self._captured, range(len(self._captured)), self.traces.asnumpy().copy())
        fresh = by_layer(self._captured, indices, traces.astype(np.float32))
        jobs: dict[int, tuple[Job, ...]] = {}
        at: dict[int, int] = {}  # where in the history a layer's decision stands
        active = [i for i in indices if status[i] == ACTIVE]
        unused = [i for i in active if not self._captured[i].used]  # they keep what they have, at first the identity
        report_unused([self._captured[i].name for i in unused if not refreshes[i]], self._unused, step)
        for i in (i for i in active if i not in unused):
            layer = self._captured[i]
            now = layer.damped_trace(damping, fresh[i])
            before = layer.damped_trace(damping, adopted[i]) if refreshes[i] else None
            decision, change = self.options.refresh.at(step).decide(before, now)
            at[i] = len(self._history)
            self._history.append(RefreshRecord(step, layer.name, now, change, decision))
            if decision is Decision.UPDATE:
                jobs[i] = tuple(Job(factor, each) for factor, each in layer.dampings(damping, fresh[i]).items())
            elif decision is Decision.STOP:
                status[i] = STOPPED
            else:
                kept[i] += 1
        if self.options.refresh.stop and not (set(np.flatnonzero(status == ACTIVE)) - set(unused)):
            status[unused] = STOPPED  # no other layer needs curvature steps any more
        self._inverter.refresh([job for made in jobs.values() for job in made])
        for i, pair in jobs.items():
            if self._adopt(self._captured[i], pair):
                refreshes[i] += 1
                adopted[i][:] = fresh[i]
            else:
                kept[i] += 1
                self._history[at[i]] = replace(self._history[at[i]], decision=Decision.KEEP)
        flat = [adopted[i].reshape(-1) for i in range(len(self._captured))]
        for target, value in (
            (self.status, status), (self.refreshes, refreshes), (self.kept, kept), (self.traces, np.concatenate(flat)),
            (self.next_refresh, step + int(self.options.interval(step))),
        ):  # fmt: skip
            write(target, value)

    def _adopt(self, layer: Layer, pair: tuple[Job, ...]) -> bool:
        """Take over a layer's new inverses, all of them or none."""
        escalated = sum(job.escalated for job in pair)
        if escalated:
            write(self.escalations, read(self.escalations) + escalated)
            logger.warning("step %d: %d blocks of layer %s were not positive definite and got more damping",
                           self.step, escalated, layer.name)  # fmt: skip
        if any(job.failed for job in pair):
            logger.warning("step %d: the factors of layer %s cannot be inverted; it keeps its last good inverse",
                           self.step, layer.name)  # fmt: skip
            return False
        for job in pair:
            job.commit()
        return True

    def set_learning_rate(self) -> None:
        """Write this step's learning rate into the inner optimizer, where the host decides it."""
        if self._rate is not None:
            value = np.float32(self._rate(self.step))
            if self.inner.learning_rate.asnumpy() != value:
                ops.assign(self.inner.learning_rate, Tensor(value))

    @property
    def scaled(self) -> bool:
        """Whether the loss is, or will be, scaled."""
        return self._scale_rule is not None or float(self.scale.asnumpy()[0]) != 1.0

    def finished(self, finite: bool) -> bool:
        """Count the step; answers whether too many in a row were not finite."""
        if finite:
            write(self.step_count, self.step + 1)
            if read(self.bad_steps):
                write(self.bad_steps, 0)
            if self._scale_rule is not None:
                good = read(self.good_steps) + 1
                if good >= self._scale_rule.window:
                    write(self.scale, self._scale_rule.grown(float(self.scale.asnumpy()[0])))
                    good = 0
                write(self.good_steps, good)
            return False
        write(self.skipped_steps, read(self.skipped_steps) + 1)
        if self._scale_rule is not None:
            write(self.good_steps, 0)
            old = float(self.scale.asnumpy()[0])
            fallen = self._scale_rule.fallen(old)
            if fallen is not None:
                write(self.scale, fallen)
                logger.info("step %d: overflow at loss scale %g, skipped; the scale falls", self.step, old)
                return False
        write(self.bad_steps, in_a_row := read(self.bad_steps) + 1)
        logger.warning("step %d: loss or gradients are not finite, step skipped (%d in a row)", self.step, in_a_row)
        return in_a_row >= self.options.max_bad_steps
