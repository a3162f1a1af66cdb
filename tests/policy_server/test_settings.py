"""Settings and the file they may come from."""

from __future__ import annotations

import math
import re
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from policy_server.settings import Settings, SettingsError, described_settings, read_settings_file


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", -1),
        ("port", 65536),
        ("stale_after_seconds", 0.0),
        ("model_budget_seconds", math.nan),
        ("drain_seconds", -0.1),
        ("drain_seconds", math.inf),
        ("max_in_flight", 0),
        ("max_message_bytes", 100),
        ("metrics_port", 70000),
    ],
)
def test_values_out_of_range_are_refused(name: str, value: float) -> None:
    with pytest.raises(SettingsError, match=f"{name}: {value}; must be a number from"):
        Settings(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (
            {"extender_tls_certificate": Path("tls.crt")},
            "extender_tls_key: missing; give certificate and key",
        ),
        (
            {"extender_tls_key": Path("tls.key")},
            "extender_tls_certificate: missing; give certificate and key",
        ),
        ({"extender_own_label": "policy-server"}, "extender_own_label: 'policy-server'; give KEY=VALUE"),
        ({"extender_own_label": "app="}, "extender_own_label: 'app='; give KEY=VALUE"),
    ],
)
def test_settings_that_contradict_each_other(settings: dict[str, object], complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint):
        Settings(**settings)  # type: ignore[arg-type]


def test_every_setting_has_a_description() -> None:
    assert all(about.description.endswith(".") for _, about in described_settings().values())


def test_file(tmp_path: Path) -> None:
    file = tmp_path / "server.toml"
    file.write_text('port = 7000\npolicy = "random"\n[state_options]\npreset = "testbed-40"\n')
    assert read_settings_file(file) == {
        "port": 7000,
        "policy": "random",
        "state_options": {"preset": "testbed-40"},
    }


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("prot = 7000", "'prot' is no setting; choose from .*port"),
        ("port = ", "is not TOML"),
        ("[port]\nnumber = 1", "only state_options is a table"),
        ('state_options = "preset=testbed-40"', "only state_options is a table"),
        ("\xff", "is not TOML"),
    ],
)
def test_bad_file(tmp_path: Path, content: str, complaint: str) -> None:
    file = tmp_path / "server.toml"
    file.write_bytes(content.encode("latin-1"))
    with pytest.raises(SettingsError, match=complaint):
        read_settings_file(file)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"absent\.toml; No such file"):
        read_settings_file(tmp_path / "absent.toml")


def test_documentation_lists_every_setting_with_its_default() -> None:
    text = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
    for setting in fields(Settings):
        _, about = described_settings()[setting.name]
        shown = ""
        if setting.default is not MISSING and setting.default is not None:
            shown = f"`{setting.default}`".lower()
        row = re.compile(
            rf"^\| `{setting.name}` \| `--[^|]*` \| {re.escape(shown)} ?\| {re.escape(about.description)} \|$",
            re.MULTILINE,
        )
        assert row.search(text), f"{setting.name}, {shown}, {about.description}"
