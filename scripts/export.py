"""Export a run's network: python scripts/export.py RUN_FOLDER [--format mindir|onnx] [--checkpoint best|last|FILE].

MindIR is MindSpore's own format, for MindSpore, MindSpore Lite and its serving. ONNX works for networks whose operators
MindSpore can translate; for others the error says so, and MindIR remains. The file takes batches of --batch examples.
With more than 1 GiB of weights there are two outputs: NAME_graph.mindir, the file to load, and NAME_variables/.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("GLOG_v", "3")  # MindSpore: errors only, before it is imported
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.common.arguments import file_to_write  # noqa: E402
from scripts.common.errors import reporting_write_errors, run_program  # noqa: E402
from scripts.run_folder.restore import checkpoint_of, settings_of  # noqa: E402
from scripts.settings.train_settings import TrainSettings  # noqa: E402
from thor.runtime.errors import UserError  # noqa: E402

if TYPE_CHECKING:
    from mindspore import nn

ENDINGS = {"mindir": ".mindir", "onnx": ".onnx"}
IMAGES = {"fashion_mnist": (1, 28, 28), "cifar10": (3, 32, 32), "cifar100": (3, 32, 32)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(
        prog="export.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("folder", type=Path, metavar="RUN_FOLDER")
    parser.add_argument("--format", choices=tuple(ENDINGS), default="mindir")
    parser.add_argument("--checkpoint", default="best", metavar="best|last|FILE", help="which weights (best)")
    parser.add_argument("--batch", type=int, default=1, help="examples in a batch of the exported network (1)")
    parser.add_argument("--out", type=file_to_write, metavar="FILE", help="RUN_FOLDER/network.FORMAT unless given")
    options, overrides = parser.parse_known_args(arguments)
    if options.batch < 1:
        raise UserError(f"--batch {options.batch}: must be at least 1")
    settings = settings_of(options.folder, overrides)
    path = checkpoint_of(options.folder, options.checkpoint)
    out = options.out or options.folder / f"network{ENDINGS[options.format]}"
    if out.suffix != ENDINGS[options.format]:
        raise UserError(f"--out {out}: must end with {ENDINGS[options.format]}, MindSpore would add it")
    weights, made = export(settings, path, options.format, options.batch, out, options.folder)
    files = [file for place in made for file in (place, *place.rglob("*")) if file.is_file()]
    size = sum(file.stat().st_size for file in files) / 2**20
    print(f"{', '.join(map(str, made))}: {settings.network} with the {weights} of {path}, {size:.1f} MiB")
    return 0


def export(
    settings: TrainSettings, checkpoint: Path, form: str, batch: int, out: Path, run: Path
) -> tuple[str, list[Path]]:  # fmt: skip
    """Write the network with a checkpoint's weights; returns which weights these are, and the paths written."""
    import mindspore as ms

    from scripts.run_folder.checkpoints import load_network
    from scripts.training.build import select_device
    from scripts.training.networks import build_network

    select_device(settings.device)
    ms.set_context(mode=ms.GRAPH_MODE)
    network = build_network(settings, _from_data(settings, run))
    weights = load_network(checkpoint, network)
    network.set_train(False)
    writing = reporting_write_errors(out, "nothing is exported")  # not the network's own files that cannot be read
    with writing, tempfile.TemporaryDirectory(prefix="writing.", dir=out.parent) as name:
        temporary = Path(name, out.name)  # the final name, by which the parts of a large network refer to each other
        try:
            ms.export(
                network, *example_inputs(settings, network, batch), file_name=str(temporary), file_format=form.upper()
            )
        except OSError:
            raise
        except Exception as error:  # the exporter passes on any exception of an operator
            advice = "; --format mindir takes every network" if form == "onnx" else ""
            raise UserError(f"{settings.network} cannot be exported as {form}: {_gist(error)}{advice}") from error
        made = sorted(temporary.parent.iterdir(), key=Path.is_file)  # a folder of weights before the file that needs it
        return weights, [_moved(place, out.parent) for place in made]


def _moved(place: Path, folder: Path) -> Path:
    """Move a file or a folder into ``folder``, replacing an earlier one of its name."""
    target = folder / place.name
    if place.is_dir() and target.is_dir():  # an earlier export's weights: os.replace cannot replace a folder
        shutil.rmtree(target)
    os.replace(place, target)
    return target


def _from_data(settings: TrainSettings, run: Path) -> dict[str, Any]:
    """Arguments of the network that depend on the data: for text, the size of the run's vocabulary."""
    if settings.data.name != "text":
        return {}
    from scripts.run_folder.vocabulary_file import load_vocabulary

    words = load_vocabulary(run)
    if words is None:
        raise UserError(
            f"{run}: has no vocabulary.json, the word pieces that a network of text was trained with; "
            f"scripts/train.py --config {run}/config.yaml --resume  writes it, of a finished run too"
        )
    return {"vocab_size": len(words)}


def example_inputs(settings: TrainSettings, network: nn.Cell, batch: int) -> list[Any]:
    """Zero inputs of the shapes that the network takes.

    A network of masked text that needs positions gets them; one that does not scores every token without.
    """
    import mindspore as ms
    import numpy as np

    from scripts.data.text import masked_tokens

    data = settings.data
    if data.name == "text":
        tokens = ms.Tensor(np.zeros((batch, data.tokens), np.int32))
        needed = [each for each in _parameters(network) if each.default is each.empty]
        if data.objective == "masked" and len(needed) > 1:
            return [tokens, ms.Tensor(np.zeros((batch, masked_tokens(data.tokens)), np.int32))]
        return [tokens]
    shape = IMAGES.get(data.name, (3, data.size, data.size))
    return [ms.Tensor(np.zeros((batch, *shape), np.float32))]


def _parameters(network: nn.Cell) -> list[Parameter]:
    """What `construct` takes, of the child where a Cell hands all on to its only one, as mixed precision does."""
    found = list(signature(network.construct).parameters.values())
    children = list(network.cells())
    if len(children) == 1 and all(each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD) for each in found):
        return _parameters(children[0])
    return found


def _gist(error: Exception) -> str:
    """The first line of an error message that is not empty or a rule."""
    lines = [line.strip() for line in str(error).splitlines()]
    return next((line for line in lines if line and not line.startswith("-")), type(error).__name__)


if __name__ == "__main__":
    run_program(main)
