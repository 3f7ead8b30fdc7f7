"""`/metrics` is what Prometheus reads, and says what the kernel counted."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.house import House

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("HTTP answers are the same for every user")]


def test_a_viewer_reads_every_figure_of_the_specification(house: House) -> None:
    house.get("status")
    answer = house.get("/metrics", role="viewer")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    found = {one.name: one for one in text_string_to_metric_families(answer.text)}
    assert found.keys() >= {
        "agent_os_syscalls",
        "agent_os_policy_check_seconds",
        "agent_os_journal_commit_seconds",
        "agent_os_model_queue_seconds",
        "agent_os_approvals_pending",
        "agent_os_bus_depth",
        "agent_os_dead_letters",
    }
    calls = {tuple(one.labels.values()): one.value for one in found["agent_os_syscalls"].samples}
    assert calls["OP_STATUS", "allow"] >= 1
    commits = {one.labels.get("le", one.name): one.value for one in found["agent_os_journal_commit_seconds"].samples}
    assert commits["+Inf"] == commits["agent_os_journal_commit_seconds_count"] > 0
    labels = {name for one in found.values() for sample in one.samples for name in sample.labels}
    assert not labels & {"agent", "name", "id"}, "no agent is named"


def test_without_a_token_nobody_reads_them(house: House) -> None:
    assert house.get("/metrics", role=None).status_code == 401
