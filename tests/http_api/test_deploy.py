"""The files under deploy/ say what is so: metrics that exist, settings that are accepted, paths that are served."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from bargein.engine import protocol as p
from bargein.engine.client import EngineClient
from bargein.engine.fleet import Fleet
from bargein.engine.stats import VAD_BOUNDS_MS
from bargein.http_api.app import make_app
from bargein.http_api.config import Config, load
from bargein.http_api.metrics import METRICS
from bargein.http_api.services import Services

DEPLOY = Path(__file__).parent.parent.parent / "deploy"
NAME = re.compile(r"\b(?:bargein|process)_[a-z_]+\b")


def manifests() -> dict[str, Any]:
    return {x["kind"]: x for x in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())}


def test_every_metric_of_the_dashboard_is_exported() -> None:
    engine = EngineClient()
    lane = p.LaneLoad(1, 0, 0.1, 1, 1)
    engine.load = p.Load(0, 0, {"stt": lane}, (0,) * (len(VAD_BOUNDS_MS) + 1), 1.0, 1)
    metrics = make_app(Services(Config(), Fleet([engine])))[METRICS]
    exported = {sample.name for family in metrics.registry.collect() for sample in family.samples}
    exported |= {family.name for family in metrics.registry.collect()}
    labelled = {"bargein_http_requests_total", "bargein_tokens_total", "bargein_audio_seconds_total"}  # no sample before use
    labelled |= {"bargein_http_request_seconds_bucket", "bargein_http_requests_in_flight"}
    known = {x.removesuffix("_total").removesuffix("_bucket") for x in exported}
    dashboard = json.loads((DEPLOY / "grafana.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked = {name for query in queries for name in NAME.findall(query)}
    assert len(queries) > 15 and len(asked) > 12
    for name in asked - labelled:
        assert name in exported, name
    for name in asked & labelled:
        assert name.removesuffix("_total").removesuffix("_bucket") in known, name
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    assert all(query.count("(") == query.count(")") and query.count("{") == query.count("}") for query in queries)


def settings_of(text: str) -> dict[str, str]:
    return dict(re.findall(r"\b(BARGEIN_[A-Z_]+)(?:=|: |, value: )\"?([\w./-]+)", text))


@pytest.mark.parametrize("name", ["Dockerfile", "docker-compose.yml", "kubernetes.yaml", "bargein.service"])
def test_the_settings_that_are_made_are_settings(name: str) -> None:
    found = settings_of((DEPLOY / name).read_text())
    assert found
    load(None, found, {})


def test_there_is_time_to_drain_wherever_it_runs() -> None:
    pod = manifests()["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    env = {x["name"]: x.get("value") for x in container["env"]}
    slept = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > slept + float(env["BARGEIN_SERVER_DRAIN_S"]) + 10
    compose = yaml.safe_load((DEPLOY / "docker-compose.yml").read_text())["services"]["bargein"]
    assert int(compose["stop_grace_period"].rstrip("s")) > float(compose["environment"]["BARGEIN_SERVER_DRAIN_S"]) + 10
    unit = (DEPLOY / "bargein.service").read_text()
    stop = re.search(r"TimeoutStopSec=(\d+)", unit)
    assert stop is not None and int(stop[1]) > float(settings_of(unit)["BARGEIN_SERVER_DRAIN_S"]) + 10


def test_probes_ask_for_what_is_served_and_calls_stay_where_they_are() -> None:
    found = manifests()
    app = make_app(Services(Config(), Fleet([EngineClient()])))
    served = {route.resource.canonical for route in app.router.routes() if route.resource is not None}
    pod = found["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["path"] in served
    assert found["Service"]["spec"]["sessionAffinity"] == "ClientIP"
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == 10001
    health = re.search(r"127\.0\.0\.1:8000(/[\w/]+)", (DEPLOY / "Dockerfile").read_text())
    assert health is not None and health[1] in served


def rootfs() -> Any:
    spec = importlib.util.spec_from_file_location("rootfs", DEPLOY / "rootfs.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules["rootfs"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_image_holds_every_package_and_runs_as_nobody_special() -> None:
    steps = rootfs().instructions((DEPLOY / "Dockerfile").read_text())
    copied = {rest.split()[0] for word, rest in steps if word == "COPY"}
    project = (DEPLOY.parent / "pyproject.toml").read_text()
    packages = set(re.findall(r'^"bargein\.(\w+)" = "\w+"$', project, re.M))
    assert len(packages) > 8 and packages <= copied
    assert [rest for word, rest in steps if word == "USER"] == ["bargein"]
    last_user = max(n for n, (word, _) in enumerate(steps) if word == "USER")
    assert all(n > last_user for n, (word, _) in enumerate(steps) if word in ("ENTRYPOINT", "CMD", "HEALTHCHECK"))


def test_an_instruction_that_is_unknown_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "Dockerfile"
    file.write_text("# a comment\nARG A=1 \\\n\nADD a b\n")
    with pytest.raises(SystemExit, match="ADD"):
        rootfs().build(tmp_path / "root", tmp_path, file, {}, [])


def test_what_is_told_for_the_steps_is_not_in_the_image(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("ARG A=1\nENV B=2\nUSER root\nCMD [\"serve\"]\n")
    (tmp_path / "root/etc").mkdir(parents=True)
    rootfs().build(tmp_path / "root", tmp_path, tmp_path / "Dockerfile", {"A": "x"}, [], {"HTTPS_PROXY": "there"})
    kept = json.loads((tmp_path / "root/etc/image.json").read_text())
    assert kept["args"] == {} and kept["env"].keys() == {"PATH", "B"}
