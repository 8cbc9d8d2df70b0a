"""Who may talk to whom, by the rules of NetworkPolicies: clients reach routers, nobody else."""

from pathlib import Path
from typing import Any

import pytest

from charts.objects import OCTAVO_ROLES, VALUES_FILES, Object, objects_of_file, of_kind, pod_of

ANY_POD = {"app": "shop"}
DEFAULT, NO_POLICY, ONE_NAMESPACE = (
    next(path for path in VALUES_FILES if part in path.stem)
    for part in ("default", "laptop", "http")
)
PORTS = {"router": 50051, "prefill": 50061, "decode": 50062, "redis": 6379}


class Pod:
    """Labels of a pod and of its namespace."""

    def __init__(self, labels: dict[str, str], namespace: str = "octavo") -> None:
        self.labels = labels
        self.namespace = namespace
        self.namespace_labels = {"kubernetes.io/metadata.name": namespace}


def pod(path: Path, role: str) -> Pod:
    for workload in of_kind(objects_of_file(path), "Deployment"):
        labels = pod_of(workload)["metadata"]["labels"]
        if labels["app.kubernetes.io/component"] == role:
            return Pod(labels)
    raise LookupError(role)


def may_call(path: Path, caller: Pod, called: Pod, port: int) -> bool:
    """Both sides' policies must admit it."""
    policies = of_kind(objects_of_file(path), "NetworkPolicy")
    return _admits(policies, called, caller, port, "ingress", "from") and _admits(
        policies, caller, called, port, "egress", "to"
    )


def _admits(
    policies: list[Object], own: Pod, other: Pod, port: int, direction: str, side: str
) -> bool:
    mine = [item["spec"] for item in policies if _matches(item["spec"]["podSelector"], own.labels)]
    if own.namespace != "octavo" or not mine:
        return True  # not isolated
    rules = [rule for spec in mine for rule in spec.get(direction, [])]
    return any(_rule_admits(rule, other, port, side) for rule in rules)


def _rule_admits(rule: dict[str, Any], other: Pod, port: int, side: str) -> bool:
    if not any(item["port"] == port and item["protocol"] == "TCP" for item in rule["ports"]):
        return False
    return side not in rule or any(_peer_is(peer, other) for peer in rule[side])


def _peer_is(peer: dict[str, Any], other: Pod) -> bool:
    if "namespaceSelector" in peer:
        if not _matches(peer["namespaceSelector"], other.namespace_labels):
            return False
    elif other.namespace != "octavo":
        return False
    return _matches(peer.get("podSelector", {}), other.labels)


def _matches(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    assert selector.keys() <= {"matchLabels"}
    return all(labels.get(k) == v for k, v in selector.get("matchLabels", {}).items())


ALLOWED = {
    ("router", "prefill"),
    ("router", "decode"),
    ("decode", "prefill"),
    ("router", "redis"),
    ("prefill", "redis"),
    ("decode", "redis"),
}


@pytest.mark.parametrize("caller", ["router", "prefill", "decode", "redis"])
@pytest.mark.parametrize("called", ["router", "prefill", "decode", "redis"])
def test_roles_reach_those_they_call(caller: str, called: str) -> None:
    if caller == called or called == "router":
        return  # same as a client: the next test
    allowed = may_call(DEFAULT, pod(DEFAULT, caller), pod(DEFAULT, called), PORTS[called])
    assert allowed == ((caller, called) in ALLOWED)


@pytest.mark.parametrize("namespace", ["octavo", "shop"])
def test_clients_reach_routers_only(namespace: str) -> None:
    client = Pod(ANY_POD, namespace)
    assert may_call(DEFAULT, client, pod(DEFAULT, "router"), 50051)
    for role in ("prefill", "decode", "redis"):
        assert not may_call(DEFAULT, client, pod(DEFAULT, role), PORTS[role]), role
    assert not may_call(DEFAULT, client, pod(DEFAULT, "router"), 22)


def test_prometheus_reads_every_role_at_its_port_alone() -> None:
    for role in OCTAVO_ROLES:
        assert may_call(DEFAULT, Pod({}, "monitoring"), pod(DEFAULT, role), 9464), role
        assert not may_call(DEFAULT, Pod({}, "monitoring"), pod(DEFAULT, role), 9465), role
    assert not may_call(DEFAULT, Pod({}, "monitoring"), pod(DEFAULT, "redis"), 9464)


def test_clients_can_be_narrowed_and_policies_left_out() -> None:
    router = pod(ONE_NAMESPACE, "router")
    assert may_call(ONE_NAMESPACE, Pod({"uses-llm": "true"}, "apps"), router, 8080)
    assert not may_call(ONE_NAMESPACE, Pod({}, "apps"), router, 50051)
    assert not may_call(ONE_NAMESPACE, Pod({"uses-llm": "true"}, "shop"), router, 50051)
    assert not of_kind(objects_of_file(NO_POLICY), "NetworkPolicy")


@pytest.mark.parametrize("path", VALUES_FILES, ids=lambda path: path.stem)
def test_every_role_is_isolated_both_ways(path: Path) -> None:
    policies = of_kind(objects_of_file(path), "NetworkPolicy")
    if path == NO_POLICY:
        return
    for role in OCTAVO_ROLES:
        own = pod(path, role).labels
        mine = [item["spec"] for item in policies if _matches(item["spec"]["podSelector"], own)]
        assert [spec["policyTypes"] for spec in mine] == [["Ingress", "Egress"]]
