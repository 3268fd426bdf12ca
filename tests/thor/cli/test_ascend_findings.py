"""thor doctor on an Ascend: CANN and driver against what goes with each version of MindSpore."""

import pytest

from thor.cli import ascend_findings
from thor.runtime import supported_versions


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("Version=7.7.0.1.238\nversion_dir=8.1.RC1\n", "7.7.0.1.238"),
        ("package_name=Ascend-cann-toolkit\nversion=8.5.0\ninnerversion=V100R001C23\n", "8.5.0"),
        ("innerversion=V100R001C23\n version = 9.0.0 \n", "9.0.0"),
        ("innerversion=V100R001C23\n", None),
        ("", None),
    ],
)
def test_the_version_that_a_file_states(text, version):
    assert ascend_findings.version_in(text) == version


def test_cann_is_looked_for_where_it_says_it_is_and_else_in_the_usual_folders():
    home = ascend_findings.cann_files({"ASCEND_HOME_PATH": "/opt/cann"}, "aarch64")
    assert home == ["/opt/cann/compiler/version.info", "/opt/cann/aarch64-linux/ascend_toolkit_install.info"]
    for environment in ({}, {"ASCEND_HOME_PATH": ""}):
        usual = ascend_findings.cann_files(environment, "x86_64")
        assert "/usr/local/Ascend/ascend-toolkit/latest/compiler/version.info" in usual
        assert "/usr/local/Ascend/cann/x86_64-linux/ascend_toolkit_install.info" in usual


@pytest.mark.parametrize(
    ("mindspore", "found", "level", "words"),
    [
        ("2.7.0", "8.2.RC1", "ok", "8.2.RC1"),
        ("2.7.0", "7.8.0.1.2", "ok", "7.8"),  # the number that the compiler of CANN states
        ("2.7.1.post1", "8.3.RC1", "ok", "8.3"),
        ("2.7.2", "8.3.RC1", "warn", "accepts 8.5"),
        ("2.10.0", "9.1.0", "ok", "9.1"),
        ("2.10.0", "8.1.RC1", "warn", "9.0, 9.1"),
        ("2.11.0", "9.1.0", "warn", "unknown"),
        ("2.9.0", None, "fail", "/a, /b"),
    ],
)
def test_cann(mindspore, found, level, words):
    finding = ascend_findings.cann(mindspore, found, ["/a", "/b"], "fail")
    assert (finding.name, finding.level) == ("cann", level) and words in finding.text
    assert bool(finding.cure) == (level != "ok")


def test_the_cure_names_the_version_to_install():
    assert "CANN 8.2.RC1 " in ascend_findings.cann("2.7.0", None, ["/a"], "fail").cure
    assert "CANN 9.1.0 " in ascend_findings.cann("2.10.0", None, ["/a"], "warn").cure  # that of the wheel's operators
    assert ascend_findings.INSTALL_PAGE in ascend_findings.cann("2.11.0", None, ["/a"], "warn").cure


@pytest.mark.parametrize(
    ("mindspore", "found", "level", "words"),
    [
        ("2.7.0", "25.2.0", "ok", "25.2.0 is named"),
        ("2.7.1", "25.3.2", "ok", "25.3.RC1 is named"),
        ("2.7.2", "25.3.RC1", "warn", "25.5.0 is named"),
        ("2.10.0", "26.1.0", "warn", "unknown"),
        ("2.11.0", "26.1.0", "warn", "unknown"),
        ("2.9.0", None, "warn", ascend_findings.DRIVER_FILE),
    ],
)
def test_drivers(mindspore, found, level, words):
    finding = ascend_findings.driver(mindspore, found, "warn")
    assert (finding.name, finding.level) == ("driver", level) and words in finding.text
    assert bool(finding.cure) == (level != "ok")


def test_cann_that_is_named_with_a_version_is_one_that_it_accepts():
    for release in supported_versions.RELEASES:
        assert ascend_findings.series(release.cann or release.cann_of_operators) in release.cann_accepted


def test_missing_python_packages_are_named_as_modules_and_their_cure_as_packages():
    finding = ascend_findings.packages(["te", "attr", "sympy"], "fail")
    assert finding.level == "fail" and finding.text == "missing: te, attr, sympy"
    assert "set_env.sh" in finding.cure and finding.cure.endswith("pip install attrs sympy")
    assert ascend_findings.packages(["absl"], "warn").cure == "pip install absl-py"
    assert "pip" not in ascend_findings.packages(["te"], "warn").cure
    assert (ascend_findings.packages([], "fail").level, ascend_findings.packages([], "fail").cure) == ("ok", "")
