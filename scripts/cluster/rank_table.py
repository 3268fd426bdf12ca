"""Makes and checks rank tables (hccl.json, format 1.0), which older Ascend clusters need to start.

python scripts/cluster/rank_table.py make --host 10.0.0.1=hccn-a.conf --host 10.0.0.2=hccn-b.conf --out hccl.json

python scripts/cluster/rank_table.py check hccl.json --ranks 16

A host's devices are given by its /etc/hccn.conf (lines address_0=192.168.100.101), or as a list, as in
10.0.0.1=192.168.100.101,192.168.101.101. Ranks are numbered in the order given. A training process finds the table by
RANK_TABLE_FILE, and its own rank by RANK_ID and RANK_SIZE; msrun needs none of this.
"""

from __future__ import annotations

import ipaddress
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import typer  # noqa: E402
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator  # noqa: E402

from scripts.common.atomic_write import write_atomically  # noqa: E402
from scripts.common.errors import reporting_write_errors, run_program  # noqa: E402
from thor.runtime.errors import UserError  # noqa: E402
from thor.runtime.json_files import parse  # noqa: E402


def _address(text: str) -> str:
    """Return the text if it is an IP address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        raise ValueError(f"{text!r} is no IP address") from None
    return text


def _number(text: str) -> str:
    """Return the text if it is a non-negative integer; the format has all numbers as strings."""
    if not text.isdecimal():
        raise ValueError(f"{text!r} must be a whole number >= 0 in quotes")
    return text


Address = Annotated[str, AfterValidator(_address)]
Number = Annotated[str, AfterValidator(_number)]


class _Part(BaseModel):
    """Base of all parts. Further keys are allowed, since vendors' tools write some; types are not converted."""

    model_config = ConfigDict(extra="allow", strict=True)


class Device(_Part):
    """A device, and the rank of the process that uses it."""

    device_id: Number
    device_ip: Address
    rank_id: Number


class Server(_Part):
    """A host; `server_id` is its address."""

    server_id: Address
    device: Annotated[list[Device], Field(min_length=1)]

    @model_validator(mode="after")
    def _distinct(self) -> Server:
        _refuse_duplicates(f"server {self.server_id}: device_id", [device.device_id for device in self.device])
        return self


class RankTable(_Part):
    """A rank table; ranks must be 0 to N - 1, and addresses must differ."""

    version: Literal["1.0"]
    server_count: Number
    server_list: Annotated[list[Server], Field(min_length=1)]
    status: Literal["completed"]

    @property
    def devices(self) -> list[Device]:
        """All devices, host by host."""
        return [device for server in self.server_list for device in server.device]

    @model_validator(mode="after")
    def _consistent(self) -> RankTable:
        if int(self.server_count) != len(self.server_list):
            raise ValueError(
                f"server_count is {self.server_count}, and server_list has {len(self.server_list)} servers"
            )
        _refuse_duplicates("server_id", [server.server_id for server in self.server_list])
        _refuse_duplicates("device_ip", [device.device_ip for device in self.devices])
        _refuse_duplicates("rank_id", [device.rank_id for device in self.devices])
        ranks = sorted(int(device.rank_id) for device in self.devices)
        if ranks != list(range(len(ranks))):
            missing = sorted(set(range(len(ranks))) - set(ranks))
            raise ValueError(f"rank_id must be 0 to {len(ranks) - 1}, one each; missing: {missing}")
        return self


def _refuse_duplicates(name: str, values: Sequence[str]) -> None:
    """Raise an error that names the values that occur more than once."""
    twice = [value for value, count in Counter(values).items() if count > 1]
    if twice:
        raise ValueError(f"{name} {', '.join(twice)} occurs more than once")


def make(hosts: Sequence[tuple[str, Sequence[tuple[int, str]]]]) -> RankTable:
    """Make the table of some hosts, each given by its address and its devices' numbers and addresses."""
    ranks = iter(range(sum(len(devices) for _, devices in hosts)))
    servers = [
        {
            "server_id": address,
            "device": [
                {"device_id": str(number), "device_ip": ip, "rank_id": str(next(ranks))} for number, ip in devices
            ],
            "host_nic_ip": "reserve",
        }
        for address, devices in hosts
    ]
    table = {"version": "1.0", "server_count": str(len(servers)), "server_list": servers, "status": "completed"}
    return validate(table, "the table")


def validate(values: object, source: str) -> RankTable:
    """Return the values as a table, or raise an error with one line for each fault."""
    try:
        return RankTable.model_validate(values)
    except ValidationError as error:
        raise UserError("\n       ".join(f"{source}: {line}" for line in _lines(error))) from None


def _lines(error: ValidationError) -> Iterator[str]:
    """Yield each fault with its place, as in server_list.0.device.1.device_ip."""
    for detail in error.errors():
        place = ".".join(str(part) for part in detail["loc"])
        message = "is missing" if detail["type"] == "missing" else detail["msg"].removeprefix("Value error, ")
        yield f"{place}: {message}" if place else message


def read(path: Path) -> RankTable:
    """Read and check the table in a file."""
    try:
        values = parse(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error})") from None
    except ValueError as error:
        raise UserError(f"{path}: not valid JSON: {error}") from None
    return validate(values, str(path))


def parse_host(text: str) -> tuple[str, list[tuple[int, str]]]:
    """Parse ADDRESS=DEVICES, where DEVICES is a hccn.conf or a list of addresses separated by commas.

    Returns:
        The host's address, and number and address of each device.
    """
    address, equals, devices = text.partition("=")
    if not equals or not devices:
        raise UserError(f"--host {text}: must be ADDRESS=hccn.conf or ADDRESS=IP,IP,...")
    path = Path(devices)
    if "," in devices or not (path.is_file() or devices.endswith(".conf")):
        return address, list(enumerate(devices.split(",")))
    try:
        lines = path.read_text(errors="replace")  # comments may be in another encoding
    except FileNotFoundError:
        raise UserError(f"--host {text}: {path}: no such file") from None
    except OSError as error:
        raise UserError(f"--host {text}: {path}: cannot be read ({error.strerror})") from None
    found = re.findall(r"^address_(\d+)\s*=\s*(\S+)", lines, re.MULTILINE)
    if not found:
        raise UserError(f"--host {text}: {path} has no line such as address_0=192.168.100.101")
    return address, sorted((int(number), ip) for number, ip in found)


app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, help=__doc__)


@app.command("make")
def make_command(
    host: Annotated[list[str], typer.Option(help="ADDRESS=hccn.conf or ADDRESS=IP,IP,...; one for each host")],
    out: Annotated[Path, typer.Option(help="where the table goes")] = Path("hccl.json"),
) -> None:
    """Write a table."""
    table = make([parse_host(text) for text in host])
    with reporting_write_errors(out, "there is no table yet"):
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, json.dumps(table.model_dump(), indent=1) + "\n")
    typer.echo(f"wrote {out}: {len(table.server_list)} servers, {len(table.devices)} ranks")


@app.command("check")
def check_command(
    path: Annotated[Path, typer.Argument(help="a rank table")],
    ranks: Annotated[int | None, typer.Option(min=1, help="how many ranks it must have")] = None,
) -> None:
    """Check a table."""
    table = read(path)
    if ranks not in (None, len(table.devices)):
        raise UserError(f"{path}: {len(table.devices)} ranks, and must have {ranks}")
    typer.echo(f"{path} is right: {len(table.server_list)} servers, {len(table.devices)} ranks")


if __name__ == "__main__":
    run_program(app)
