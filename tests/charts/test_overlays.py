"""The manifests without Helm, and the laptop's overlay of them, as kubectl would send them."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from charts.objects import containers, named, of_kind, pod_of
from charts.validity import VERSIONS, check_valid
from deploy.render import FOLDER

KUBECTL = Path(sys.executable).with_name("kubectl")


def kustomized(name: str) -> list[dict[str, object]]:
    program = KUBECTL if KUBECTL.exists() else shutil.which("kubectl")
    assert program, "install the `deploy` extra"
    command = [str(program), "kustomize", str(FOLDER / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return list(yaml.safe_load_all(done.stdout))


@pytest.mark.parametrize("name", ["manifests", "kind"])
def test_every_overlay_is_what_kubernetes_takes(name: str) -> None:
    objects = kustomized(name)
    for version in VERSIONS:
        check_valid(objects, version)
    (namespace,) = of_kind(objects, "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    for item in objects:
        if item["kind"] not in ("Namespace", "PersistentVolume"):
            assert item["metadata"]["namespace"] == "octavo"


def test_the_laptop_runs_one_small_pod_of_each() -> None:
    objects = kustomized("kind")
    for workload in of_kind(objects, "Deployment"):
        assert workload["spec"]["replicas"] == 1
    for name, _, container in containers(objects):
        if name in ("octavo-prefill", "octavo-decode"):
            assert "--kv-cache-bytes=268435456" in container["args"]
            assert container["resources"]["limits"] == {"memory": "3Gi"}
    claim = named(objects, "PersistentVolumeClaim", "octavo-models")
    volume = named(objects, "PersistentVolume", claim["spec"]["volumeName"])
    assert volume["spec"]["claimRef"] == {"namespace": "octavo", "name": "octavo-models"}
    pod = pod_of(named(objects, "Deployment", "octavo-decode"))["spec"]
    assert {"claimName": "octavo-models", "readOnly": True} in [
        volume.get("persistentVolumeClaim") for volume in pod["volumes"]
    ]


def test_the_script_says_what_it_needs() -> None:
    script = FOLDER / "kind" / "up.sh"
    done = subprocess.run(["bash", str(script)], capture_output=True, text=True)
    assert done.returncode == 2 and "FOLDER/model is a checkpoint" in done.stderr
