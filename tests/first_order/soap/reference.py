"""SOAP of one tensor in float64 NumPy, written from algorithm 3 of the paper with einsum and np.linalg."""

import numpy as np


def others(x, axis):
    """The tensor as a matrix: one axis by all others."""
    return np.moveaxis(x, axis, 0).reshape(x.shape[axis], -1)


def turn(x, bases, back=False):
    """Into the eigenbases, or out of them; ``bases`` is {axis: Q}."""
    for axis, q in bases.items():
        x = np.moveaxis(np.tensordot(q if back else q.T, x, axes=(1, axis)), 0, axis)
    return x


class Reference:
    """State and steps of a tensor of ``shape``, which is the merged one; ``axes`` have eigenbases."""

    def __init__(self, shape, axes):
        self.m, self.v = np.zeros(shape), np.zeros(shape)
        self.grams = {axis: np.zeros((shape[axis],) * 2) for axis in axes}
        self.bases = {axis: np.eye(shape[axis]) for axis in axes}

    def randomize(self, seed):
        """A state as after many steps: matrices of full rank, and bases near their eigenvectors."""
        rng = np.random.default_rng(seed)
        self.m, self.v = 0.1 * rng.standard_normal(self.m.shape), rng.uniform(0.5, 2.0, self.v.shape)
        for axis, gram in self.grams.items():
            a = rng.standard_normal(gram.shape)
            self.grams[axis] = a @ a.T + 0.1 * np.eye(len(a))
            self.bases[axis] = np.linalg.qr(np.linalg.eigh(self.grams[axis])[1] + 0.1 * rng.standard_normal(a.shape))[0]
        return self

    def state(self, shape):
        """In the layout of soap_init, for a weight of this shape."""
        found = {"exp_avg": self.m.reshape(shape), "exp_avg_sq": self.v.reshape(shape)}
        for axis in self.grams:
            found |= {f"GG{axis}": self.grams[axis], f"Q{axis}": self.bases[axis]}
        return found

    def step(
        self, x, g, t, learning_rate, beta1=0.95, beta2=0.95, shampoo_beta=None, epsilon=1e-8, weight_decay=0.01,
        precondition_frequency=10, normalize_grads=False, correct_bias=True,
    ):  # fmt: skip
        """X after step t; the first one is 0."""
        shape, x, g = x.shape, x.reshape(self.m.shape), g.reshape(self.m.shape)
        if t > 0:
            turned = turn(g, self.bases)
            self.m = beta1 * self.m + (1 - beta1) * turned
            self.v = beta2 * self.v + (1 - beta2) * turned**2
            scale = np.sqrt(1 - beta2**t) / (1 - beta1**t) if correct_bias else 1.0
            step = turn(self.m / (np.sqrt(self.v) + epsilon), self.bases, back=True)
            if normalize_grads:
                step = step / np.sqrt(np.mean(step**2))
            x = x - learning_rate * scale * step
            x = x - learning_rate * weight_decay * x
        decay = beta2 if shampoo_beta is None else shampoo_beta
        for axis, gram in self.grams.items():
            self.grams[axis] = decay * gram + (1 - decay) * others(g, axis) @ others(g, axis).T
        if t == 0:
            for axis, gram in self.grams.items():
                self.bases[axis] = np.linalg.eigh(gram)[1][:, ::-1]
        elif t % precondition_frequency == 0:
            self.renew()
        return x.reshape(shape)

    def renew(self):
        """One power iteration and QR for each basis; the largest eigenvalue comes first, in V too."""
        plain = turn(self.m, self.bases, back=True)
        for axis, gram in self.grams.items():
            old = self.bases[axis]
            order = np.argsort(-np.einsum("ij,ik,kj->j", old, gram, old))
            self.v = np.take(self.v, order, axis)
            self.bases[axis] = np.linalg.qr(gram @ old[:, order])[0]
        self.m = turn(plain, self.bases)
