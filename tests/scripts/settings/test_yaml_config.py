import subprocess
import sys

import pytest
import yaml

from scripts.settings.optimizer_sections import unused_in
from scripts.settings.train_settings import TrainSettings
from scripts.settings.yaml_config import differences, load_config, read_yaml, save_config, validate
from scripts.training.job_ranks import with_ranks
from scripts.training.optimizers import trace_rule
from tests.support.paths import ROOT
from thor.curvature.trace_rule import TraceRule
from thor.runtime.errors import UserError


@pytest.mark.parametrize("path", sorted((ROOT / "scripts" / "config").glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_configurations_are_valid(path):
    assert load_config(path).out.startswith("runs/")


def test_overrides_go_into_blocks():
    settings = load_config(None, ["--optimizer", "adam", "--adam.beta1", "1e-2", "--epochs=7", "--data.flip", "true"])
    assert (settings.optimizer, settings.adam.beta1, settings.epochs) == ("adam", 0.01, 7)
    assert settings.data.flip is True


def test_a_block_that_says_nothing_leaves_what_stands_below_it(tmp_path):
    (tmp_path / "base.yaml").write_text("thor:\n  damping: 0.1\n")
    path = tmp_path / "c.yaml"
    path.write_text("base: base.yaml\nthor:\n  # damping: 0.2\ndata:\n")
    assert load_config(path).thor.damping == 0.1
    assert load_config(path, ["--thor.clip", "0.01"]).thor.clip == 0.01
    own = ["--thor.damping_schedule", "null", "--thor.damping_schedule.final", "0.1"]
    assert load_config(path, own).thor.damping_schedule.final == 0.1


def test_merged_mappings_of_yaml_may_have_keys_of_their_own(tmp_path):
    (tmp_path / "c.yaml").write_text("a: &a {x: 1}\nb:\n  c: &c\n    <<: *a\n    x: 2\nd:\n  <<: *c\n")
    assert read_yaml(tmp_path / "c.yaml") == {"a": {"x": 1}, "b": {"c": {"x": 2}}, "d": {"x": 2}}


def test_short_forms():
    settings = load_config(None, ["--thor.refresh", "thor_nt", "--thor.interval", "50", "--thor.schedule", "linear"])
    assert settings.thor.refresh.preset == "thor_nt"
    assert (settings.thor.interval.start, settings.thor.interval.end) == (50, 50)
    assert settings.thor.schedule.shape == "linear"


@pytest.mark.parametrize(
    "value, rule",
    [
        ("thor_nt", TraceRule.thor_nt()),
        ("{preset: thor_stop, start: 20}", TraceRule.thor_stop(start=20)),
        ("{update: 0.1, stop: 0.0, start: 5}", TraceRule(update=0.1, stop=0.0, start=5)),
    ],
)
def test_the_trace_rule_is_what_the_settings_say(value, rule):
    assert trace_rule(load_config(None, ["--thor.refresh", value]).thor) == rule


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--epohs", "3"], "unknown key epohs: did you mean epochs?"),
        (
            ["--optimizer", "muon", "--muon.adamw", "['*head']"],
            "muon.adamw = ['*head']: '*head' is not a regular expression: nothing to repeat",
        ),
        (["--thor.dampng", "1"], "unknown key thor.dampng: did you mean thor.damping?"),
        (["--damping", "0.1"], "unknown key damping: did you mean thor.damping?"),
        (["--lr", "0.1"], "unknown key lr: did you mean thor.learning_rate?"),
        (["--lr", "0.1", "--optimizer", "adam"], "unknown key lr: did you mean adam.learning_rate?"),
        (["--optimizer", "momentum", "--learning-rate", "1"], "learning_rate: did you mean momentum.learning_rate?"),
        (["--optimizer", "adam", "--warmup_epochs", "1"], "did you mean adam.schedule.warmup_epochs?"),
        (["--optimizer", "adam", "--damping", "1"], "unknown key damping: did you mean thor.damping?"),
        (["--wieght_decay", "0"], "unknown key wieght_decay: did you mean thor.weight_decay?"),
        (["--optimizer", "adam", "--adam.lr", "1"], "unknown key adam.lr: did you mean adam.learning_rate?"),
        (["--data.lr", "1"], "unknown key data.lr: did you mean thor.learning_rate?"),
        (["--data.fold", "x"], "unknown key data.fold: did you mean data.folder?"),
        (["--fold", "x"], "unknown key fold: did you mean data.folder?"),
        (["--dataset", "x"], "unknown key dataset: did you mean data.name?"),
        (["--zzz", "1"], "unknown key zzz: docs/reference/settings.md lists all settings"),
        (["--momentum", "0.9"], "momentum = 0.9: must be a block of settings (key: value); or set thor.momentum"),
        (["--thor.refresh.foo", "1"], "unknown key thor.refresh.foo: known are preset, update, stop, start"),
        (["--epochs", "two"], "epochs = 'two': must be a valid integer"),
        (["--epochs", "0"], "epochs = 0: must be greater than or equal to 1"),
        (["--thor.damping", "-1"], "thor.damping = -1: must be greater than 0"),
        (["--thor.damping", ".nan"], "thor.damping = nan: must be a finite number"),
        (["--thor.momentum", "1.0"], "thor.momentum = 1.0: must be less than 1"),
        (["--data.flip", "1"], "data.flip = 1: must be a valid boolean"),
        (
            ["--thor.interval", "{start: 2, end: 9}"],
            "an interval from 2 to 9 needs a factor > 1, such as 1.2: with 1 it stays at start",
        ),
        (
            ["--optimizer", "sgd"],
            "optimizer = 'sgd': must be 'thor', 'momentum', 'adam', 'adafactor', 'muon' or 'soap'",
        ),
        (["--thor.block_size", "1.5"], "thor.block_size = 1.5: must be a whole number >= 1, 'auto', or the path"),
        (["--thor.interval", "0"], "thor.interval = 0: must be a whole number of steps >= 1"),
        (["--thor.refresh", "{preset: thor, start: -1}"], "thor.refresh.start = -1: must be greater than or equal"),
        (["--thor.refresh", "often"], "thor.refresh.preset = 'often': must be 'thor', 'thor_stop' or 'thor_nt'"),
        (["--thor.refresh", "{update: 0.1, stop: 0.2}"], "stop must be at most update, and 0.2 > 0.1"),
        (["--thor", "3"], "thor = 3: must be a block of settings"),
        (["--thor.damping"], "--thor.damping needs a value"),
        (
            ["--thor.refresh", "thor_stop", "--thor.refresh.update", "0.2"],
            "thor.refresh is 'thor_stop' here, and has no parts; give it whole: --thor.refresh '{update: 0.2, ...}'",
        ),
        (["epochs=3"], "unexpected argument 'epochs=3': settings are given as --key value"),
        (["--epochs", "[1"], "--epochs: '[1' is not a valid value"),
    ],
)
def test_errors_name_key_value_and_what_is_allowed(arguments, message):
    with pytest.raises(UserError) as caught:
        load_config(None, arguments)
    assert message in str(caught.value)


def test_several_errors_are_all_told():
    with pytest.raises(UserError) as caught:
        load_config(None, ["--seed", "-1", "--epochs", "0"])
    assert "seed = -1" in str(caught.value) and "epochs = 0" in str(caught.value)


@pytest.mark.parametrize(
    "text, message",
    [
        ("a: [1", "not valid YAML"),
        ("- 1", "must hold `key: value` lines"),
        ("thor:\n  damping: 0.1\nepochs: 3\nthor:\n  clip: 0.01", "thor is given twice.*line 4"),
        ("thor: {damping: 0.1, damping: 0.2}", "damping is given twice"),
    ],
)
def test_bad_files(tmp_path, text, message):
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(UserError, match=message):
        read_yaml(tmp_path / "c.yaml")
    with pytest.raises(UserError, match="no such file"):
        read_yaml(tmp_path / "none.yaml")


def test_saved_settings_read_back_equal(tmp_path):
    settings = load_config(None, ["--optimizer", "momentum", "--momentum.learning_rate", "1e-5"])
    save_config(settings, tmp_path / "config.yaml")
    assert "thor" not in yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert differences(load_config(tmp_path / "config.yaml"), settings) == []


def test_a_text_that_looks_like_a_number_reads_back_as_a_text(tmp_path):
    settings = load_config(None, ["--out", "'1e-3'", "--network_options", "{name: '2E5'}"])
    save_config(settings, tmp_path / "config.yaml")
    found = load_config(tmp_path / "config.yaml")
    assert found.out == "1e-3" and found.network_options == {"name": "2E5"}


@pytest.mark.parametrize("name", ["learning_rate", "split", "refresh", "interval", "factor_decay", "beta1"])
def test_null_is_the_default_again(tmp_path, name):
    base = {"learning_rate": 0.5, "split": "block", "refresh": "thor", "interval": 7, "factor_decay": 0.5, "beta1": 0.8}
    (tmp_path / "base.yaml").write_text(yaml.safe_dump({"thor": {name: base[name]}}))
    (tmp_path / "child.yaml").write_text(f"base: base.yaml\nthor: {{{name}: null}}\n")
    assert load_config(tmp_path / "base.yaml").thor != TrainSettings().thor or name == "split"
    assert load_config(tmp_path / "child.yaml").thor == TrainSettings().thor


def test_adam_inside_thor_is_saved_and_compared(tmp_path):
    inside = ["--optimizer", "thor", "--thor.damping", "0.1", "--thor.inner", "adam"]
    settings = load_config(None, [*inside, "--adam.beta2", "0.98"])
    save_config(settings, tmp_path / "config.yaml")
    saved = load_config(tmp_path / "config.yaml")
    assert saved.adam.beta2 == 0.98
    assert differences(saved, load_config(None, inside)) == ["adam.beta2: 0.98 -> 0.999"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--momentum.learning_rate", "0.1"],
            "--momentum.learning_rate: optimizer = thor does not use it; set --thor.learning_rate, or choose "
            "--optimizer momentum",
        ),
        (["--momentum.momentum", "0.8"], "--momentum.momentum: optimizer = thor does not use it; leave it out"),
        (["--momentum.mode", "nesterov"], "leave it out, or choose --optimizer momentum"),
        (["--adam.beta1", "0.8"], "set --thor.beta1, or choose --optimizer adam"),
        (["--thor.damping", "0.1", "--adam.beta1", "0.8"], "set --thor.inner adam, or choose --optimizer adam"),
        (["--thor.damping", "0.1", "--thor.inner", "adam", "--adam.weight_decay", "0.0"], "set --thor.weight_decay"),
        (["--optimizer", "adam", "--thor.schedule.power", "3", "--thor.schedule.shape", "thor"], "set --adam.schedule"),
        (["--optimizer", "adam", "--adafactor", "{d: 2.0}"], "--adafactor: optimizer = adam does not use it; leave"),
    ],
)
def test_a_setting_of_another_optimizer_is_refused_on_the_command_line(arguments, message):
    with pytest.raises(UserError) as caught:
        load_config(None, arguments)
    assert message in str(caught.value)


def test_all_settings_of_other_optimizers_are_named():
    with pytest.raises(UserError) as caught:
        load_config(None, ["--momentum.mode", "nesterov", "--adam.beta1", "0.5", "--thor.damping", "0.1"])
    assert [line.split(":")[0].strip() for line in str(caught.value).splitlines()] == [
        "--momentum.mode",
        "--adam.beta1",
    ]


def test_adam_inside_thor_uses_both_sections():
    settings = load_config(
        None, ["--thor.damping", "0.1", "--thor.inner", "adam", "--adam.beta1", "0.8", "--adam", "{beta2: 0.9}"]
    )
    assert settings.adam.beta2 == 0.9


def test_a_file_of_several_optimizers_is_taken_and_what_it_sets_in_vain_is_named(tmp_path):
    """One file has the sections of several optimizers; the run says which settings it does not use."""
    path = tmp_path / "c.yaml"
    path.write_text("thor: {damping: 0.1}\nmomentum: {learning_rate: 0.1, momentum: 0.9}\nadam: {beta1: 0.8}\n")
    settings = load_config(path)
    assert unused_in(settings, path) == f"{path}: optimizer = thor does not use momentum.learning_rate, adam.beta1"
    inside = load_config(path, ["--thor.damping", "0.1", "--thor.inner", "adam"])
    assert unused_in(inside, path) == f"{path}: optimizer = thor does not use momentum.learning_rate"
    many = tmp_path / "many.yaml"
    many.write_text(
        "optimizer: adam\nthor: {damping: 0.1, clip: 0.1, rank: 8, split: block+rank, norms: true, per: layer}\n"
    )
    names = "thor.damping, thor.split, thor.rank, thor.clip and 2 more"
    assert unused_in(load_config(many), many) == f"{many}: optimizer = adam does not use {names}"


@pytest.mark.parametrize("path", sorted((ROOT / "scripts" / "config").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_shipped_configuration_sets_nothing_in_vain(path):
    assert unused_in(load_config(path), path) is None


def test_a_setting_of_another_run_of_the_same_program_is_taken():
    both = ("thor", "momentum")
    assert load_config(None, ["--momentum.momentum", "0.5"], both).optimizer == "thor"
    with pytest.raises(UserError, match=r"--adam\.beta1: optimizer = thor does not use it"):
        load_config(None, ["--adam.beta1", "0.5"], both)


def test_the_command_line_warns_of_what_a_file_sets_in_vain(tmp_path):
    (tmp_path / "c.yaml").write_text("momentum: {learning_rate: 0.1}\nnetwork: none\n")
    command = [sys.executable, "scripts/train.py", "--config", str(tmp_path / "c.yaml"), "--dry-run"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert result.stderr.startswith(
        f"warning: {tmp_path / 'c.yaml'}: optimizer = thor does not use momentum.learning_rate\n"
    )


@pytest.mark.parametrize("path", sorted((ROOT / "scripts" / "config").glob("*.yaml")), ids=lambda path: path.stem)
def test_what_a_run_saves_loads_again(path, tmp_path):
    """As each rank takes it, and as it is written: no default that it spells out is refused."""
    settings = load_config(path)
    save_config(with_ranks(settings), tmp_path / "config.yaml")
    saved = load_config(tmp_path / "config.yaml")
    assert differences(saved, settings) == differences(with_ranks(saved), settings) == []


def test_differences_that_matter():
    settings = TrainSettings()
    assert differences(settings, load_config(None, ["--out", "x", "--log_every", "7"])) == []
    assert differences(settings, load_config(None, ["--seed", "4"])) == ["seed: 0 -> 4"]
    shared = ["--thor.grad_worker_fraction", "0.5", "--thor.per", "factor"]  # who makes an inverse changes none
    assert differences(settings, load_config(None, shared)) == []
    assert differences(settings, load_config(None, ["--log_every", "7"]), also=["log_every"]) == ["log_every: 50 -> 7"]


def test_command_line_refuses_with_status_2_and_no_traceback():
    command = [sys.executable, "scripts/train.py", "--config", "scripts/config/quickstart_thor.yaml", "--epohs", "3"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert result.stderr == "error: unknown key epohs: did you mean epochs?\n"


def test_an_argument_that_is_none_is_no_argument_left_out(tmp_path):
    """A factory's own default may be another one."""
    settings = validate({"network_options": {"norm": None, "inner": {"act": None}, "width": 8}})
    save_config(settings, tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml").network_options == settings.network_options
    assert differences(settings, validate({"network_options": {"inner": {"act": None}, "width": 8}})) == [
        "network_options.norm: None -> left out"
    ]
    assert "adam.epsilon" not in (tmp_path / "config.yaml").read_text()


def test_the_folder_of_a_run_may_lie_in_the_users_home(monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    assert load_config(None, ["--out", "~/runs/a"]).out == "/home/someone/runs/a"
