"""What users set renders objects that Kubernetes takes; what is wrong is refused by name."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml

from charts.objects import VALUES_FILES, objects_of, objects_of_file, values_of, with_value
from charts.validity import VERSIONS, check_valid
from deploy.render import CHART, HEADER, MANIFESTS, notes, render

pytestmark = pytest.mark.slow  # run by `make charts`

GPU = {"count": 2, "resourceName": "amd.com/gpu"}
RESOURCES = {"requests": {"cpu": "250m", "memory": "1Gi"}, "limits": {"cpu": 2, "memory": "2Gi"}}
EXTERNAL = {"mode": "external", "external": {"url": "redis+cluster://a:7000,b:7001"}}
# A path and a value that differs from the default, and what must then be somewhere in the text.
CHANGES: list[tuple[str, Any, str]] = [
    ("nameOverride", "llm", "name: octavo-llm-router"),
    ("image.registry", "r.example.com:5000/x", "image: r.example.com:5000/x/octavo-router:0.1.0"),
    ("image.tag", "v9", "octavo-worker-cpu:v9"),
    ("image.pullPolicy", "Always", "imagePullPolicy: Always"),
    ("image.pullSecrets", ["a", "b"], "- name: b"),
    ("image.repositories.router", "my/router", "image: my/router:"),
    ("model.path", "/models/other.gguf", "--model=/models/other.gguf"),
    ("model.servedName", "m", "--served-model-name=m"),
    ("model.dtype", "float32", "--dtype=float32"),
    ("model.kvDtype", "fp8", "--kv-dtype=fp8"),
    ("model.quantization", "int8", "--quantization=int8"),
    ("model.blockSize", 32, "--block-size=32"),
    ("model.maxModelLen", 4096, "--max-model-len=4096"),
    ("model.volume.persistentVolumeClaim.claimName", "weights", "claimName: weights"),
    ("longestStreamS", 60, "terminationGracePeriodSeconds: 80"),
    ("drain.routerPreStopS", 9, "seconds: 9"),
    ("drain.marginS", 30, "terminationGracePeriodSeconds: 635"),
    ("transport", "auto", "--transport=auto"),
    ("ipv6", True, "--advertise-address=[$(POD_IP)]:50062"),
    ("probes.periodS", 2, "periodSeconds: 4"),
    ("probes.startupS", 60, "failureThreshold: 12"),
    ("cacheSecret.secretName", "s", "--cache-secret-file=/etc/octavo/cache/secret"),
    ("tls.secretName", "t", "--tls-cert-file=/etc/octavo/tls/tls.crt"),
    ("tls", {"secretName": "t", "clientCa": True}, "--tls-client-ca-file=/etc/octavo/tls/ca.crt"),
    ("tls.internalSecretName", "t", "--internal-tls-dir=/etc/octavo/internal-tls"),
    ("apiKeys.secretName", "k", "--api-key-file=/etc/octavo/api/keys"),
    ("redis", EXTERNAL, '"redis+cluster://a:7000,b:7001"'),
    ("redis.passwordSecret.name", "p", "redis://:$(REDIS_PASSWORD)@octavo-redis:6379"),
    ("redis.internal.maxMemory", "1gb", "- 1gb"),
    ("redis.internal.resources", RESOURCES, "cpu: 250m"),
    ("metrics.port", 9100, "--metrics-address=0.0.0.0:9100"),
    ("metrics.podMonitor.enabled", True, "kind: PodMonitor"),
    ("metrics.rules.enabled", True, "alert: OctavoRouterNotReady"),
    ("metrics.dashboard.enabled", True, "octavo.json: |"),
    ("autoscaling.kind", "hpa", "kind: HorizontalPodAutoscaler"),
    ("autoscaling.kind", "keda", "kind: ScaledObject"),
    ("networkPolicy.clients", [{"ipBlock": {"cidr": "10.0.0.0/8"}}], "cidr: 10.0.0.0/8"),
    ("router.replicas", 5, "replicas: 5"),
    ("router.port", 6000, "--listen-address=0.0.0.0:6000"),
    ("router.http.enabled", True, "--http-address=0.0.0.0:8000"),
    ("router.service.type", "NodePort", "type: NodePort"),
    ("router.maxQueuedTokens", 1000000, "--max-queued-tokens=1000000"),
    ("router.resources", RESOURCES, "cpu: 250m"),
    ("router.priorityClassName", "high", "priorityClassName: high"),
    ("router.extraArgs", ["--slow-reader-s=5"], "--slow-reader-s=5"),
    ("prefill.replicas", 0, "replicas: 0"),
    ("prefill.port", 6001, "--prefill-address=dns:///octavo-prefill:6001"),
    ("prefill.gpu", GPU, "amd.com/gpu: 2"),
    ("prefill.cpuCores", "0-3,8", "--cpu-cores=0-3,8"),
    ("prefill.kvCacheBytes", 8589934592, "--kv-cache-bytes=8589934592"),
    ("prefill.minReadyS", 3, "minReadySeconds: 3"),
    ("prefill.maxUnavailable", "25%", "maxUnavailable: 25%"),
    ("prefill.cacheClaim", "kernels", "claimName: kernels"),
    ("decode.replicas", 7, "replicas: 7"),
    ("decode.gpu.count", 1, "octavo-worker-gpu:0.1.0"),
    ("decode.maxNumSeqs", 32, "--max-num-seqs=32"),
    ("decode.resources", RESOURCES, "cpu: 250m"),
    ("decode.podLabels", {"team": "x"}, "team: x"),
    ("decode.podAnnotations", {"a/b": "c"}, "a/b: c"),
    ("decode.nodeSelector", {"gpu": "h100"}, "gpu: h100"),
    ("decode.tolerations", [{"key": "t", "operator": "Exists"}], "key: t"),
    ("decode.affinity", {"podAntiAffinity": {}}, "podAntiAffinity"),
    ("decode.runtimeClassName", "nvidia", "runtimeClassName: nvidia"),
    ("decode.extraEnv", [{"name": "A", "value": "b"}], "name: A"),
]
REFUSED: list[tuple[str, Any]] = [
    ("router.replica", 3),
    ("replicas", 3),
    ("router.replicas", "3"),
    ("router.replicas", -1),
    ("router.port", 70000),
    ("router.service.type", "ExternalName"),
    ("router.extraArgs", ["stream-interval-s=0"]),
    ("router.http.port", 0),
    ("model.path", ""),
    ("model.dtype", "bf16"),
    ("model.quantization", "int2"),
    ("model.blockSize", 12),
    ("model.volume.persistentVolumeClaim", None),
    ("model.volume.hostPath", {"path": "/m"}),
    ("longestStreamS", 0),
    ("transport", "shared_memory"),
    ("tls", {"clientCa": True}),
    ("tls.secretName", True),
    ("tls.enabled", True),
    ("redis.mode", "sentinel"),
    ("redis.mode", "external"),
    ("redis.external.url", "redis://user:password@host:6379"),
    ("redis.external.url", "http://host"),
    ("autoscaling.kind", "vpa"),
    ("autoscaling.decode.targetKvUsagePercent", 101),
    ("autoscaling.prefill.minReplicas", 0),
    ("metrics.names.kvCacheUsage", "a metric"),
    ("metrics.podMonitor.intervalS", 0),
    ("metrics.rules.labels", {"release": 1}),
    ("metrics", {"enabled": False, "podMonitor": {"enabled": True}}),
    ("metrics", {"enabled": False, "rules": {"enabled": True}}),
    ("prefill.gpu.count", 1.5),
    ("prefill.cpuCores", "0-"),
    ("prefill.resources.limits.memory", "4 GB"),
    ("prefill.maxSurge", 0),
    ("decode.affinity.nodeaffinity", {}),
    ("decode.tolerations", [{"operator": "Always"}]),
    ("decode.cpuCores", "all"),
    ("image.tag", "a b"),
    ("networkPolicy.clients", []),
    ("probes.startupS", 1),
]


@pytest.fixture(scope="module")
def default() -> str:
    return render()


@pytest.mark.parametrize("path", VALUES_FILES, ids=lambda path: path.stem)
@pytest.mark.parametrize("version", VERSIONS)
def test_every_values_file_renders_what_kubernetes_takes(path: Path, version: str) -> None:
    check_valid(objects_of_file(path), version)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_field_that_kubernetes_does_not_know_is_found(version: str) -> None:
    for kind, part in (("Deployment", "strategy"), ("Service", "ports")):
        objects = objects_of()
        broken = next(item for item in objects if item["kind"] == kind)
        broken["spec"][f"{part}s"] = broken["spec"].pop(part)
        with pytest.raises(Exception, match=f"{part}s"):
            check_valid(objects, version)
    scaled = objects_of(with_value("autoscaling.kind", "keda"))
    next(item for item in scaled if item["kind"] == "ScaledObject")["spec"]["maxReplicas"] = 3
    with pytest.raises(Exception, match="maxReplicas"):
        check_valid(scaled, version)


def test_there_are_ten_values_files_at_least() -> None:
    assert len(VALUES_FILES) >= 10


@pytest.mark.parametrize(("path", "value", "text"), CHANGES, ids=lambda value: str(value)[:40])
def test_a_changed_value_shows_and_stays_valid(
    path: str, value: Any, text: str, default: str
) -> None:
    rendered = render(with_value(path, value))
    assert text in rendered and text not in default
    check_valid(list(yaml.load_all(rendered, yaml.CSafeLoader)), VERSIONS[-1])


@pytest.mark.parametrize(("path", "value"), REFUSED, ids=lambda value: str(value)[:40])
def test_a_wrong_value_is_refused_by_name(path: str, value: Any) -> None:
    with pytest.raises(helm_python.HelmError) as refused:
        render(with_value(path, value))
    message = str(refused.value)
    names = path.split(".")
    assert names[-1] in message or "/".join(names[:-1]) in message, message


def test_every_default_value_is_described_by_the_schema_and_the_other_way_round() -> None:
    with helm_python.Chart.load(str(CHART)) as chart:
        schema, values = chart.schema, chart.values
    assert schema is not None
    _check_same_names(schema, schema, values, "")


def _check_same_names(schema: Any, part: Any, values: Any, path: str) -> None:
    if "$ref" in part:
        part = schema["$defs"][part["$ref"].rpartition("/")[2]]
    if part.get("properties") and isinstance(values, dict) and (values or path == ""):
        assert part["additionalProperties"] is False, path
        assert set(values) == set(part["properties"]) - {"global"}, path
        for name, value in values.items():
            if name not in ("resources", "affinity"):
                _check_same_names(schema, part["properties"][name], value, f"{path}.{name}")


def test_the_plain_manifests_are_the_chart_s() -> None:
    assert MANIFESTS.read_text() == HEADER + render(), "run `make manifests`"


def test_the_notes_name_the_next_command() -> None:
    assert "kubectl --namespace octavo rollout status deployment/octavo-router" in notes()
    assert "ports are plain" in notes() and "without encryption" in notes()
    assert "--ca-file" not in notes() and "--api-key" not in notes()
    tls = {"secretName": "t", "internalSecretName": "i", "clientCa": True}
    locked = notes({"tls": tls, "apiKeys": {"secretName": "k"}})
    assert "ports are plain" not in locked and "without encryption" not in locked
    flags = "--api-key KEY --ca-file ca.crt --cert-file client.crt --key-file client.key"
    assert flags in locked and "certificate in t must name" in locked


def test_the_script_renders_a_file_and_says_what_is_wrong(tmp_path: Path) -> None:
    script = [sys.executable, str(CHART.parent / "render.py"), "-f"]
    good = subprocess.run([*script, str(VALUES_FILES[1])], capture_output=True, text=True)
    assert good.returncode == 0
    assert len(list(yaml.safe_load_all(good.stdout))) == len(objects_of(values_of(VALUES_FILES[1])))
    (tmp_path / "bad.yaml").write_text("router: {replica: 1}")
    bad = subprocess.run([*script, str(tmp_path / "bad.yaml")], capture_output=True, text=True)
    assert bad.returncode == 1 and "replica" in bad.stderr and "Traceback" not in bad.stderr
