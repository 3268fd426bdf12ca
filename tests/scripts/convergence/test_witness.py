"""Adam and Muon of the benchmark against PyTorch's, on a small network of a task: same initial weights, same batches.

The network, its gradients, the schedule and the optimizer are all PyTorch's. Nothing but initial weights and batches
is shared, so that a wrong gradient, rate, group or update would lead the two trajectories apart.
"""

import math

import numpy as np
import pytest
import torch
from mindspore import Tensor

from scripts.convergence import rules, search
from scripts.training.build import build, count_steps
from scripts.training.optimizers import build_stepper

STEPS = 20
WARMUP = 0.1  # epochs, as in the rules
FULL = rules.load(rules.DEFAULT)
RULES = FULL.made_quick()
#: Float32 with sums in another order: after 20 steps the losses agree to 2e-6. A wrong momentum, decay or schedule is
#: far outside: Adam's beta2 of 0.998 in place of 0.999 gives 8e-4, Muon's momentum of 0.94 in place of 0.95 6e-3,
#: and a schedule that is one step ahead 5e-2.
LOSS = 2e-5
#: Relative difference of each weight's whole change, in norm: 3e-6 with Adam, where the wrong beta2 gives 7e-4. Muon
#: raises a gradient's small singular values to the size of its large ones, and rounding with them: up to 3e-3.
WEIGHTS = {"adam": 1e-4, "muon": 1e-2}


def twin(network):
    """The task's autoencoder in PyTorch, with the weights of a network of MindSpore."""
    widths = RULES.tasks["autoencoder"].settings["network_options.widths"]
    layers = []
    for stack in (widths, widths[::-1]):
        for inputs, outputs in zip(stack[:-1], stack[1:], strict=True):
            layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
        layers.pop()
    made = torch.nn.Sequential(*layers)
    ours = [weight.asnumpy() for weight in network.trainable_params()]
    assert [tuple(p.shape) for p in made.parameters()] == [weight.shape for weight in ours]
    with torch.no_grad():
        for parameter, weight in zip(made.parameters(), ours, strict=True):
            parameter.copy_(torch.from_numpy(weight.copy()))
    return made


def share(step, steps_per_epoch, epochs):
    """The rate at a step as a share of the highest: a cosine to zero, after a linear warm-up."""
    rising = min(1.0, (step + 1) / (WARMUP * steps_per_epoch))
    return rising * 0.5 * (1 + math.cos(math.pi * step / (epochs * steps_per_epoch)))


class EpsilonHat(torch.optim.Adam):
    """PyTorch's Adam, with an epsilon that acts as if it were added before the bias correction, as ours does."""

    def step(self, *arguments):
        for group in self.param_groups:
            self.taken = getattr(self, "taken", 0) + 1
            group["eps"] = 1e-8 / math.sqrt(1 - group["betas"][1] ** self.taken)
        return super().step(*arguments)


def adam(made, values):
    return [EpsilonHat(made.parameters(), values["adam.learning_rate"], (values["adam.beta1"], 0.999))]


def muon(made, values):
    """All matrices but the output layer's by Muon; that one and the biases by AdamW."""
    rate, decay = values["muon.learning_rate"], values["muon.weight_decay"]
    parameters = list(made.parameters())
    matrices = [parameter for parameter in parameters if parameter.ndim == 2][:-1]
    others = [parameter for parameter in parameters if all(parameter is not each for each in matrices)]
    options = {"momentum": values["muon.momentum"], "weight_decay": decay, "adjust_lr_fn": "match_rms_adamw"}
    return [
        torch.optim.Muon(matrices, rate, **options),
        torch.optim.AdamW(others, rate, (0.9, 0.95), 1e-10, weight_decay=decay),
    ]


def theirs(made, optimizers, batches, steps_per_epoch, epochs):
    """The loss of each step in PyTorch."""
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(each, lambda step: share(step, steps_per_epoch, epochs))
        for each in optimizers
    ]
    losses = []
    for images in batches:
        target = torch.from_numpy(images).flatten(1)
        loss = (made(target) - target).square().sum(1).mean()
        for each in optimizers:
            each.zero_grad()
        loss.backward()
        for each in (*optimizers, *schedules):
            each.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(("contender", "optimizers"), [("adam", adam), ("muon", muon)])
@pytest.mark.parametrize("trial", [0, 1])
def test_twenty_steps_follow_pytorchs(contender, optimizers, trial, monkeypatch):
    # PyTorch's Muon would round its iteration to bfloat16, and ours stays in float32
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda tensor: tensor.clone())
    values = search.trials(RULES, "autoencoder", contender)[0]
    values[f"{contender}.{'beta1' if contender == 'adam' else 'momentum'}"] = (0.9, 0.8)[trial]
    settings = search.settings(RULES, "autoencoder", contender, values, 3)
    parts = build(settings)
    steps = count_steps(settings, len(parts.feeds.train))
    batches = [images for epoch in (0, 1) for images, _ in parts.feeds.train.epoch(epoch)][:STEPS]
    assert steps >= STEPS
    made = twin(parts.network)
    before = [weight.asnumpy().copy() for weight in parts.network.trainable_params()]
    expected = theirs(made, optimizers(made, values), batches, steps, settings.epochs)
    stepper = build_stepper(settings, parts.network, parts.loss, steps)
    found = [float(stepper.step(Tensor(images), Tensor(images)).asnumpy()) for images in batches]
    assert expected[-1] < 0.95 * expected[0], "it trains"
    np.testing.assert_allclose(found, expected, rtol=LOSS)
    for start, weight, parameter in zip(before, parts.network.trainable_params(), made.parameters(), strict=True):
        theirs_now = parameter.detach().numpy()
        moved = np.linalg.norm(theirs_now - start)
        assert np.linalg.norm(weight.asnumpy() - theirs_now) <= WEIGHTS[contender] * moved, weight.name
