"""The dashboard and the alert rules: each metric in them is one that /metrics has."""

import json
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest
import yaml

from agentstate import metrics

ROOT = Path(__file__).resolve().parent.parent.parent
RULES = ROOT / "deploy" / "prometheus" / "alerts.yml"
BOARD = ROOT / "deploy" / "grafana" / "agentstate.json"
NAME = re.compile(r"\b(?:agentstate|process)_\w+")
# PromQL's brackets, and what stands in its texts and selectors.
TEXTS = re.compile(r'"[^"]*"')


@cache
def names() -> frozenset[str]:
    """Every series that /metrics may have."""
    found = set()
    for collector in metrics.REGISTRY._collector_to_names:
        for family in collector.describe() if hasattr(collector, "describe") else ():
            found.add(family.name + ("_total" if family.type == "counter" else ""))
            if family.type == "histogram":
                found |= {family.name + end for end in ("_bucket", "_sum", "_count")}
    found |= {sample.name for family in metrics.ProcessCollector(registry=None).collect()
              for sample in family.samples}  # fmt: skip
    return frozenset(found)


def rules():
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return group["rules"]


def panels():
    return json.loads(BOARD.read_text())["panels"]


def expressions():
    yield from ((rule["alert"], rule["expr"]) for rule in rules())
    for panel in panels():
        yield from ((panel["title"], target["expr"]) for target in panel["targets"])


def test_every_metric_that_is_watched_is_told():
    watched = {name for _, text in expressions() for name in NAME.findall(TEXTS.sub("", text))}
    assert len(watched) > 25
    assert watched - names() == set()


@pytest.mark.parametrize(("where", "text"), list(expressions()))
def test_an_expression_is_whole(where, text):
    bare = TEXTS.sub("", text)
    for opened, closed in ("()", "{}", "[]"):
        assert bare.count(opened) == bare.count(closed), where
    for label in re.findall(r"by \(([^)]*)\)", bare):
        assert set(label.replace(" ", "").split(",")) <= {
            "part", "exported_job", "kind", "why", "le", "table", "status", "state", "operation",
            "code", "lane", "whose",
        }, where  # fmt: skip


def test_each_alert_says_what_to_do_and_is_tried():
    tried = yaml.safe_load(RULES.with_name("alerts_test.yml").read_text())
    (firing,) = tried["tests"][0]["promql_expr_test"]
    assert firing["exp_samples"] == [{"labels": "{}", "value": len(rules())}]
    for rule in rules():
        assert rule["for"]
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert set(rule["annotations"]) == {"summary", "mend"}
    assert len({rule["alert"] for rule in rules()}) == len(rules())


def test_no_two_panels_lie_on_one_another():
    taken = set()
    for panel in panels():
        at = panel["gridPos"]
        cells = {(at["x"] + i, at["y"] + j) for i in range(at["w"]) for j in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in panels()}) == len(panels())


@pytest.mark.long
@pytest.mark.many
def test_prometheus_reads_the_rules_and_each_fires_when_it_should():
    """Where promtool is not installed, what is above has read them by means of our own."""
    if (promtool := shutil.which("promtool")) is None:
        assert len(rules()) > 10
        return
    for arguments in (["check", "rules", RULES.name], ["test", "rules", "alerts_test.yml"]):
        done = subprocess.run(
            [promtool, *arguments], cwd=RULES.parent, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "SUCCESS" in done.stdout + done.stderr
