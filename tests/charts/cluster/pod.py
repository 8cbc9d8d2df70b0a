"""One pod of a rendered workload as a local process: its network, files, environment and probes.

start --> startup probe --> readiness, liveness --> delete: preStop, SIGTERM, grace, exit status
"""

import asyncio
import json
import os
import re
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from charts.cluster import sandbox
from charts.cluster.image import Image, image_of
from charts.cluster.volumes import Storage
from charts.objects import Object


class PodFailed(Exception):
    """A process ended, or a probe failed, when it should not have."""


@dataclass
class Pod:
    """A pod; `changed` is told when its readiness may have changed."""

    name: str
    index: int
    template: Object
    storage: Storage
    changed: asyncio.Event
    ip: str = ""
    is_ready: bool = False
    is_terminating: bool = False
    exit_code: int | None = None
    drained_s: float = 0.0
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    @property
    def spec(self) -> Any:
        return self.template["spec"]

    @property
    def container(self) -> Any:
        (container,) = self.spec["containers"]
        return container

    @property
    def image(self) -> Image:
        return image_of(self.container["image"])

    @property
    def labels(self) -> dict[str, str]:
        return dict(self.template["metadata"]["labels"])

    @property
    def folder(self) -> Path:
        return sandbox.WORK / "pods" / self.name

    def port(self, name: str | int) -> int:
        if isinstance(name, int):
            return name
        return next(p["containerPort"] for p in self.container["ports"] if p["name"] == name)

    async def start(self) -> None:
        self.folder.mkdir(parents=True)
        self.ip = await asyncio.to_thread(sandbox.add_pod_network, self.name, self.index)
        env = self._env()
        order = {
            "image": str(self.image.root),
            "folder": str(self.folder),
            "reachable": self.image.reachable,
            "mounts": self._mounts(),
            "read_only_root": self.container["securityContext"]["readOnlyRootFilesystem"],
            "env": env,
            "command": self._as_user(self._command(env)),
        }
        command = ["ip", "netns", "exec", self.name, "unshare", "--mount", sys.executable]
        command += [str(Path(__file__).with_name("pod_init.py")), json.dumps(order)]
        with (self.folder / "log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
        self._tasks = [asyncio.create_task(self._watch()), asyncio.create_task(self._probe())]

    async def delete(self) -> None:
        """As the kubelet: preStop, SIGTERM, SIGKILL after the grace."""
        self.is_terminating = True
        self.changed.set()
        began = time.monotonic()
        grace_s = self.spec["terminationGracePeriodSeconds"]
        pre_stop = self.container.get("lifecycle", {}).get("preStop")
        if pre_stop is not None:
            await asyncio.sleep(pre_stop["sleep"]["seconds"])
        self.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s - (time.monotonic() - began)):
                self.exit_code = await self._process.wait()
        except TimeoutError:
            self._process.kill()
            self.exit_code = await self._process.wait()
        self.drained_s = time.monotonic() - began
        for task in self._tasks:
            task.cancel()
        await asyncio.to_thread(sandbox.remove_pod_network, self.name)

    def send_signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    def renew(self, secret: str) -> None:
        """Its volumes get what the Secret holds now."""
        group = self.spec["securityContext"]["fsGroup"]
        for volume in self.spec["volumes"]:
            if volume.get("secret", {}).get("secretName") == secret:
                self.storage.lay_secret(volume["secret"], self._volume(volume), group)

    def log_tail(self, num_lines: int = 400) -> str:
        lines = (self.folder / "log").read_text(errors="replace").splitlines()
        return f"--- {self.name} ({self.ip})\n" + "\n".join(lines[-num_lines:])

    def check(self) -> None:
        """Raise what went wrong in the background."""
        for task in self._tasks:
            if task.done() and not task.cancelled() and (error := task.exception()):
                raise error

    async def _watch(self) -> None:
        code = await self._process.wait()
        if not self.is_terminating:
            self.is_ready = False
            self.changed.set()
            raise PodFailed(f"{self.name} ended with {code}\n{self.log_tail()}")

    async def _probe(self) -> None:
        """Startup first; then readiness and liveness, as their periods and thresholds say."""
        await self._until_started(self.container["startupProbe"])
        readiness, liveness = (self.container[f"{kind}Probe"] for kind in ("readiness", "liveness"))
        alive = asyncio.create_task(self._stay_alive(liveness))
        failures = 0
        try:
            while not alive.done():
                is_good = await self._passes(readiness)
                failures = 0 if is_good else failures + 1
                is_ready = is_good or (
                    self.is_ready and failures < readiness.get("failureThreshold", 3)
                )
                if is_ready != self.is_ready:
                    self.is_ready = is_ready
                    self.changed.set()
                await asyncio.sleep(readiness["periodSeconds"])
            alive.result()
        finally:
            alive.cancel()

    async def _until_started(self, probe: Any) -> None:
        for _ in range(probe["failureThreshold"]):
            if await self._passes(probe):
                return
            await asyncio.sleep(probe["periodSeconds"])
        raise PodFailed(f"{self.name} did not start\n{self.log_tail()}")

    async def _stay_alive(self, probe: Any) -> None:
        failures = 0
        while failures < probe.get("failureThreshold", 3):
            await asyncio.sleep(probe["periodSeconds"])
            is_good = self.is_terminating or await self._passes(probe)
            failures = 0 if is_good else failures + 1
        raise PodFailed(f"{self.name} would be restarted: not alive\n{self.log_tail()}")

    async def _passes(self, probe: Any) -> bool:
        timeout_s = probe.get("timeoutSeconds", 1)
        try:
            async with asyncio.timeout(timeout_s):
                if "grpc" in probe:
                    return await self._serves(probe["grpc"])
                if "tcpSocket" in probe:
                    return await self._listens(self.port(probe["tcpSocket"]["port"]))
                return await self._run(probe["exec"]["command"]) == 0
        except (TimeoutError, OSError, grpc.aio.AioRpcError):
            return False

    async def _serves(self, probe: Any) -> bool:
        request = health_pb2.HealthCheckRequest(service=probe.get("service", ""))
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(f"{self.ip}:{probe['port']}", options) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            reply = await stub.Check(request)
        return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)

    async def _listens(self, port: int) -> bool:
        _, writer = await asyncio.open_connection(self.ip, port)
        writer.close()
        return True

    async def _run(self, command: list[str]) -> int:
        """In the container: its files, network, user and environment; complaints go to its log."""
        if os.readlink(f"/proc/{self._process.pid}/root") == "/":
            return 1  # no container yet
        enter = ["nsenter", f"--target={self._process.pid}", "--mount", "--net", "--root"]
        with (self.folder / "log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(*enter, *self._as_user(command)),
                env=self._env(),
                stdout=asyncio.subprocess.DEVNULL,
                stderr=log,
            )
        try:
            return await process.wait()
        finally:
            if process.returncode is None:
                process.kill()

    def _as_user(self, command: list[str]) -> list[str]:
        """The manifest's user and groups, and no capabilities."""
        security = self.spec["securityContext"]
        drop = [f"--reuid={security['runAsUser']}", f"--regid={security['runAsGroup']}"]
        drop += [f"--groups={security['fsGroup']}", "--no-new-privs"]
        return ["/usr/bin/setpriv", *drop, "--bounding-set=-all", "--inh-caps=-all", *command]

    def _command(self, env: dict[str, str]) -> list[str]:
        command = self.container.get("command") or self.image.entrypoint
        return [*command, *(_expand(arg, env) for arg in self.container.get("args", []))]

    def _env(self) -> dict[str, str]:
        env = dict(self.image.env)
        fields = {"metadata.name": self.name, "status.podIP": self.ip}
        for variable in self.container.get("env", []):
            source = variable.get("valueFrom", {})
            if "fieldRef" in source:
                value = fields[source["fieldRef"]["fieldPath"]]
            elif "secretKeyRef" in source:
                ref = source["secretKeyRef"]
                value = self.storage.secrets[ref["name"]][ref["key"]].decode()
            else:
                value = _expand(variable["value"], env)
            env[variable["name"]] = value
        return env

    def _volume(self, volume: Any) -> Path:
        return self.folder / "volumes" / str(volume["name"])

    def _mounts(self) -> list[dict[str, Any]]:
        group = self.spec["securityContext"]["fsGroup"]
        sources = {
            volume["name"]: self.storage.lay(volume, self._volume(volume), group)
            for volume in self.spec["volumes"]
        }
        mounts = [
            {
                "source": str(sources[mount["name"]]),
                "target": mount["mountPath"],
                "read_only": mount.get("readOnly", False),
            }
            for mount in self.container["volumeMounts"]
        ]
        names = {"/etc/hosts": self.storage.hosts, "/etc/resolv.conf": sandbox.RESOLVER}
        return mounts + [
            {"source": str(source), "target": target, "read_only": True}
            for target, source in names.items()
        ]


def _expand(text: str, env: dict[str, str]) -> str:
    """$(NAME), as Kubernetes replaces it; unknown names stay."""
    return re.sub(r"\$\((\w+)\)", lambda match: env.get(match[1], match[0]), text)
