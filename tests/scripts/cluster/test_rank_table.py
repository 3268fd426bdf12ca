import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from scripts.cluster.rank_table import app, make, parse_host, read, validate
from thor.runtime.errors import UserError

HOSTS = [("10.0.0.1", [(0, "192.168.1.1"), (1, "192.168.1.2")]), ("10.0.0.2", [(0, "192.168.1.3")])]


def broken(change):
    """The message about a table that a function has spoilt."""
    table = make(HOSTS).model_dump()
    change(table)
    with pytest.raises(UserError) as refused:
        validate(table, "T")
    return str(refused.value)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 8), min_size=1, max_size=5))
def test_ranks_count_through_all_hosts(sizes):
    hosts = [(f"10.0.0.{h + 1}", [(d, f"192.168.{h}.{d + 1}") for d in range(n)]) for h, n in enumerate(sizes)]
    table = make(hosts)
    assert [device.rank_id for device in table.devices] == [str(rank) for rank in range(sum(sizes))]
    assert [len(server.device) for server in table.server_list] == sizes
    assert validate(json.loads(json.dumps(table.model_dump())), "again") == table


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t["server_list"][1]["device"][0].update(rank_id="1"), "T: rank_id 1 occurs more than once"),
        (
            lambda t: t["server_list"][1]["device"][0].update(rank_id="7"),
            "rank_id must be 0 to 2, one each; missing: [2]",
        ),
        (
            lambda t: t["server_list"][1]["device"][0].update(rank_id=2),
            "server_list.1.device.0.rank_id: Input should be",
        ),
        (lambda t: t["server_list"][0]["device"][1].update(device_ip="192.168.1"), "device_ip: '192.168.1' is no IP"),
        (
            lambda t: t["server_list"][0]["device"][1].update(device_ip="192.168.1.3"),
            "device_ip 192.168.1.3 occurs more",
        ),
        (lambda t: t["server_list"][0]["device"][1].update(device_id="0"), "server 10.0.0.1: device_id 0 occurs more"),
        (lambda t: t["server_list"][0]["device"][1].pop("device_ip"), "server_list.0.device.1.device_ip: is missing"),
        (lambda t: t.update(server_count="3"), "server_count is 3, and server_list has 2 servers"),
        (lambda t: t.update(status="initializing"), "status: Input should be 'completed'"),
        (lambda t: t.update(version="2.0"), "version: Input should be '1.0'"),
        (lambda t: t.pop("server_list"), "server_list: is missing"),
    ],
)
def test_what_is_wrong_is_named(change, message):
    assert message in broken(change)


def test_many_addresses_are_no_file():
    addresses = [f"192.168.100.{number}" for number in range(100)]
    assert parse_host(f"10.0.0.1={','.join(addresses)}") == ("10.0.0.1", list(enumerate(addresses)))


def test_a_comment_in_another_encoding(tmp_path):
    path = tmp_path / "hccn.conf"
    path.write_bytes(b"# \xc4\xe3\xba\xc3\naddress_0=192.168.100.101\n")
    assert parse_host(f"10.0.0.1={path}") == ("10.0.0.1", [(0, "192.168.100.101")])


def test_hosts_by_their_hccn_conf(tmp_path):
    path = tmp_path / "hccn.conf"
    path.write_text("address_1=192.168.101.101\nnetmask_1=255.255.255.0\naddress_0=192.168.100.101\n")
    assert parse_host(f"10.0.0.1={path}") == ("10.0.0.1", [(0, "192.168.100.101"), (1, "192.168.101.101")])
    path.write_text("nothing\n")
    for text, message in (
        (f"h={path}", "has no line such as address_0"),
        ("10.0.0.1", "must be ADDRESS=hccn.conf"),
        ("10.0.0.1=missing.conf", "missing.conf: no such file"),
        ("10.0.0.1=/.conf/x.conf", "no such file"),
    ):
        with pytest.raises(UserError, match=re.escape(message)):
            parse_host(text)


def test_the_commands(tmp_path):
    out = tmp_path / "new" / "hccl.json"
    hosts = ["--host", "10.0.0.1=192.168.1.1,192.168.1.2", "--host", "10.0.0.2=192.168.1.3,192.168.1.4"]
    nowhere = CliRunner().invoke(app, ["make", *hosts, "--out", str(tmp_path)])
    assert isinstance(nowhere.exception, UserError) and f"{tmp_path}: cannot be written" in str(nowhere.exception)
    made = CliRunner().invoke(app, ["make", *hosts, "--out", str(out)])
    assert made.exit_code == 0 and "2 servers, 4 ranks" in made.output
    assert CliRunner().invoke(app, ["check", str(out), "--ranks", "4"]).exit_code == 0
    assert "4 ranks, and must have 8" in str(CliRunner().invoke(app, ["check", str(out), "--ranks", "8"]).exception)
    out.write_text("{")
    with pytest.raises(UserError, match="not valid JSON"):
        read(out)
    with pytest.raises(UserError, match="cannot be read"):
        read(tmp_path / "missing.json")
