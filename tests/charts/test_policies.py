"""Every rendered object keeps to what a careful cluster asks: security, probes, limits, budgets."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from charts.objects import (
    OCTAVO_ROLES,
    VALUES_FILES,
    Object,
    containers,
    named,
    objects_of_file,
    of_kind,
    pod_of,
    selects,
    values_of,
)
from octavo.decode_worker.config import DecodeConfig
from octavo.prefill_worker.config import PrefillConfig
from octavo.registry.redis_url import parse_redis_url
from octavo.router.config import RouterConfig

pytestmark = pytest.mark.slow  # run by `make charts`

CONFIGS: dict[str, Any] = {
    "router": RouterConfig,
    "prefill-worker": PrefillConfig,
    "decode-worker": DecodeConfig,
}

# Volume types that the restricted Pod Security Standard admits, of those that the chart knows.
RESTRICTED_VOLUMES = {"configMap", "csi", "emptyDir", "persistentVolumeClaim", "secret"}


@pytest.fixture(params=VALUES_FILES, ids=lambda path: path.stem)
def path(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


@pytest.fixture
def objects(path: Path) -> list[Object]:
    return objects_of_file(path)


def test_pods_fit_the_restricted_standard(objects: list[Object]) -> None:
    for name, spec, container in containers(objects):
        pod, own = spec["securityContext"], container["securityContext"]
        assert pod["runAsNonRoot"] is True and pod["runAsUser"] > 0, name
        assert pod["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert own["allowPrivilegeEscalation"] is False, name
        assert own["capabilities"] == {"drop": ["ALL"]}, name
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys(), name
        assert not [port for port in container["ports"] if "hostPort" in port], name
        for volume in spec["volumes"]:
            assert (volume.keys() - {"name"}) <= RESTRICTED_VOLUMES, volume


def test_only_volumes_can_be_written(objects: list[Object]) -> None:
    for name, spec, container in containers(objects):
        assert container["securityContext"]["readOnlyRootFilesystem"] is True, name
        mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
        assert mounts.keys() == {volume["name"] for volume in spec["volumes"]}, name
        for volume in spec["volumes"]:
            if "secret" in volume or volume["name"] == "model":
                assert mounts[volume["name"]]["readOnly"] is True, volume


def test_no_pod_gets_a_token_of_the_cluster(objects: list[Object]) -> None:
    accounts = {item["metadata"]["name"]: item for item in of_kind(objects, "ServiceAccount")}
    for name, spec, _ in containers(objects):
        assert spec["automountServiceAccountToken"] is False, name
        assert accounts[spec["serviceAccountName"]]["automountServiceAccountToken"] is False
    assert len(accounts) == len(of_kind(objects, "Deployment")), "an account a role"


def test_variables_of_other_services_do_not_reach_our_settings(objects: list[Object]) -> None:
    """OCTAVO_ROUTER_PORT and the like, which would come from a Service of that name."""
    for name, spec, _ in containers(objects):
        assert spec["enableServiceLinks"] is False, name


def test_every_container_has_three_probes_of_its_own_port(
    objects: list[Object], path: Path
) -> None:
    tls = values_of(path).get("tls", {})
    for name, _, container in containers(objects):
        probes = [container[f"{kind}Probe"] for kind in ("startup", "readiness", "liveness")]
        if "redis" in name:
            continue
        ports = {port["containerPort"] for port in container["ports"] if port["name"] == "grpc"}
        if "secretName" in tls if "router" in name else "internalSecretName" in tls:
            services = [probe["exec"]["command"][2].removeprefix("--service=") for probe in probes]
        else:
            assert {probe["grpc"]["port"] for probe in probes} == ports, name
            services = [probe["grpc"].get("service", "") for probe in probes]
        role = container["args"][0]
        readiness = {
            "router": "octavo.inference.v1.InferenceService",
            "prefill-worker": "octavo.internal.v1alpha1.PrefillService",
            "decode-worker": "octavo.internal.v1alpha1.DecodeService",
        }[role]
        assert services == ["", readiness, ""], name


def test_a_port_is_encrypted_or_opened_on_purpose(objects: list[Object]) -> None:
    """The settings are what each role's process takes, and refuses if something is missing."""
    for name, _, container in containers(objects):
        if "redis" in name:
            continue
        mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
        args = [arg for arg in container["args"][1:] if arg.startswith("--")]
        settings = {arg.removeprefix("--").partition("=")[0]: arg.partition("=")[2] for arg in args}
        lock = "tls-cert-file" if "router" in name else "internal-tls-dir"
        assert (lock in settings) != ("insecure" in settings), name
        for setting in ("tls-cert-file", "tls-key-file", "tls-client-ca-file", "api-key-file"):
            if setting in settings:
                assert str(Path(settings[setting]).parent) in mounted, (name, setting)
        if "internal-tls-dir" in settings:
            assert settings["internal-tls-dir"] in mounted, name


def test_every_argument_is_one_that_the_role_takes(objects: list[Object]) -> None:
    known = {
        role: {item.name.replace("_", "-") for item in fields(config)}
        for role, config in CONFIGS.items()
    }
    for name, _, container in containers(objects):
        if "redis" in name:
            continue
        role, *args = container["args"]
        for arg in args:
            setting = arg.removeprefix("--").partition("=")[0]
            assert setting.removeprefix("no-") in known[role], (name, arg)


def test_every_container_says_what_it_needs(objects: list[Object]) -> None:
    for name, _, container in containers(objects):
        resources = container["resources"]
        assert {"cpu", "memory"} <= resources["requests"].keys(), name
        assert "memory" in resources["limits"], name
        gpus = {key for key in resources["limits"] if "/" in key}
        for gpu in gpus:
            assert resources["requests"][gpu] == resources["limits"][gpu] > 0
        asks_for_cuda = "--device=cuda" in container.get("args", [])
        assert asks_for_cuda == bool(gpus), name
        assert asks_for_cuda == ("gpu" in container["image"]), name


def test_the_longest_stream_ends_before_the_kubelet_kills(
    objects: list[Object], path: Path
) -> None:
    longest_s = values_of(path).get("longestStreamS", 600)
    for name, spec, container in containers(objects):
        if "redis" in name:
            continue
        settings = dict(arg.removeprefix("--").partition("=")[::2] for arg in container["args"])
        grace_s = float(settings["drain-timeout-s"])
        assert grace_s == float(settings["max-request-s"]) == longest_s
        pre_stop_s = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {})
        assert spec["terminationGracePeriodSeconds"] >= pre_stop_s.get("seconds", 0) + grace_s + 5
    router = pod_of(_workload(objects, "router"))["spec"]["containers"][0]
    assert router["lifecycle"]["preStop"]["sleep"]["seconds"] >= 1


def test_budgets_services_and_scalers_mean_pods_that_exist(objects: list[Object]) -> None:
    workloads = of_kind(objects, "Deployment")
    for item in of_kind(objects, "PodDisruptionBudget", "Service", "NetworkPolicy"):
        spec = item["spec"]
        selector = spec.get("selector") or spec["podSelector"]
        selected = [w for w in workloads if selects(selector.get("matchLabels", selector), w)]
        assert len(selected) == 1, item["metadata"]["name"]
        for port in spec.get("ports", []):
            names = [
                own["name"]
                for container in pod_of(selected[0])["spec"]["containers"]
                for own in container["ports"]
            ]
            assert port["targetPort"] in names
    for role in OCTAVO_ROLES:
        budgets = [
            item
            for item in of_kind(objects, "PodDisruptionBudget")
            if selects(item["spec"]["selector"]["matchLabels"], _workload(objects, role))
        ]
        assert [budget["spec"]["maxUnavailable"] for budget in budgets] == [1], role
    for workload in workloads:
        assert selects(workload["spec"]["selector"]["matchLabels"], workload)
        others = [w for w in workloads if selects(workload["spec"]["selector"]["matchLabels"], w)]
        assert others == [workload], "no two workloads share pods"


def test_replicas_spread_over_nodes(objects: list[Object]) -> None:
    for role in OCTAVO_ROLES:
        workload = _workload(objects, role)
        spread = pod_of(workload)["spec"]["topologySpreadConstraints"]
        assert "kubernetes.io/hostname" in {rule["topologyKey"] for rule in spread}
        for rule in spread:
            assert selects(rule["labelSelector"]["matchLabels"], workload)


def test_a_scaled_workload_names_no_replicas(objects: list[Object], path: Path) -> None:
    kind = values_of(path).get("autoscaling", {}).get("kind", "none")
    scaled = {
        item["spec"]["scaleTargetRef"]["name"]: item
        for item in of_kind(objects, "HorizontalPodAutoscaler", "ScaledObject")
    }
    for role in OCTAVO_ROLES:
        workload = _workload(objects, role)
        is_scaled = workload["metadata"]["name"] in scaled
        assert is_scaled == (kind != "none")
        assert ("replicas" in workload["spec"]) != is_scaled
    if kind == "hpa":
        (decode,) = scaled["octavo-decode"]["spec"]["metrics"]
        assert decode["pods"]["metric"]["name"] == "octavo_kv_cache_usage_ratio"
        assert decode["pods"]["target"]["averageValue"] == "800m"
    if kind == "keda":
        (prefill,) = scaled["octavo-prefill"]["spec"]["triggers"]
        assert "sum(octavo_prefill_queued_tokens{" in prefill["metadata"]["query"]
        assert prefill["metadata"]["threshold"] == "4096"


def test_metrics_are_found_and_let_through(objects: list[Object], path: Path) -> None:
    """By annotations, policies and PodMonitors: one port, in the scheme that it speaks."""
    values = values_of(path)
    monitors = of_kind(objects, "PodMonitor")
    for role in OCTAVO_ROLES:
        workload = _workload(objects, role)
        template = pod_of(workload)
        (container,) = template["spec"]["containers"]
        settings = {arg.partition("=")[0]: arg.partition("=")[2] for arg in container["args"]}
        annotations = template["metadata"].get("annotations", {})
        if not values.get("metrics", {}).get("enabled", True):
            assert "--metrics-address" not in settings and "prometheus.io/scrape" not in annotations
            continue
        (port,) = [p["containerPort"] for p in container["ports"] if p["name"] == "metrics"]
        assert settings["--metrics-address"].endswith(f":{port}")
        assert annotations["prometheus.io/scrape"] == "true"
        assert annotations["prometheus.io/port"] == str(port)
        locks = {"--internal-tls-dir"} | ({"--tls-cert-file"} if role == "router" else set())
        scheme = "https" if locks & settings.keys() else "http"
        assert annotations["prometheus.io/scheme"] == scheme
        for monitor in monitors:
            if selects(monitor["spec"]["selector"]["matchLabels"], workload):
                (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
                assert (endpoint["port"], endpoint["scheme"]) == ("metrics", scheme)
                assert ("tlsConfig" in endpoint) == (scheme == "https")
    assert len(monitors) in (0, 3)


def test_no_secret_is_written_into_an_object(objects: list[Object]) -> None:
    assert not of_kind(objects, "Secret")
    assert all(item["data"].keys() == {"octavo.json"} for item in of_kind(objects, "ConfigMap"))
    for _, _, container in containers(objects):
        for variable in container.get("env", []):
            if "PASSWORD" in variable["name"] or variable["name"] == "REDISCLI_AUTH":
                assert "secretKeyRef" in variable["valueFrom"]


def test_every_redis_url_can_be_read(objects: list[Object]) -> None:
    for name, _, container in containers(objects):
        env: dict[str, Any] = {item["name"]: item for item in container.get("env", [])}
        url = env.get("OCTAVO_REDIS_URL", {}).get("value")
        if url is not None:
            if "$(" in url:
                assert list(env).index("REDIS_PASSWORD") < list(env).index("OCTAVO_REDIS_URL")
            read = parse_redis_url(url.replace("$(REDIS_PASSWORD)", "p-a.s_s~1"))
            assert read.password == ("p-a.s_s~1" if "$(" in url else None), name


def test_routers_find_workers_where_workers_listen(objects: list[Object]) -> None:
    router = pod_of(_workload(objects, "router"))["spec"]["containers"][0]
    for role in ("prefill", "decode"):
        (address,) = [arg for arg in router["args"] if arg.startswith(f"--{role}-address=")]
        host, _, port = address.removeprefix(f"--{role}-address=dns:///").rpartition(":")
        service = named(objects, "Service", host)
        assert service["spec"]["clusterIP"] == "None"
        assert service["spec"]["ports"][0]["port"] == int(port)
        worker = pod_of(_workload(objects, role))["spec"]["containers"][0]
        assert [arg for arg in worker["args"] if arg.endswith(f":{port}")] != []


def _workload(objects: list[Object], role: str) -> Object:
    (found,) = [
        item
        for item in of_kind(objects, "Deployment")
        if item["metadata"]["labels"]["app.kubernetes.io/component"] == role
    ]
    return found
