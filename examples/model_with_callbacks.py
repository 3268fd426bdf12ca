"""`ms.Model` with evaluation and callbacks, one of which lowers the learning rate.

Run it with  python examples/model_with_callbacks.py
"""

import mindspore as ms
import numpy as np
from mindspore import nn
from mindspore.dataset import NumpySlicesDataset
from mindspore.train import EarlyStopping, LossMonitor, Model, ReduceLROnPlateau, TimeMonitor

import thor


def examples(count: int, seed: int) -> NumpySlicesDataset:
    """Points, and which of their first three coordinates is the largest in size."""
    x = np.random.default_rng(seed).standard_normal((count, 8)).astype(np.float32)
    return NumpySlicesDataset({"x": x, "label": np.argmax(x[:, :3] ** 2, 1).astype(np.int32)}, shuffle=True)


def main(epochs: int = 6) -> float:
    """The accuracy on points that were not trained on."""
    ms.set_seed(0)
    net, loss_fn = nn.SequentialCell(nn.Dense(8, 32), nn.Tanh(), nn.Dense(32, 3)), nn.CrossEntropyLoss()
    optimizer = thor.THOR(net, 0.005)
    step = thor.TrainStep(net, loss_fn, optimizer)
    model = Model(
        step, eval_network=nn.WithEvalCell(net, loss_fn), eval_indexes=[0, 1, 2], metrics={"accuracy", "loss"}
    )
    callbacks = [
        thor.TellOptimizer(),  # before the callbacks that ask for the optimizer
        LossMonitor(per_print_times=20),
        TimeMonitor(),
        ReduceLROnPlateau(monitor="eval_loss", factor=0.5, patience=2),
        EarlyStopping(monitor="eval_loss", patience=4),
    ]
    train, test = examples(2000, 0).batch(100), examples(500, 1).batch(100)
    model.fit(epochs, train, test, callbacks=callbacks, dataset_sink_mode=False)
    return model.eval(test, dataset_sink_mode=False)["accuracy"]


if __name__ == "__main__":
    print(f"accuracy {main():.3f}")
