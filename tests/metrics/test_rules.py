"""Dashboard, rules and chart ask for what is told, and every alert fires when it should."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from deploy.render import CHART
from metrics.conftest import Watched
from metrics.figures import DASHBOARD, RULES, Scrape, dashboard_queries, documented, names_in, rules

ALERT_TESTS = Path(__file__).parent / "alerts_test.yaml"
SUFFIX = re.compile(r"_(bucket|count|sum)$")
in_session = pytest.mark.asyncio(loop_scope="session")
promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")


def test_every_figure_that_is_asked_for_is_documented() -> None:
    known = documented().keys() | {rule["record"] for rule in rules() if "record" in rule}
    known |= {"process_cpu_seconds_total", "process_resident_memory_bytes"}
    for expr in [*dashboard_queries(), *(rule["expr"] for rule in rules())]:
        names = names_in(expr)
        assert names, expr
        assert {SUFFIX.sub("", name) for name in names} <= known, expr


def test_every_documented_figure_of_requests_and_engines_is_drawn() -> None:
    """Or is one of a few that stand for themselves."""
    unseen = {
        "octavo_kv_cache_usage_ratio",  # vllm:kv_cache_usage_perc is drawn
        "octavo_redis_failures_total",
        "octavo_kv_transfer_blocks_total",  # their bytes are drawn
        "octavo_kv_key_collisions_total",
        "octavo_kv_digest_mismatches_total",  # an alert's
        "octavo_engine_requests_total",
        "octavo_engine_prompt_tokens_total",
        "octavo_draining",
        "vllm:request_time_per_output_token_seconds",
    }
    drawn = {SUFFIX.sub("", name) for expr in dashboard_queries() for name in names_in(expr)}
    assert documented().keys() - drawn == unseen


def test_the_chart_scales_by_figures_that_are_told() -> None:
    names = yaml.safe_load((CHART / "values.yaml").read_text())["metrics"]["names"]
    assert documented()[names["prefillQueuedTokens"]][2] >= {"prefill"}
    assert documented()[names["kvCacheUsage"]][2] >= {"decode"}
    assert all(":" not in name for name in names.values()), "adapters put them into a path"


def test_the_chart_ships_the_same_files() -> None:
    assert RULES.resolve() == (CHART / "files" / "alerts.yaml").resolve()
    assert DASHBOARD.resolve() == (CHART / "files" / "dashboard.json").resolve()


def test_every_alert_is_tested_quiet_and_firing() -> None:
    tests = yaml.safe_load(ALERT_TESTS.read_text())["tests"]
    for rule in rules():
        if "alert" in rule:
            cases = [
                case
                for test in tests
                for case in test.get("alert_rule_test", [])
                if case["alertname"] == rule["alert"]
            ]
            assert {bool(case["exp_alerts"]) for case in cases} == {True, False}, rule["alert"]
            assert rule["labels"]["severity"] in ("critical", "warning", "info")
            assert rule["annotations"]["summary"].endswith(".")


@promtool
def test_rules_are_sound_and_alerts_do_as_they_say() -> None:
    for command in (["check", "rules", str(RULES)], ["test", "rules", str(ALERT_TESTS)]):
        done = subprocess.run(["promtool", *command], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


@in_session
async def test_queries_name_labels_that_their_figures_have(watched: Watched) -> None:
    told = await watched.by_role()
    for expr in [*dashboard_queries(), *(rule["expr"] for rule in rules())]:
        for name, matchers in re.findall(r"([a-z_:]+[a-z0-9_]*)\{([^}]*)\}", expr):
            wanted = set(re.findall(r"(\w+)\s*=~?", matchers)) - {"job"}
            scrapes = [scrape for scrape in told.values() if name in scrape.sample_names]
            assert scrapes or "redis" in name, name
            for scrape in scrapes:
                assert wanted <= _labels(scrape, name), (name, wanted)


@promtool
@in_session
async def test_our_own_names_pass_prometheus_lint(watched: Watched) -> None:
    """vLLM's have colons, which it leaves to recording rules."""
    for text in await watched.texts():
        ours = "".join(f"{line}\n" for line in text.splitlines() if "vllm:" not in line)
        command = ["promtool", "check", "metrics"]
        done = subprocess.run(command, input=ours, capture_output=True, text=True)
        assert not [line for line in done.stderr.splitlines() if line.startswith("octavo_")]


def _labels(scrape: Scrape, name: str) -> set[str]:
    return {label for each, labels in scrape.series if each == name for label, _ in labels}
