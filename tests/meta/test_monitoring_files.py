"""The files in docs/monitoring for Prometheus, Grafana and KEDA are valid and work.

They name only existing metrics.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from horsies_django.core.counts import CLAIMED, NO_FAILURE
from horsies_django.worker.pool.process import END_REASONS
from tests.support.metrics import PAGE, of_the_page, promtool

HERE = Path(__file__).parent
FILES = HERE.parents[1] / "docs" / "monitoring"
# Other tests compare these metrics with the real ones.
METRICS = of_the_page("Metrics of a worker") | of_the_page("Metrics of the site")
OF_PROMETHEUS = {"job", "instance", "le"}

DASHBOARD = json.loads((FILES / "grafana.json").read_text())
RULES = yaml.safe_load((FILES / "rules.yml").read_text())
KEDA = yaml.safe_load((FILES / "keda.yml").read_text())
PANELS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
ALERTS = [rule["expr"] for group in RULES["groups"] for rule in group["rules"]]
TRIGGERS = [trigger["metadata"]["query"] for trigger in KEDA["spec"]["triggers"]]


def as_file(path: Path, content: Any) -> Path:
    """Write a file for promtool: JSON, which is a part of YAML."""
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize("expression", PANELS + ALERTS + TRIGGERS)
def test_an_expression_names_metrics_and_labels_that_exist(expression: str) -> None:
    bare = re.sub(r'"[^"]*"', '""', expression)
    names = {
        re.sub(r"_(bucket|sum|count)$", "", name) for name in re.findall(r"\bhorsies_\w+", bare)
    }

    assert names
    assert names <= METRICS.keys()

    grouped = {
        label.strip()
        for labels in re.findall(r"\bby \(([^)]*)\)", bare)
        for label in labels.split(",")
    }
    matched = set(re.findall(r'(\w+)(?:=~|!~|!=|=)""', bare))

    assert grouped | matched <= OF_PROMETHEUS.union(*(METRICS[name][1] for name in names))


def test_each_metric_of_the_page_is_on_the_dashboard() -> None:
    shown = " ".join(PANELS)

    assert [name for name in METRICS if name not in shown] == []


def test_the_docs_and_the_dashboard_agree_on_the_failure_results() -> None:
    """The page and the dashboard agree on the results that are no failures.

    The page also lists all reasons for a child's end.

    Fails if: a result is added, and the dashboard shows it as a failure.
    """
    (excluded,) = {
        found[1] for found in map(re.compile(r'result!~"([^"]*)"').search, PANELS) if found
    }

    assert set(excluded.split("|")) == NO_FAILURE - {CLAIMED}

    tables = [
        re.findall(r"^\| (`[^|]*`) \|", text, re.MULTILINE)
        for text in PAGE.read_text().split("\n\n")
    ]
    first = [set(re.findall(r"`(\w+)`", " ".join(rows))) for rows in tables]

    assert NO_FAILURE - {CLAIMED} in first
    assert set(END_REASONS) in first


def test_the_figures_of_the_site_come_from_one_process() -> None:
    """The figures of the site come from one of its processes and are not added up."""
    for expression in PANELS + ALERTS + TRIGGERS:
        for name in of_the_page("Metrics of the site").keys() & set(
            re.findall(r"\bhorsies_\w+", expression)
        ):
            assert re.search(rf"(max( by \([^)]*\))? |max|absent)\({name}\b", expression), (
                expression
            )


def test_promtool_parses_each_expression_of_the_dashboard(tmp_path: Path) -> None:
    parsed = [
        {"record": f"panel:{number}", "expr": re.sub(r"\$__rate_interval", "5m", expression)}
        for number, expression in enumerate(PANELS)
    ]

    promtool(
        "check",
        "rules",
        as_file(tmp_path / "rules.yml", {"groups": [{"name": "panels", "rules": parsed}]}),
    )


def test_dashboard_panels_use_the_data_source_the_user_selects() -> None:
    """The panels of the dashboard use the data source that the user selects."""
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])

    sources = {panel["datasource"]["uid"] for panel in DASHBOARD["panels"]}
    assert sources == {f"${{{DASHBOARD['templating']['list'][0]['name']}}}"}


def test_each_severity_has_one_alert() -> None:
    """Each severity has one alert, and so has a site without metrics."""
    promtool("check", "rules", FILES / "rules.yml")
    promtool("test", "rules", HERE / "rules_test.yml")


def test_keda_counts_each_task_once(
    tmp_path: Path,
) -> None:
    """KEDA counts each task once, and without metrics it gets the smallest figure."""
    (query,) = TRIGGERS
    replicas = [
        {
            "series": f'horsies_queue_{what}_tasks{{queue="{queue}", instance="{instance}"}}',
            "values": f"{value}x5",
        }
        for what, queue, value in (
            ("due", "default", 30),
            ("running", "default", 8),
            ("due", "mail", 500),
        )
        for instance in ("web-1", "web-2")
    ]

    def answers(value: int) -> list[dict[str, Any]]:
        return [
            {"expr": query, "eval_time": "2m", "exp_samples": [{"labels": "{}", "value": value}]}
        ]

    tests = [
        {"interval": "1m", "input_series": replicas, "promql_expr_test": answers(38)},
        {"interval": "1m", "input_series": [], "promql_expr_test": answers(0)},
    ]

    promtool("test", "rules", as_file(tmp_path / "test.yml", {"rule_files": [], "tests": tests}))
