"""A cluster in small: pods of manifests as processes, each in a network namespace of its own.

What a kubelet does is done here: volumes are mounted where containers want them, read-only where
they say so; files of Secrets and ConfigMaps are links into a folder that is exchanged as a whole;
a volume is opened to the pod's group; init containers run first. A pod that comes back has another
address, and names lead there.
"""

import base64
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import yaml

from tests.kits.firewall import enforce, rules
from tests.kits.namespaces import Switch
from tests.kits.nursery import ROOT

PATIENCE = 120.0


class Network:
    """What all clusters share: a switch, and names that lead to servers from everywhere; `with`
    ends all pods."""

    def __init__(self, switch: Switch) -> None:
        self.switch = switch
        self.clusters: list[Cluster] = []
        self._last = 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for cluster in self.clusters:
            for pod in cluster.pods.values():
                pod.kill()

    def address(self) -> str:
        self._last += 1
        return f"10.78.{self._last // 250}.{self._last % 250 + 1}"

    def tell(self) -> None:
        """Writes down for every pod where the others are now, and has it keep to its policies."""
        outside = [line for cluster in self.clusters for line in cluster.names(outside=True)]
        for cluster in self.clusters:
            lines = ["127.0.0.1 localhost", *outside, *cluster.names(outside=False)]
            for pod in cluster.pods.values():
                if pod.space:
                    pod.hosts.write_text("\n".join(lines) + "\n")  # in place: it is mounted
                    enforce(pod.space, rules(cluster.policies(pod), cluster.addresses))


class Running:
    """One pod: its folder outlives it, its network namespace and address do not."""

    def __init__(self, cluster: "Cluster", name: str, template: Mapping[str, Any]) -> None:
        self.cluster, self.name = cluster, name
        self.labels: Mapping[str, str] = template["metadata"]["labels"]
        self.spec: Mapping[str, Any] = template["spec"]
        self.folder = cluster.folder / name
        self.address = self.space = ""
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def container(self) -> Mapping[str, Any]:
        (only,) = self.spec["containers"]
        found: Mapping[str, Any] = only
        return found

    @property
    def hosts(self) -> Path:
        return Path("/etc/netns") / self.space / "hosts"

    @property
    def log(self) -> Path:
        return self.cluster.folder / f"{self.name}.log"

    def join(self) -> None:
        """Takes an address in a network namespace of its own, and the files that it is given."""
        network = self.cluster.network
        self.address = network.address()
        self.space = network.switch.add(self.name, self.address)
        network.tell()
        self.mount_files()

    def start(self) -> None:
        """In a new network namespace, with the volumes that it had."""
        self.prepare()
        self.begin()

    def prepare(self) -> None:
        self.join()
        _open_to_group(self.folder / "data", self.spec["securityContext"]["fsGroup"])
        for container in self.spec["initContainers"]:
            with self.log.open("ab") as log:
                done = subprocess.run(
                    self._inside(container, container["command"]),
                    stdout=log,
                    stderr=log,
                    timeout=PATIENCE,
                    check=False,
                )
            assert done.returncode == 0, self.log.read_text()

    def begin(self) -> None:
        with self.log.open("ab") as log:
            command = self._inside(self.container, self.container["command"])
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def kill(self) -> None:
        """As a node that goes does: no process says a word, and the address is nobody's."""
        if self.space:
            self.cluster.network.switch.remove(self.space)
        if self.process is not None:
            self.process.wait()
        self.address = self.space = ""

    def ask(self, probe: str) -> int:
        """What a probe's command ends with."""
        command = self.container[probe]["exec"]["command"]
        with self.log.open("ab") as log:
            return subprocess.run(
                self._inside(self.container, command), stdout=log, stderr=log, check=False
            ).returncode

    def say(self, *command: str) -> str:
        """What a command in its container prints, as by `kubectl exec`."""
        inside = self._inside(self.container, command)
        return subprocess.run(inside, capture_output=True, text=True, check=False).stdout

    def mount_files(self) -> None:
        group = self.spec["securityContext"]["fsGroup"]
        for volume in self.spec["volumes"]:
            folder = self.folder / volume["name"]
            if "configMap" in volume:
                own = self.cluster.files("ConfigMap", volume["configMap"]["name"])
                assert own is not None
                _exchange(folder, own, group)
            elif "secret" in volume:
                there = self.cluster.files("Secret", volume["secret"]["secretName"])
                assert there is not None or volume["secret"]["optional"]
                _exchange(folder, there or {}, group)
        (self.folder / "data").mkdir(exist_ok=True)

    def _inside(self, container: Mapping[str, Any], command: Sequence[str]) -> list[str]:
        """A command as a container runs it: its mounts, its environment, its namespace."""
        script = ["set -e", "mount -t tmpfs none /srv"]
        volumes = {each["name"] for each in self.spec["volumes"]} | {"data"}
        for mount in container["volumeMounts"]:
            assert mount["name"] in volumes
            if mount["mountPath"] == "/tmp":
                continue  # the test itself is there
            source, target = self.folder / mount["name"], mount["mountPath"]
            script += [f"mkdir {target}", f"mount --bind {shlex.quote(str(source))} {target}"]
            if mount.get("readOnly"):
                script.append(f"mount -o remount,bind,ro {target}")
        own: dict[str, str] = {}
        for each in container.get("envFrom", ()):
            entries = self.cluster.files("Secret", each["secretRef"]["name"])
            assert entries is not None, "its pod would wait for the Secret"
            own |= {key: entry.decode() for key, entry in entries.items()}
        own |= {each["name"]: each["value"] for each in container["env"]}
        own["SECUREPS_KERNELS"] = str(Path.home() / ".cache/secureps/kernels")  # once for all
        own["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        around = [f"{key}={value}" for key, value in own.items()]
        script.append('exec env -i "$@"')
        inside = ["sh", "-c", "\n".join(script), "pod", *around, f"PYTHONPATH={ROOT}", *command]
        return ["ip", "netns", "exec", self.space, *inside]


class Cluster:
    """The pods of one party's cluster, from manifests."""

    def __init__(self, network: Network, folder: Path) -> None:
        self.network, self.folder = network, folder
        self.pods: dict[str, Running] = {}
        self._objects: dict[tuple[str, str], dict[str, Any]] = {}
        folder.mkdir(parents=True)
        network.clusters.append(self)

    def load(self, folder: Path) -> dict[str, Running]:
        """Reads a folder of manifests; the pods that are new, none of which runs."""
        for path in sorted(folder.glob("*.yaml")):
            for each in yaml.safe_load_all(path.read_text()):
                self._objects[each["kind"], each["metadata"]["name"]] = each
        made = {}
        for (kind, name), each in self._objects.items():
            pod = {"StatefulSet": f"{name}-0", "Job": f"{name}-x"}.get(kind)
            if pod is not None and pod not in self.pods:
                made[pod] = Running(self, pod, each["spec"]["template"])
                (self.folder / pod).mkdir()
        self.pods |= made
        return made

    def apply(self, folder: Path) -> None:
        """`kubectl apply -f`: starts what is new; files of pods that run are exchanged."""
        new = self.load(folder)
        for name, pod in self.pods.items():
            if name in new:
                pod.start()
            else:
                pod.mount_files()

    def create_secret(self, name: str, entries: Mapping[str, str]) -> None:
        data = {key: base64.b64encode(entry.encode()).decode() for key, entry in entries.items()}
        self._objects["Secret", name] = {"kind": "Secret", "metadata": {"name": name}, "data": data}

    def delete(self, kind: str, name: str) -> None:
        """`kubectl delete`: of a pod, which its controller makes anew, or of anything else."""
        if kind == "pod":
            self.pods[name].kill()
            self.pods[name].start()
        else:
            del self._objects[{"secret": "Secret", "job": "Job"}[kind], name]

    def files(self, kind: str, name: str) -> dict[str, bytes] | None:
        """Of a Secret or a ConfigMap; None if it is not there."""
        each = self._objects.get((kind, name))
        if each is None:
            return None
        texts = each.get("data", {})
        encoded = texts if kind == "Secret" else each.get("binaryData", {})
        plain = {} if kind == "Secret" else {key: text.encode() for key, text in texts.items()}
        return plain | {key: base64.b64decode(text) for key, text in encoded.items()}

    def policies(self, pod: Running) -> list[dict[str, Any]]:
        """Those that select a pod; each pod has one."""
        all = [each for (kind, _), each in self._objects.items() if kind == "NetworkPolicy"]
        found = [
            each
            for each in all
            if each["spec"]["podSelector"]["matchLabels"].items() <= pod.labels.items()
        ]
        assert found, pod.name
        return found

    def addresses(self, labels: Mapping[str, str]) -> list[str]:
        """Where the pods with these labels are now."""
        pods = self.pods.values()
        return [
            each.address for each in pods if each.address and labels.items() <= each.labels.items()
        ]

    def names(self, outside: bool) -> Iterator[str]:
        """Lines of a hosts file: where Services of this cluster lead."""
        for (kind, name), each in self._objects.items():
            if kind != "Service":
                continue
            spec, notes = each["spec"], each["metadata"].get("annotations", {})
            host = notes.get("external-dns.alpha.kubernetes.io/hostname")
            shown = host if outside else f"{name}.{each['metadata']['namespace']}.svc"
            for pod in self.pods.values():
                if shown and pod.address and spec["selector"].items() <= pod.labels.items():
                    yield f"{pod.address} {shown}"


def _exchange(folder: Path, files: Mapping[str, bytes], group: int) -> None:
    """Writes files as a kubelet does: links into a folder, of which another takes the place."""
    fresh = folder / f"..{time.monotonic_ns()}"
    fresh.mkdir(parents=True)
    for name, data in files.items():
        (fresh / name).write_bytes(data)
        (fresh / name).chmod(0o440)
        os.chown(fresh / name, -1, group)
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(Path("..data") / name)
    link = folder / "..new"
    link.symlink_to(fresh.name)
    link.rename(folder / "..data")
    for path in folder.iterdir():
        if path.is_symlink() and not path.exists():
            path.unlink()


def _open_to_group(folder: Path, group: int) -> None:
    """What becomes of a volume under `fsGroup`, each time that it is mounted."""
    for base, folders, files in os.walk(folder):
        for name in (*files, *folders, "."):
            path = Path(base) / name
            if not path.is_symlink():
                os.chown(path, -1, group)
                path.chmod(path.stat().st_mode | (0o2770 if path.is_dir() else 0o660))
