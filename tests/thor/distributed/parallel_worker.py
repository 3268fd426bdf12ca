"""One rank of a data-parallel job: trains small networks in each way of sharing, and saves what it ended with."""

import os
import sys
from pathlib import Path
from unittest.mock import patch

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

import thor
from tests.support.networks import Mlp, fill, squared_error, values
from thor.runtime import device

STEPS, BATCH = 30, 16
LAST = {9: 7, 29: 5}  # steps whose batch is short, and does not divide


class Pixels(nn.Cell):
    """A grouped convolution with a bias, and a Dense layer."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, group=2, has_bias=True)
        self.tanh, self.flatten, self.dense = nn.Tanh(), nn.Flatten(), nn.Dense(4 * 9, 3)
        fill(self, 0)

    def construct(self, x):
        return self.dense(self.flatten(self.tanh(self.conv(x.reshape(-1, 2, 3, 3)))))


NETWORKS = {"mlp": lambda: Mlp((18, 6, 3)), "pixels": Pixels}
GRAPH, PYNATIVE = int(ms.GRAPH_MODE), int(ms.PYNATIVE_MODE)
#: name: (network, mode, options of THOR, how ranks share)
CASES = {
    "all": ("pixels", GRAPH, {"split": "block+rank", "rank": 2}, {"fusion_mib": 1e-4}),
    "all, pynative": ("pixels", PYNATIVE, {"inverse": "newton-schulz"}, {"per": "factor"}),
    "one": ("mlp", GRAPH, {"clip": 0.01}, {"grad_worker_fraction": 0.0}),
    "one, pynative": ("mlp", PYNATIVE, {"split": "block+rank", "loss_scale": 64.0}, {"grad_worker_fraction": 0.0}),
    "small messages": ("mlp", GRAPH, {"reloads": True}, {"grad_worker_fraction": 0.0, "fusion_mib": 1e-4}),
    "half": ("mlp", GRAPH, {}, {"grad_worker_fraction": 0.5}),
    "half, pynative": ("pixels", PYNATIVE, {"split": "block"}, {"grad_worker_fraction": 0.5}),
    "naive": ("pixels", PYNATIVE, {}, {"shared": False}),
    "basis, one": ("mlp", GRAPH, {"damping": None, "rate_factor": 1.0}, {"grad_worker_fraction": 0.0}),
    "basis, all": ("pixels", PYNATIVE, {"damping": None, "rate_factor": 1.0}, {"per": "factor"}),
    "basis, half": ("pixels", GRAPH, {"damping": None, "rate_factor": 1.0}, {"grad_worker_fraction": 0.5}),
    "basis, beside": (
        "mlp",
        GRAPH,
        {"damping": None, "rate_factor": 1.0, "beside": True},
        {"grad_worker_fraction": 0.5},
    ),
    "accumulated": ("mlp", PYNATIVE, {"accumulate": 2}, {"grad_worker_fraction": 0.0}),
}
#: which of them a job of so many ranks runs
OF_RANKS = {
    2: [
        "all",
        "all, pynative",
        "one",
        "one, pynative",
        "small messages",
        "naive",
        "accumulated",
        "basis, one",
        "basis, all",
        "basis, beside",
    ],
    4: ["all", "one", "one, pynative", "half", "half, pynative", "basis, half"],
}


def batch(step, rank, ranks):
    """This rank's share of the step's examples: the first ranks have one more where they do not divide."""
    rng = np.random.default_rng(step)
    count = LAST.get(step, BATCH)
    x, y = rng.standard_normal((count, 18)) + 0.5, rng.standard_normal((count, 3))
    return tuple(Tensor(np.array_split(part, ranks)[rank].astype(np.float32)) for part in (x, y))


def train(name, rank, ranks, steps=STEPS):
    """(optimizer, losses, weights, bytes of messages; the largest refresh's, for layers stop) of a case on one rank."""
    network, mode, options, sharing = CASES[name]
    ms.set_context(mode=mode)
    net, options = NETWORKS[network](), dict(options)
    accumulate, damping = options.pop("accumulate", 1), options.pop("damping", 0.3)
    beside = options.pop("beside", False)  # bases are found beside plain steps, as on an accelerator
    reloads = options.pop("reloads", False)  # one rank gives a weight the value that it has, as by a load
    if ranks > 1:
        options["sharing"] = thor.Sharing(**sharing)
    optimizer = thor.THOR(
        net, 0.02, damping, momentum=0.9, block_size=4, interval=4, factor_interval=2, factor_decay=0.9,
        refresh=thor.TraceRule(update=0.15, stop=0.08), **options,
    )  # fmt: skip
    with patch.object(device, "leaves_host_idle", lambda: beside):
        step = thor.TrainStep(net, squared_error, optimizer, accumulate=accumulate, jit=mode == GRAPH)
    losses, refresh = [], 0
    for index in range(steps):
        if reloads and index == 5 and rank == 0:
            weight = net.trainable_params()[0]
            weight.set_data(Tensor(weight.asnumpy()))
        if accumulate == 1:
            losses.append(float(step(*batch(index, rank, ranks)).asnumpy()))
            refresh = max(refresh, step.messages.get("refresh", 0))
            continue
        uneven = [np.split(part.asnumpy(), [max(1, len(part) // 3)]) for part in batch(index, rank, ranks)]
        for x, y in zip(*uneven, strict=True):
            step(Tensor(x), Tensor(y))
    return optimizer, losses, values(net), step.messages | {"refresh": refresh}


def decisions(optimizer):
    """The history, as text."""
    return np.array([f"{r.step} {r.layer} {r.decision.value}" for r in optimizer.history])


def main(folder):
    """Train each case of so many ranks, and save what it ended with."""
    from mindspore.communication import get_group_size, get_rank, init

    ms.set_device(os.environ.get("THOR_TEST_DEVICE", "CPU"))
    init()
    ms.set_auto_parallel_context(parallel_mode=ms.ParallelMode.DATA_PARALLEL, gradients_mean=True)
    rank, ranks = get_rank(), get_group_size()
    found = {}
    for name in OF_RANKS[ranks]:
        optimizer, losses, weights, sent = train(name, rank, ranks)
        found |= {f"{name}/weights/{key}": value for key, value in weights.items()}
        found |= {f"{name}/losses": losses, f"{name}/decisions": decisions(optimizer)}
        found |= {f"{name}/sent": [sent["plain"], sent["curvature"], sent["refresh"]]}
        found |= {
            f"{name}/bytes": optimizer.memory()["total"],
            f"{name}/refreshes": optimizer.own_state.refreshes.asnumpy(),
        }
        state = optimizer.state()
        if rank == 0:
            ms.save_checkpoint(state, str(folder / f"{name}.ckpt"))
        found |= {f"{name}/state/{entry['name']}": entry["data"].asnumpy() for entry in state}
    np.savez(folder / f"rank{rank}.npz", **found)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
