"""Runs rendered objects: Deployments become pods, Services addresses and names of ready pods.

    Deployment --> replicas, rolled one by one (maxSurge 1) --> Pod, Pod, ...
    Service ----> 10.96.0.N, connections spread over ready pods; headless: names in the hosts file

Only what the chart uses is known here, and anything else is an error.
"""

import asyncio
import itertools
import random
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from charts.cluster import sandbox
from charts.cluster.pod import Pod
from charts.cluster.volumes import Storage
from charts.objects import Object, of_kind, pod_of

START_S = 180.0


class Cluster:
    """A node on which everything runs; `async with` ends all of it."""

    def __init__(
        self,
        objects: list[Object],
        claims: dict[str, Path],
        secrets: dict[str, dict[str, bytes]],
    ) -> None:
        self.pods: list[Pod] = []
        self.gone: list[Pod] = []
        self._deployments = {
            item["metadata"]["name"]: item for item in of_kind(objects, "Deployment")
        }
        self._services = of_kind(objects, "Service")
        self._addresses: dict[str, str] = {}
        self._hosts = sandbox.WORK / "hosts"
        self._storage = Storage(claims, secrets, self._hosts)
        self._index = itertools.count()
        self._changed = asyncio.Event()
        self._servers: list[asyncio.Server] = []
        self._pipes: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Cluster":
        for number, service in enumerate(self._services, 10):
            if service["spec"].get("clusterIP") != "None":
                await self._listen(service, f"10.96.0.{number}")
        self._write_hosts()
        await asyncio.to_thread(sandbox.use_hosts, self._hosts)
        self._endpoints = asyncio.create_task(self._follow_endpoints())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await asyncio.gather(*(self._delete(pod) for pod in list(self.pods)))
        self._endpoints.cancel()
        for server in self._servers:
            server.close()
        for task in self._pipes:
            task.cancel()

    def address(self, service: str, port: int) -> str:
        return f"{self._addresses[service]}:{port}"

    def of(self, deployment: str) -> list[Pod]:
        """Its pods that are not ending."""
        selector = self._deployments[deployment]["spec"]["selector"]["matchLabels"]
        return [
            pod
            for pod in self.pods
            if not pod.is_terminating and selector.items() <= pod.labels.items()
        ]

    async def apply(self) -> None:
        """Start every workload as often as it says, and wait until all are ready."""
        names = list(self._deployments)
        await asyncio.gather(
            *(self.scale(name, self._deployments[name]["spec"]["replicas"]) for name in names)
        )

    async def scale(self, deployment: str, replicas: int) -> None:
        pods = self.of(deployment)
        if replicas > len(pods):
            started = [await self._start(deployment) for _ in range(replicas - len(pods))]
            await asyncio.gather(*(self._wait_ready(pod) for pod in started))
        else:
            await asyncio.gather(*(self._delete(pod) for pod in pods[replicas:]))

    async def roll(self, deployment: str) -> None:
        """Replace its pods as `kubectl rollout restart` does."""
        spec = self._deployments[deployment]["spec"]
        olds = self.of(deployment)
        if spec["strategy"]["type"] == "Recreate":
            await self.scale(deployment, 0)
            await self.scale(deployment, len(olds))
            return
        assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
        for old in olds:
            new = await self._start(deployment)
            await self._wait_ready(new)
            await asyncio.sleep(spec.get("minReadySeconds", 0))
            new.check()
            await self._delete(old)

    def renew(self, secret: str, files: dict[str, bytes]) -> None:
        """Change a Secret, and the files of every pod that has it mounted."""
        self._storage.secrets[secret] = files
        for pod in self.pods:
            pod.renew(secret)

    def check(self) -> None:
        for pod in self.pods:
            pod.check()

    def show_stacks(self) -> None:
        """Every ready process of ours writes to its log where it waits."""
        for pod in self.pods:
            if pod.is_ready and pod.labels["app.kubernetes.io/component"] != "redis":
                pod.send_signal(signal.SIGUSR1)

    def logs(self) -> str:
        return "\n".join(pod.log_tail() for pod in self.pods)

    async def _start(self, deployment: str) -> Pod:
        index = next(self._index)
        template = pod_of(self._deployments[deployment])
        pod = Pod(f"{deployment}-{index}", index, template, self._storage, self._changed)
        await pod.start()
        self.pods.append(pod)
        return pod

    async def _wait_ready(self, pod: Pod) -> None:
        await self._until(lambda: pod.is_ready, pod.check)

    async def _delete(self, pod: Pod) -> None:
        await pod.delete()
        self.pods.remove(pod)
        self.gone.append(pod)

    async def _until(self, is_met: Callable[[], bool], check: Callable[[], None]) -> None:
        async with asyncio.timeout(START_S):
            while not is_met():
                check()
                await asyncio.sleep(0.1)

    async def _follow_endpoints(self) -> None:
        """What the endpoint controller and every node's proxy and DNS do, without their delays."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            self._write_hosts()

    def _endpoints_of(self, service: Object) -> list[Pod]:
        selector = service["spec"]["selector"]
        return [
            pod
            for pod in self.pods
            if pod.is_ready and not pod.is_terminating and selector.items() <= pod.labels.items()
        ]

    def _write_hosts(self) -> None:
        """In place: pods have this very file mounted."""
        lines = ["127.0.0.1 localhost"]
        for service in self._services:
            name, namespace = (service["metadata"][key] for key in ("name", "namespace"))
            ips = [self._addresses[name]] if name in self._addresses else []
            ips = ips or [pod.ip for pod in self._endpoints_of(service)]
            lines += [f"{ip} {name} {name}.{namespace} {name}.{namespace}.svc" for ip in ips]
        self._hosts.write_text("\n".join(lines) + "\n")

    async def _listen(self, service: Object, ip: str) -> None:
        await asyncio.to_thread(sandbox.add_service_address, ip)
        self._addresses[service["metadata"]["name"]] = ip
        for port in service["spec"]["ports"]:

            async def connect(
                reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: Any = port
            ) -> None:
                await self._connect(service, port, reader, writer)

            self._servers.append(await asyncio.start_server(connect, ip, port["port"]))

    async def _connect(
        self,
        service: Object,
        port: Any,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """One connection to one ready pod, for as long as either side keeps it."""
        ready = self._endpoints_of(service)
        if not ready:
            writer.transport.abort()  # as a node without endpoints refuses
            return
        pod = random.choice(ready)
        try:
            pod_reader, pod_writer = await asyncio.open_connection(
                pod.ip, pod.port(port["targetPort"])
            )
        except OSError:
            writer.transport.abort()
            return
        ways = [_pipe(reader, pod_writer), _pipe(pod_reader, writer)]
        tasks = [asyncio.create_task(way) for way in ways]
        self._pipes.update(tasks)
        await asyncio.wait(tasks)
        self._pipes.difference_update(tasks)


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()
