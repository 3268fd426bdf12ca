"""A tiny data set in Fashion-MNIST's own format, and settings that train on it in seconds."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np

from scripts.settings.train_settings import TrainSettings
from scripts.settings.yaml_config import validate


def write_idx(path: Path, values: np.ndarray, magic: int | None = None) -> None:
    magic = magic if magic is not None else 0x800 + values.ndim
    header = struct.pack(f">{1 + values.ndim}I", magic, *values.shape)
    path.write_bytes(gzip.compress(header + values.astype(np.uint8).tobytes()))


def write_set(folder: Path, train: int = 80, test: int = 40) -> Path:
    """Images whose bright row tells the class."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    for part, count in (("train", train), ("t10k", test)):
        labels = random.integers(0, 10, count)
        images = random.integers(0, 60, (count, 28, 28))
        images[np.arange(count), 2 * labels + 4] += 150
        write_idx(folder / f"{part}-images-idx3-ubyte.gz", images)
        write_idx(folder / f"{part}-labels-idx1-ubyte.gz", labels)
    return folder


def tiny_settings(tmp_path: Path, optimizer: str, out: str = "run", **values: object) -> TrainSettings:
    """A small autoencoder on a tiny set: ten steps an epoch."""
    data = write_set(tmp_path / "data")
    base = {
        "network": "autoencoder",
        "network_options": {"widths": [784, 16, 8]},
        "loss": "binary_cross_entropy",
        "data": {"folder": str(data)},
        "epochs": 2,
        "batch_size": 8,
        "seed": 3,
        "optimizer": optimizer,
        "thor": {"learning_rate": 0.01, "damping": 1.0, "clip": 1.0, "interval": 4, "block_size": 16},
        "momentum": {"learning_rate": 0.005},
        "adam": {"learning_rate": 0.01},
        "adafactor": {"learning_rate": 0.1},
        "muon": {"learning_rate": 0.02},
        "soap": {"learning_rate": 0.05, "precondition_frequency": 4},
        "device": "CPU",
        "log_every": 1,
        "out": str(tmp_path / out),
    }
    return validate({**base, **values})
