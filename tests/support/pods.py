"""A pod of a manifest on a host of a lab: its volumes, and its container with its user, arguments and variables.

Everything is read from the manifest. The image is this checkout: its environment has `persia` in its path, and the
folder of kernels that the host has compiled.
"""

import re
import shlex
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import psutil

from tests.support.hosts import CACHE, Host, HostProcess

PATH = f"{Path(sys.executable).parent}:/usr/bin:/bin:/usr/sbin:/sbin"
IMAGE = {"PATH": PATH, "NUMBA_CACHE_DIR": str(CACHE), "TMPDIR": "/tmp"}
NAMES = "/run/hosts"
"""The host's file of names, in place of a name server."""
OWN = ("/tmp", "/dev/shm")
"""Separate folders of each host; empty volumes there are these."""
OWN_IDS = ("unshare", "--pid", "--mount-proc", "--fork", "--kill-child")
"""Processes of each container are numbered from 1, so those of the next one have the same numbers."""
CLEAR = f"""
umount /etc/hosts 2> /dev/null || true
umount -R /run 2> /dev/null || true
set -e
for each in /tmp/* /tmp/.[!.]*; do # what the lab shows of other folders stays
    [ "$each" = {CACHE} ] || rm -rf --one-file-system "$each" 2> /dev/null || true
done
mount -t tmpfs -o mode=755 tmpfs /run
touch {NAMES}
mount --bind {NAMES} /etc/hosts
hostname {{name}}
chown -R {{user}}:{{group}} {CACHE}
chmod 1777 /tmp
"""
BASE = Path(sys.base_prefix)
OPEN = f"""
mountpoint -q {BASE} && exit
mkdir /run/base && mount --bind {BASE} /run/base && mount -t tmpfs -o mode=755 tmpfs {{closed}} || exit
mkdir -p {BASE} && mount --move /run/base {BASE}
"""
"""Gives other users access to this program's Python below a folder of root."""


@dataclass
class Cluster:
    """The objects of a cluster that manifests name: content of Secrets and ConfigMaps, and folders of claims."""

    secrets: dict[str, dict[str, bytes]]
    config_maps: dict[str, dict[str, bytes]] = field(default_factory=dict)
    claims: dict[str, Path] = field(default_factory=dict)


class Pod:
    """One pod; `exit_code` is that of its container, once it has ended."""

    def __init__(
        self, name: str, template: dict[str, Any], index: int, host: Host, cluster: Cluster, log: Path
    ) -> None:
        self.name, self.index, self.host = name, index, host
        self._spec, self._cluster, self._log = template["spec"], cluster, log
        [self._container] = self._spec["containers"]
        security = self._spec["securityContext"]
        self._user, self._group, self._files_group = (
            security["runAsUser"],
            security["runAsGroup"],
            security["fsGroup"],
        )
        self.disrupted = False
        """True once it was evicted from its node."""
        self.restarts = 0
        self._process: HostProcess | None = None
        self._others: list[HostProcess] = []
        """Commands that were started in its containers."""
        self._make_volumes()

    @property
    def restarts_in_place(self) -> bool:
        """True if a failed container is restarted."""
        return bool(self._spec["restartPolicy"] == "OnFailure")

    @property
    def exit_code(self) -> int | None:
        """Exit code of the container; None while it runs."""
        assert self._process is not None
        return self._process.poll()

    def said(self) -> str:
        """The output of its containers."""
        return self._log.read_text()

    def start(self) -> None:
        """Start the container."""
        variables = {**IMAGE, **self._variables()}
        words = [_expanded(word, variables) for word in [*self._container["command"], *self._container["args"]]]
        with self._log.open("ab") as output:
            self._process = self.host.start([*OWN_IDS, *self._inside(words, variables)], output)

    def execute(self, words: list[str], output: IO[bytes]) -> HostProcess:
        """Start another command in the container, as `kubectl exec` does; it ends with the container."""
        status = Path(f"/proc/{self._first.pid}/status").read_text()
        [ids] = [line.split() for line in status.splitlines() if line.startswith("NSpid:")]
        enter = ["nsenter", f"--target={ids[2]}", "--pid", "--mount", "--wd=/tmp"]  # by its id on the host
        process = self.host.start([*enter, *self._inside(words, {**IMAGE, **self._variables()})], output)
        self._others.append(process)
        return process

    def _inside(self, words: list[str], variables: Mapping[str, str]) -> list[str]:
        """Return the command that runs arguments with the container's user, rights and variables."""
        rights = ["--no-new-privs"] if not self._container["securityContext"]["allowPrivilegeEscalation"] else []
        if self._container["securityContext"]["capabilities"]["drop"] == ["ALL"]:
            rights += ["--bounding-set=-all", "--inh-caps=-all"]
        user = [f"--reuid={self._user}", f"--regid={self._group}", f"--groups={self._files_group}"]
        environment = ["env", "-i", *(f"{name}={value}" for name, value in variables.items())]
        return [*environment, "setpriv", *user, *rights, "--pdeathsig=KILL", *words]

    def start_again(self) -> None:
        """Restart the container in the same place."""
        self.restarts += 1
        self.start()

    def kill(self) -> None:
        """Kill the container's first process, as the system does when memory runs out."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)  # of its parent, whose end it shares

    def evict(self) -> None:
        """Signal the container to end, as for a drained node."""
        self.disrupted = True
        self._first.send_signal(signal.SIGTERM)

    @property
    def _first(self) -> psutil.Process:
        """The container's first process, under the id that it has outside."""
        assert self._process is not None
        [first] = self._process.inner.children()
        return first

    def remove(self) -> None:
        """End the container if it runs, with everything that was started in it."""
        for process in [self._process, *self._others]:
            if process is not None:
                process.kill()

    @property
    def grace_s(self) -> float:
        """Seconds for which its containers may run on after the signal to end."""
        return float(self._spec["terminationGracePeriodSeconds"])

    def _variables(self) -> dict[str, str]:
        found = {"JOB_COMPLETION_INDEX": str(self.index)}
        for source in self._container.get("envFrom", []):
            secret = self._cluster.secrets[source["secretRef"]["name"]]
            found |= {key: value.decode() for key, value in secret.items()}
        for each in self._container["env"]:
            if "value" in each:
                found[each["name"]] = each["value"]
            else:
                assert each["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}
                found[each["name"]] = self.host.address
        return found

    def _make_volumes(self) -> None:
        """Mount the container's volumes on the host; nothing of an earlier pod is left."""
        self._run(CLEAR.format(name=self.name, user=self._user, group=self._group))
        for closed in (each for each in reversed(BASE.parents) if not each.stat().st_mode & 1):
            self._run(OPEN.format(closed=closed))
            break
        volumes = {volume["name"]: volume for volume in self._spec["volumes"]}
        for mount in self._container["volumeMounts"]:
            volume, path = volumes[mount["name"]], mount["mountPath"]
            match volume:
                case {"emptyDir": _} if path in OWN:
                    pass
                case {"emptyDir": _}:
                    self._run(f"mkdir -p {path} && chown 0:{self._files_group} {path} && chmod 2777 {path}")
                case {"secret": {"secretName": name, "defaultMode": mode}}:
                    self._write(path, self._cluster.secrets[name], mode)
                case {"configMap": {"name": name}}:
                    self._write(path, self._cluster.config_maps[name], 0o644)
                case {"persistentVolumeClaim": {"claimName": name}}:
                    self._bind(self._cluster.claims[name], path, bool(mount.get("readOnly")))
                case _:
                    raise AssertionError(f"a volume like {volume} is not supported here")

    def _write(self, path: str, files: Mapping[str, bytes], mode: int) -> None:
        """Mount files as Kubernetes mounts Secrets: read-only, behind links, owned by root and the pod's group."""
        self._run(f"mkdir -p {path} && mount -t tmpfs -o mode=755 tmpfs {path} && mkdir {path}/..1")
        content = self.host.root / path.lstrip("/") / "..1"
        for name, data in files.items():
            (content / name).write_bytes(data)
        owned = f"cd {path} && chown 0:{self._files_group} ..1/* && chmod {mode:o} ..1/* && ln -s ..1 ..data"
        links = " && ".join(f"ln -s ..data/{shlex.quote(name)} {shlex.quote(name)}" for name in files)
        self._run(f"{owned} && {links} && cd / && mount -o remount,ro {path}")

    def _bind(self, folder: Path, path: str, read_only: bool) -> None:
        folder.chmod(0o2777)
        rights = "ro" if read_only else "rw"
        self._run(f"mkdir -p {path} && mount --bind {folder} {path} && mount -o remount,bind,{rights} {path}")

    def _run(self, script: str) -> None:
        code, said = self.host.run(["/bin/sh", "-c", script])
        assert code == 0, said


def _expanded(word: str, variables: Mapping[str, str]) -> str:
    """Replace variables as Kubernetes does: `$(NAME)`; unknown ones stay."""
    return re.sub(r"\$\((\w+)\)", lambda found: variables.get(found[1], found[0]), word)
