"""The THOR optimizer: checks its settings, captures layers, and connects curvature with the inner optimizer."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, nn

from first_order.cells import set_unregistered
from thor.capture.attach import detach, left_as_found
from thor.capture.integrity import NetworkIntegrity, refuse_attached, refuse_others
from thor.capture.targets import LeftOut, Target, find_targets, optimized_targets
from thor.checkpoint import gathered_state, load_state, plan_parameter
from thor.curvature.basis_layer import BasisLayer
from thor.curvature.eigenbasis import Diagonalizer
from thor.curvature.factor import squeezed
from thor.curvature.inverter import Inverter
from thor.curvature.layer import InverseLayer, cuts_of
from thor.curvature.refresh_job import RefreshMethod
from thor.curvature.refresher import Refresher
from thor.curvature.trace_rule import STOPPED, RefreshRecord, TraceRule
from thor.distributed.exchange import PieceExchange, placement_of
from thor.distributed.ranks import Sharing, ranks_of_context
from thor.optimizer_state import OptimizerState
from thor.profile import auto
from thor.profile.profile_file import Profile
from thor.records import LayerRecord, describe_optimizer, log_layers
from thor.runtime import convolution, device
from thor.settings import loss_scale as scales
from thor.settings.inner_optimizer import DEFAULT_MOMENTUM, inner_optimizer
from thor.settings.kinds import EIGENBASIS, INVERSE, PLURALS, READERS, kind_of, with_defaults
from thor.settings.learning_rate import HostRate
from thor.settings.options import read_options
from thor.settings.weight_sharing import sharing_of
from thor.step.adam_moments import AdamMoments

logger = logging.getLogger("thor")


class THOR(nn.Optimizer):
    r"""Second-order optimizer: Kronecker-factored curvature of each layer, as inverses or as eigenbases.

    With damped inverses, the gradient of each captured layer is preconditioned,
    :math:`(G + gI)^{-1}\, dW\, (A + aI)^{-1}`, and handed to a first-order optimizer together with all other gradients.
    With eigenbases, Adam makes its step in the coordinates of the factors' eigenvectors, and no damping is needed.
    Factors are gathered only at some steps. Inverses and eigenbases are refreshed even less often. The trace rule
    (:mod:`thor.curvature.trace_rule`) refreshes a layer only if the trace of its Fisher block has changed; it is on by
    default with inverses. Use THOR through :class:`thor.TrainStep`.

    Args:
        net: the network. Its dense, convolution, embedding and, with ``norms``, normalisation layers are captured in
            place (thor/capture/targets.py lists them). Their names, values and outputs do not change;
            ``thor.detach(net)`` undoes the capture. All other weights take plain Adam beside eigenbases, and the plain
            gradient beside inverses.
        learning_rate: number, callable of the step, or anything ``nn.Momentum`` takes. None keeps the rate of
            ``inner``.
        damping: added to the Fisher block before inversion; number, callable of the step or a
            :class:`thor.RelativeDamping`. None for ``RelativeDamping()`` with inverses; eigenbases have none.
        momentum, weight_decay: of the default inner Momentum; an eigenbasis takes the decay, decoupled.
        precondition: "inverse" or "eigenbasis"; None for "inverse" with a damping, else "eigenbasis".
        block_size: the largest diagonal block of a factor; or a :class:`thor.BlockPlan`; or the path of a profile by
            ``thor profile``; or "auto", which profiles at the first step and keeps the result for the next run.
        split, rank: the approximation of factors outside their blocks, see :mod:`thor.factors.blocks`. A
            :class:`thor.BlockPlan` has its own. None for "block+mean" with inverses; eigenbases have "block".
        refresh: the trace rule; ``TraceRule.thor()``, ``.thor_stop()`` and ``.thor_nt()`` are those of the paper. None
            for ``TraceRule()`` with inverses, and for ``TraceRule.thor_nt()`` with eigenbases.
        interval: steps from one candidate refresh to the next, int or callable (:class:`thor.GrowingInterval`). None
            for 100 with inverses and a damping, else for ``GrowingInterval(1, 100, 1.1)``.
        factor_interval: steps from one gathering of factors to the next, int or callable. None for a tenth of
            ``interval``, or for ``interval`` itself if ``factor_decay`` is 0.
        factor_decay: decay of the factors' running average, which is bias-corrected; 0 keeps only the last batch. None
            for 0.95 with inverses, and for 0.9 with eigenbases.
        factor_share: share of a batch's examples, the first ones, from which factors are gathered: noisier, cheaper.
        beta1, beta2, epsilon: of Adam in eigenbases; None for 0.9, 0.95 and 1e-8.
        rate_factor: factor on the learning rate of layers in eigenbases; None for 4, with which Adam's own rates fit.
        inner: the optimizer that moves the weights by directions of inverses; None for ``nn.Momentum``.
        loss_scale: number, :class:`thor.DynamicLossScale` or a ``mindspore.amp`` scaler.
        clip: limit of a step's squared length in the norm of the curvature (KL clip), usually 1e-3; None for no limit.
            Only with Momentum or SGD.
        graft: True scales each direction of inverses to the norm of the layer's gradient, so that ``inner``'s own
            learning rate fits. None for True if both ``damping`` and ``clip`` are left out.
        clip_each: limit of the norm of each weight's gradient before preconditioning; None for no limit.
        skip: regular expressions; layers whose name matches one are not captured.
        norms: True to precondition scale and shift of normalisation layers by their diagonal Fisher.
        params: parameter groups for the default Momentum, as ``nn.Optimizer`` takes them.
        weight_decay_mode: "coupled" adds the decay to the preconditioned direction, so that it goes through momentum,
            as in the released THOR; "decoupled" is w <- (1 - lr weight_decay) w before the step of any ``inner``. None
            for "coupled" with inverses; eigenbases have "decoupled".
        inverse: "lapack", "cholesky" or "newton-schulz"; None for the one that suits the device.
        sharing: how the ranks of a data-parallel job share the inverses (:class:`thor.Sharing`); None for its defaults.
        weight_sharing: whether the rows of a layer, such as tokens or pixels, are terms of the loss: "expand" if every
            row is one, "pooled" or "reduce" if those of an example are pooled into one; or a mapping from regular
            expressions on layers' names to these. None for "expand" in a network with an embedding, else "pooled".
        max_bad_steps: number of consecutive non-finite steps, all skipped, after which training stops with an error.
    """

    def __init__(
        self, net: nn.Cell, learning_rate: Any, damping: Any = None, momentum: float = DEFAULT_MOMENTUM,
        weight_decay: float = 0.0, *, precondition: str | None = None, block_size: Any = 128, split: str | None = None,
        rank: int = 16, refresh: TraceRule | None = None, interval: Any = None, factor_interval: Any = None,
        factor_decay: float | None = None, beta1: float | None = None, beta2: float | None = None,
        epsilon: float | None = None, inner: nn.Optimizer | None = None, loss_scale: Any = 1.0,
        clip: float | None = None, skip: Any = (), params: Any = None, weight_decay_mode: str | None = None,
        inverse: str | None = None, max_bad_steps: int = 10, norms: bool = False, clip_each: float | None = None,
        sharing: Sharing | None = None, factor_share: float = 1.0, weight_sharing: Any = None,
        graft: bool | None = None, rate_factor: float | None = None,
    ) -> None:  # fmt: skip
        nn.Cell.__init__(self, auto_prefix=False)  # the weights and their moments are those of `inner`
        if not isinstance(net, nn.Cell):
            raise TypeError(
                f"net must be an nn.Cell, but got an object of type {type(net).__name__}: give the network itself, and "
                f"the weights in params if it shall move only some of them"
            )
        kind = kind_of(precondition, damping)
        chosen = with_defaults(kind, {
            "damping": damping, "split": split, "rank": rank, "refresh": refresh, "interval": interval, "clip": clip,
            "factor_decay": factor_decay, "beta1": beta1, "beta2": beta2, "epsilon": epsilon, "inner": inner,
            "inverse": inverse, "weight_decay_mode": weight_decay_mode, "graft": graft,
            "rate_factor": rate_factor,
        })  # fmt: skip
        inner, inverse = chosen.pop("inner"), chosen.pop("inverse")
        self.options = read_options(
            kind, **chosen, block_size=block_size, factor_interval=factor_interval, clip_each=clip_each,
            weight_decay=weight_decay, skip=skip, max_bad_steps=max_bad_steps, norms=norms, factor_share=factor_share,
        )  # fmt: skip
        initial_scale, self.scale_rule = scales.read(loss_scale)
        self._sharing_of = sharing_of(weight_sharing, net)
        device.warn_of_cached_graphs()
        method: RefreshMethod = Inverter(device.inverse_method(inverse)) if kind == INVERSE else Diagonalizer()
        moving, self.rate, self.decays = inner_optimizer(net, inner, learning_rate, momentum, self.options, params)
        # unregistered, because the network saves its weights itself; `inner` is registered last, after the state
        set_unregistered(self, network=net, weights=tuple(moving.parameters))
        refuse_attached(net, self.weights)
        self.ranks = ranks_of_context(sharing)
        if self.ranks is not None and self.options.auto:
            raise ValueError(
                "block_size='auto' measures this process's machine, and ranks could choose differently: run "
                "`thor profile` once and give the path of its profile"
            )
        targets = self._targets()
        self._profile_path = auto.cache_file(targets, method.algorithm) if self.options.auto else None
        if self._profile_path is not None:
            self._take_profile(auto.cached(self._profile_path))
        self._capture(targets, method, initial_scale)
        self.inner = moving
        self._move: Callable[[tuple[Tensor, ...]], Tensor] | None = None
        self.host_rate = None if self.rate is None else HostRate(self.rate, moving)

    # -- construction --------------------------------------------------------------------------------------------

    def _targets(self) -> list[Target]:
        """Every layer that can be captured and whose weights are optimized."""
        options = self.options
        targets, self._left_out = optimized_targets(self.network, self.weights, options.skip, options.norms)
        return targets

    def _capture(self, targets: list[Target], method: RefreshMethod, loss_scale: float) -> None:
        """Attach taps to the targets and create the state; in a data-parallel job, first assign layers to ranks."""
        plan, share, ranks = self.options.plan, self.options.factor_share, self.ranks
        self._column_of = [0] * len(targets)  # for each layer: the column of ranks that holds its inverses
        self.exchange: PieceExchange | None = None  # divides a refresh among ranks; None if each does all of it
        if ranks is not None and ranks.sharing.shared:
            placement = placement_of([(t.copies, *cuts_of(t, plan)) for t in targets], ranks)
            self.exchange = method.exchange = PieceExchange(ranks, placement, [t.name for t in targets])
            self._column_of = list(placement.column_of)
        held = [ranks is None or column == ranks.own_column for column in self._column_of]
        layer_class = InverseLayer if self.options.adam is None else BasisLayer
        self.captured: list[Any] = [
            layer_class(t, plan, held=own, share=share, sharing=self._sharing_of(t.name))
            for t, own in zip(targets, held, strict=True)
        ]
        convolution.forget_graphs(self.network)
        self.integrity = NetworkIntegrity(self.network, self.captured)
        self.refresher = Refresher(self.captured, method)
        guard = plan_parameter(plan, self.captured, lambda: self.options.auto)
        self.moments: AdamMoments | None = None  # of the weights outside captured layers, for eigenbases
        if self.options.adam is not None:
            own = {id(w) for layer in self.captured for w in (layer.weight, layer.bias)}
            self.moments = AdamMoments([w for w in self.weights if id(w) not in own])
        self.own_state = OptimizerState(self.captured, guard, loss_scale, self.moments)
        log_layers(self.layers, self._left_out)

    def _take_profile(self, profile: Profile | None) -> None:
        """Adopt the plan of a profile, if there is one."""
        if profile is not None:
            logger.info("%s", auto.describe_choice(profile))
            plan = profile.plan(self.options.plan.split, self.options.plan.rank)
            self.options = replace(self.options, plan=plan, auto=False)

    def profile_blocks(self, forward: Callable[..., Any], inputs: tuple[Any, ...]) -> None:
        """Choose the block size on a first batch (``block_size="auto"``), and capture the layers anew with it.

        ``forward`` is the loss of the batch.
        """
        assert self._profile_path is not None
        refuse_others(self.network, self.captured)
        method = self.refresher.method
        with left_as_found(self.network):
            detach(self.network)
            names = {layer.name for layer in self.captured}
            found = find_targets(self.network, optimized={id(weight) for weight in self.weights})[0]
            others = [f"^{re.escape(t.name)}$" for t in found if t.name not in names]
            profile = auto.profile_for_training(
                self.network, forward, inputs, self._profile_path, others, method.algorithm
            )
        self._take_profile(profile)
        self._capture(self._targets(), method, self.own_state.loss_scale)

    # -- for users -----------------------------------------------------------------------------------------------

    @property
    def layers(self) -> list[LayerRecord]:
        """One record per captured layer."""
        state = self.own_state
        status, refreshes, kept = (p.asnumpy() for p in (state.status, state.refreshes, state.kept))
        return [
            LayerRecord(
                layer.name, layer.kind, layer.a.cut.dim, layer.g.cut.dim,
                ((layer.a.cut.count, layer.a.cut.size), (layer.g.cut.count, layer.g.cut.size)),
                "stopped" if status[i] == STOPPED else "active", int(refreshes[i]), int(kept[i]), layer.bytes,
                layer.sharing,
            )
            for i, layer in enumerate(self.captured)
        ]  # fmt: skip

    @property
    def left_out(self) -> list[LeftOut]:
        """Layers that are not captured, with the reasons."""
        return list(self._left_out)

    @property
    def history(self) -> list[RefreshRecord]:
        """The refresh decisions of this process, oldest first."""
        return list(self.refresher.history)

    @property
    def step(self) -> int:
        """Number of steps done, without skipped ones."""
        return self.own_state.step

    @property
    def parameters(self) -> Sequence[Parameter]:
        """The weights that it moves, in the order of gradients."""
        return self.inner.parameters

    @property
    def learning_rate(self) -> Any:
        """The learning rate of the inner optimizer, as ``nn.Optimizer`` has it."""
        return self.inner.learning_rate

    @property
    def global_step(self) -> Parameter:
        """The count of steps of the inner optimizer, which its schedules read."""
        return self.inner.global_step

    def get_lr(self) -> Any:
        """The learning rate of the next step; a tuple where groups have rates of their own."""
        return self.inner.get_lr() if self.rate is None else Tensor(np.float32(self.rate(self.step)))

    @property
    def skipped_steps(self) -> Parameter:
        """Number of steps that were not finite and so were skipped."""
        self.own_state.settle()
        return self.own_state.skipped_steps

    @property
    def escalations(self) -> Parameter:
        """Number of blocks that were not positive definite and got more damping."""
        return self.own_state.escalations

    @property
    def scale(self) -> Parameter:
        """The live loss scale."""
        return self.own_state.scale

    def factors(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """(A, G) of a layer as its split approximates them, dense float32; the bias is A's last coordinate.

        If a plan with ``order="position"`` cuts A, the coordinates of A are in that order. A grouped convolution has a
        leading axis of groups. A diagonal factor (A of an embedding, G of a normalisation) is the vector of its
        diagonal.
        """
        layer = self._layer(name)
        return squeezed(layer.a.dense()), squeezed(layer.g.dense())

    def inverses(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """(A^-1, G^-1) of a layer, damped and as they are applied, dense float32."""
        layer = self._layer_with(INVERSE, name)
        return squeezed(layer.a.dense_inverse()), squeezed(layer.g.dense_inverse())

    def bases(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """(Q_A, Q_G) of a layer, the eigenvectors of A and G in columns, block-diagonal float32."""
        layer = self._layer_with(EIGENBASIS, name)
        return squeezed(layer.a.dense_basis()), squeezed(layer.g.dense_basis())

    def _layer_with(self, kind: str, name: str) -> Any:
        """The layer of this name, with inverses or eigenbases that lie on this rank."""
        layer, own = self._layer(name), self.options.kind
        if own != kind:
            raise ValueError(f"precondition={own!r} has no {PLURALS[kind]}: use {READERS[own]}(name)")
        if not layer.held:
            raise ValueError(f"the {PLURALS[kind]} of layer {name} lie on other ranks (grad_worker_fraction)")
        return layer

    def state(self) -> list[dict[str, Any]]:
        """A copy of the complete state for ``ms.save_checkpoint``, including inverses that other ranks hold.

        All ranks of a data-parallel job must call it, because each contributes the inverses that it holds.
        """
        return gathered_state(self, self.captured, self._column_of, self.ranks)

    def load(self, parameters: dict[str, Parameter]) -> None:
        """Load a copy of a saved :meth:`state`, as ``ms.load_checkpoint`` returns it, without other ranks' inverses."""
        load_state(self, self.own_state.plan, self.captured, parameters)

    def memory(self) -> dict[str, int]:
        """Bytes of curvature state by layer, and their sum under ``"total"``."""
        sizes = {layer.name: layer.bytes for layer in self.captured}
        return sizes | {"total": sum(sizes.values())}

    def parameters_and_names(self, name_prefix: str = "", expand: bool = True) -> Iterator[tuple[str, Parameter]]:
        """As of any Cell, with the last step counted: checkpoints are made of it."""
        if (state := getattr(self, "own_state", None)) is not None:
            state.settle()
        return super().parameters_and_names(name_prefix, expand)

    def _layer(self, name: str) -> Any:
        found = next((layer for layer in self.captured if layer.name == name), None)
        if found is None:
            raise KeyError(f"no captured layer {name!r}; there are {', '.join(y.name for y in self.captured)}")
        return found

    def __repr__(self) -> str:
        return describe_optimizer(
            self.step, type(self.inner).__name__, self.options, self.refresher.method.algorithm, self.layers, self.ranks
        )

    def __call__(self, gradients: Sequence[Tensor]) -> Tensor:
        """Move the weights by gradients that a function of :func:`thor.value_and_grad` returned; returns its loss.

        The gradients may have been clipped, added to or scaled; they are in the order of :attr:`parameters`.
        """
        move, self._move = self._move, None
        if move is None:
            raise RuntimeError(
                "THOR needs the forward pass as well as gradients: use step = thor.TrainStep(net, loss_fn, optimizer) "
                "and loss = step(x, y), or grad_fn = thor.value_and_grad(forward, optimizer), loss, gradients = "
                "grad_fn(x, y) and then optimizer(gradients)"
            )
        weights = self.parameters
        if not isinstance(gradients, (tuple, list)) or len(gradients) != len(weights):
            count = len(gradients) if isinstance(gradients, (tuple, list)) else type(gradients).__name__
            raise ValueError(f"gradients must be {len(weights)}, one for each of optimizer.parameters, but got {count}")
        return move(tuple(gradients))

    def await_gradients(self, move: Callable[[tuple[Tensor, ...]], Tensor]) -> None:
        """Take what is to be done with the gradients of the next call."""
        self._move = move

    def construct(self, *_: Any) -> None:
        """Raise RuntimeError; called only if the optimizer is compiled into another graph."""
        raise RuntimeError(
            "thor.THOR decides on the host and cannot be part of another graph: use thor.TrainStep(net, loss_fn, "
            "optimizer) in place of nn.TrainOneStepCell, and ms.Model(step) in place of ms.Model(net, loss, optimizer)"
        )

    # -- for the training step -------------------------------------------------------------------------------------

    @property
    def phase(self) -> str:
        """The kind of the coming step: "plain", "curvature", or "refresh" for a candidate refresh."""
        self.own_state.settle()
        return "refresh" if self.own_state.refreshes_now else "curvature" if self.own_state.gathers_now else "plain"

    @property
    def scaled(self) -> bool:
        """True if the loss is scaled, or a rule may scale it later."""
        return self.scale_rule is not None or self.own_state.loss_scale != 1.0

    def finished(self, finite: bool) -> bool:
        """Count the step and adjust the loss scale; returns True if ``max_bad_steps`` in a row were not finite."""
        return self.own_state.finished(finite, self.scale_rule, self.options.max_bad_steps)
