"""Reader of the idx format of MNIST and similar data sets: gzip, a big-endian header, then one byte per value.

Header: 0x00000803, count, rows, columns for images; 0x00000801, count for labels.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from thor.runtime.errors import UserError

IMAGES_MAGIC = 0x00000803
LABELS_MAGIC = 0x00000801
_KINDS = {IMAGES_MAGIC: "images", LABELS_MAGIC: "labels"}


def read_images(path: Path) -> NDArray[np.uint8]:
    """Read the images of an idx3 file, [count, rows, columns]."""
    return _read(path, IMAGES_MAGIC, axes=3)


def read_labels(path: Path) -> NDArray[np.uint8]:
    """Read the labels of an idx1 file, [count]."""
    return _read(path, LABELS_MAGIC, axes=1)


def _read(path: Path, magic: int, axes: int) -> NDArray[np.uint8]:
    """Read the values of an idx file, in the shape that its header gives; errors name the file."""
    content = _unpack(path)
    header = 4 * (1 + axes)
    found = struct.unpack(">I", content[:4])[0] if len(content) >= 4 else None
    if found != magic:
        what = _KINDS.get(found or 0, f"something else (first bytes {content[:4].hex(' ') or 'none'})")
        raise UserError(f"{path}: expected a file of {_KINDS[magic]}, and it holds {what}")
    if len(content) < header:
        raise UserError(f"{path}: truncated, it ends within its header")
    shape = struct.unpack(f">{axes}I", content[4:header])
    expected = header + int(np.prod(shape))
    if len(content) != expected:
        state = "truncated" if len(content) < expected else "too long"
        raise UserError(f"{path}: {state}, its header announces {expected} bytes and it has {len(content)}")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _unpack(path: Path) -> bytes:
    """Return the uncompressed bytes of a gzip file."""
    try:
        with gzip.open(path) as file:
            return file.read()
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except EOFError:
        raise UserError(f"{path}: truncated, the gzip stream ends too early") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path}: not a sound gzip file ({error})") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
