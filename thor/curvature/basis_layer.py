"""A captured layer that is trained by Adam in the eigenbasis of its factors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from thor.capture.targets import Target
from thor.curvature.damping import Damping
from thor.curvature.dense_caches import block_diagonal, few_operations
from thor.curvature.direction import Form
from thor.curvature.eigenbasis import BasisJob, turned_columns, turned_rows
from thor.curvature.factor import BasisFactor
from thor.curvature.layer import Layer
from thor.curvature.rotation import Rotation, RotationElsewhere
from thor.factors.blocks import BlockPlan
from thor.factors.statistics import POOLED
from thor.runtime.graph_ops import shared
from thor.runtime.parameters import parameter


class BasisLayer(Layer):
    """A layer with the eigenbases of its factors, and Adam's moments of its gradient in them.

    Attributes:
        first: running average of the gradient in the basis, [c, O', I'] as the padded matrix is.
        second: running average of its square.
    """

    factor_class = BasisFactor
    kept = "eigenbasis"
    a: BasisFactor
    g: BasisFactor

    def __init__(
        self, target: Target, plan: BlockPlan, *, held: bool = True, share: float = 1.0, sharing: str = POOLED
    ):
        super().__init__(target, plan, held=held, share=share, sharing=sharing)
        rows, columns = self.row_factor.cut.padded, self.column_factor.cut.padded
        self._moments_shape = (self.copies, rows, columns)
        zeros = np.zeros(self._moments_shape if held else 1, np.float32)
        self.first = parameter(f"{self.name}.first_moment", zeros)
        self.second = parameter(f"{self.name}.second_moment", zeros)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """All Parameters, for checkpoints."""
        return (*super().parameters, self.first, self.second)

    @property
    def caches(self) -> tuple[Parameter, ...]:
        """The bases of the factor of the weight's columns and of its rows; a diagonal factor has none."""
        return (*self.column_factor.cache, *self.row_factor.cache)

    @property
    def held_by_few(self) -> list[tuple[Parameter, tuple[int, ...]]]:
        """The Parameters that only the ranks have which hold the layer, and their shapes there."""
        return [*super().held_by_few, *((each, self._moments_shape) for each in (self.first, self.second))]

    @property
    def form(self) -> Form:
        """The layer's form, with the shapes of its bases."""
        cuts = (self.column_factor.cut, self.row_factor.cut)
        columns, rows = (((self.copies, cut.count, cut.size, cut.size),) for cut in cuts)
        return self._form(columns, rows)

    def preconditioner(self, layers: int = 1) -> nn.Cell:
        """The Cell that turns gradients into bases and steps back."""
        return shared(Rotation if self.held else RotationElsewhere, self.form, layers)

    def in_group(self, layers: int) -> tuple[nn.Cell, Callable[[Any], list[Tensor]]]:
        """As for any layer, with one dense basis of the columns' factor where that is faster."""
        column, row = self.column_factor.cut, self.row_factor.cut
        dense = column.size > 1 and column.count > 1
        if not dense or not few_operations(2 * layers * self.copies * row.padded, column.padded):
            return super().in_group(layers)
        one_block = ((self.copies, 1, column.padded, column.padded),)
        return shared(Rotation, self._form(one_block, self.form.rows), layers), BasisLayer.caches_with_dense_columns

    def caches_with_dense_columns(self) -> list[Tensor]:
        """The caches, with the blocks of the columns' basis on the diagonal of one matrix."""
        columns, *rows = (cache.value() for cache in self.caches)
        return [block_diagonal(columns).expand_dims(1), *rows]

    def jobs(self, damping: Damping, traces: np.ndarray) -> tuple[BasisJob, ...]:
        """The renewals of the factors that have a basis."""
        return tuple(BasisJob(factor) for factor in (self.a, self.g) if factor.turns)

    def adopt(self, jobs: Sequence[Any]) -> None:
        """Store the new bases, and turn the first moment into them.

        The moment loses only what lies in directions without curvature.
        """
        if self.held and jobs:
            moment = self.first.asnumpy()
            for job in jobs:
                ((basis, new),) = job.results
                turned = turned_rows if job.factor is self.row_factor else turned_columns
                moment = turned(moment, basis.asnumpy(), new.asnumpy())
            ops.assign(self.first, Tensor(moment))
        super().adopt(jobs)

    def fingerprint(self) -> str:
        """A text that must be equal for a checkpoint to fit this layer's state."""
        return f"{super().fingerprint()}:eigenbasis"
