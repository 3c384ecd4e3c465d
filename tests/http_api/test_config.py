"""Configuration: precedence, and messages that name the key."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from bargein.http_api.config import ConfigError, load
from bargein.http_api.logs import Json


def test_file_then_environment_then_flags(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('[server]\nport = 1\nhost = "a"\n[chat]\nmodel = "m"\n[session]\nprofile = "fast"\n')
    config = load(file, {"BARGEIN_SERVER_PORT": "2", "BARGEIN_CHAT_BASE_URL": "http://x"}, {"server.port": "3"})
    assert (config.server.port, config.server.host, config.chat.model, config.chat.base_url) == (3, "a", "m", "http://x")
    assert config.session_settings().eou.min_delay_ms == 100


def test_the_servers_limits() -> None:
    config = load(None, {"BARGEIN_LIMITS_STT_FAILURE_LIMIT": "5"}, {"limits.session_idle_timeout_s": "120"})
    assert (config.limits.stt_failure_limit, config.limits.session_idle_timeout_s) == (5, 120)
    assert config.limits.outbound_queue_cap == 256


def test_lists_and_session_values_from_text() -> None:
    flags = {"session.turn_detection.silence_duration_ms": "200", "session.voice": "x"}
    config = load(None, {"BARGEIN_SERVER_API_KEYS": "a,b"}, flags)
    assert config.server.api_keys == ("a", "b")
    td = config.session_settings().turn_detection
    assert td is not None and td.silence_duration_ms == 200


@pytest.mark.parametrize(
    ("toml", "environ", "flags", "named"),
    [
        ("[server]\nprot = 1", {}, {}, "prot"),
        ('[server]\nport = "x"', {}, {}, "server.port"),
        ("[server]\nport = 70000", {}, {}, "server.port"),
        ("[sever]", {}, {}, "sever"),
        ("", {"BARGEIN_SERVER_PROT": "1"}, {}, "BARGEIN_SERVER_PROT"),
        ("", {}, {"engine.mode": "gpu"}, "engine.mode"),
        ("[session]\nspeed = 9", {}, {}, "speed"),
        ("[limits]\nstt_failure_limits = 1", {}, {}, "stt_failure_limits"),
        ("[session]\nstt_failure_limit = 1", {}, {}, "stt_failure_limit"),
        ("[session.barge_in]\nhold_cap_ms = 5", {}, {}, "barge_in.hold_cap_ms"),
        ("[session.turn_detection]\nthreshold = 2", {}, {}, "turn_detection.threshold"),
        ("not toml", {}, {}, "c.toml"),
    ],
)
def test_bad_configuration_names_the_key(tmp_path: Path, toml: str, environ: dict, flags: dict, named: str) -> None:
    file = tmp_path / "c.toml"
    file.write_text(toml)
    with pytest.raises(ConfigError, match=named):
        load(file, environ, flags)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml"):
        load(tmp_path / "none.toml", {}, {})


def test_a_log_of_json_is_one_object_a_line() -> None:
    record = logging.LogRecord("bargein.x", logging.ERROR, "", 0, "%s \n broke", ("a \"call\"",), None)
    record.exc_info = (ValueError, ValueError("why"), None)
    line = Json().format(record)
    told = json.loads(line)
    assert "\n" not in line and told["message"] == 'a "call" \n broke' and told["level"] == "error"
    assert "ValueError: why" in told["exception"] and told["time"].endswith("+00:00")
