"""A callback for ``ms.Model(step)``."""

from __future__ import annotations

from mindspore.train import Callback, RunContext


class TellOptimizer(Callback):
    """Tells the callbacks behind it which optimizer trains.

    ``ms.Model(step)`` knows none. Callbacks that change the learning rate, as MindSpore's ``LearningRateScheduler`` and
    ``ReduceLROnPlateau``, ask for it:

        Model(step).train(epochs, dataset, [thor.TellOptimizer(), LearningRateScheduler(rate)], False)
    """

    def on_train_begin(self, run_context: RunContext) -> None:
        """Name the optimizer of the :class:`thor.TrainStep` that is trained."""
        parameters = run_context.original_args()
        parameters.optimizer = parameters.train_network.optimizer
