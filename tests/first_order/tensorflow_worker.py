"""TensorFlow's Adam in a process of its own, since its failed checks abort a process with all tests in it.

Reads pickled (function name, arguments) from its input and writes pickled answers, all arrays NumPy's.
"""

from __future__ import annotations

import os
import pickle
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf


def raw(x, gradients, hypers, learning_rate, use_nesterov):
    """The kernel itself, from zero moments, powers given by the step: (x, m, v)."""
    var, m, v = tf.Variable(x), tf.Variable(x * 0), tf.Variable(x * 0)
    numbers = {name: tf.constant(value, x.dtype) for name, value in hypers.items()}
    for step, gradient in enumerate(gradients, 1):
        tf.raw_ops.ResourceApplyAdam(
            var=var.handle, m=m.handle, v=v.handle, beta1_power=numbers["beta1"] ** step,
            beta2_power=numbers["beta2"] ** step, lr=tf.constant(learning_rate, x.dtype), grad=tf.constant(gradient),
            use_nesterov=use_nesterov, **numbers,
        )  # fmt: skip
    return var.numpy(), m.numpy(), v.numpy()


def adam(values, steps, options, state=None):
    """AdamOptimizer over all steps, from a state if there is one; a list among the options is one value a step.

    A gradient may be a pair (values, indices). Answers with x, m, v (lists) and powers.
    """
    at = [0]
    given = {
        name: (lambda value=value: value[at[0]]) if isinstance(value, list) else value
        for name, value in options.items()
    }
    variables = [tf.Variable(value, name=f"w{i}") for i, value in enumerate(values)]
    optimizer = tf.compat.v1.train.AdamOptimizer(**given)
    if state is not None:
        optimizer._create_slots(variables)
        for power, value in zip(optimizer._get_beta_accumulators(), state["powers"], strict=True):
            power.assign(value)
        for name in ("m", "v"):
            for variable, value in zip(variables, state[name], strict=True):
                optimizer.get_slot(variable, name).assign(value)
    for gradients in steps:
        tensors = [tf.IndexedSlices(*g) if isinstance(g, tuple) else tf.constant(g) for g in gradients]
        optimizer.apply_gradients(zip(tensors, variables, strict=True))
        at[0] += 1
    slots = {name: [optimizer.get_slot(v, name).numpy() for v in variables] for name in ("m", "v")}
    powers = [power.numpy() for power in optimizer._get_beta_accumulators()]
    return {"x": [v.numpy() for v in variables], "powers": powers, **slots}


def main():
    channel = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # nothing else may write into the channel
    while True:
        try:
            name, arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        pickle.dump({"raw": raw, "adam": adam}[name](*arguments), channel)
        channel.flush()


if __name__ == "__main__":
    main()
