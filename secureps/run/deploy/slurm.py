"""Makes batch files for Slurm of a plan and a kit: one for all servers, one for each other party.

Pure. All state lies in one folder that every node sees, so that a job that was preempted, or ran
out of time, continues on whatever node it is started next.

References: sbatch(1) and scontrol(1) of Slurm 22.05.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from secureps.config.sections import toml_tables
from secureps.crypto.identity import Role
from secureps.errors import ConfigError
from secureps.run.deploy.parties import Needs, Request, fill_options

NOTICE = 120
"""Seconds before a job's time limit at which its parties end and the job is queued again."""
GRACE = 60
"""Seconds that servers run on after a run's end, so that clients hear of it."""

ADDRESS = "coordinator.address"
"""The file with the coordinator's address, written by its job, or by hand if it is elsewhere."""

SERVERS = "aggregator"
"""The name of the job of coordinator and shards."""

_TIME = re.compile(r"[\w:-]+")
_FOLDER = re.compile(r"[\w./@:+,=~-]+")
"""Paths that sbatch takes literally: without spaces and without % of its file name patterns."""
_OPTION = re.compile(r"--?[A-Za-z].*")

_HERE, _THERE = "@HOST@", "@COORDINATOR@"
"""Placeholders in configuration files: the job's node, and the coordinator's address."""

_HEAD = """\
set -u
cd {folder}
export OMP_NUM_THREADS=1 SECUREPS_KERNELS={folder}/kernels
parties="" around=""
# End the watchers first: they kill parties by numbers that may soon belong to other processes.
end() {{ kill $around 2> /dev/null; kill -TERM $parties 2> /dev/null; wait $parties; }}
# The time of this job is nearly over: queue it again, to continue where it was.
trap 'end; scontrol requeue "$SLURM_JOB_ID"; exit 0' USR1
trap 'end; exit 143' TERM
flock kernels.lock secureps warm || secureps warm  # one at a time: all compile the same kernels
"""

_AGGREGATOR = """\
host=${{SECUREPS_HOST:-$(hostname -f)}}
for file in {shards}; do sed "s|{here}|$host|" "config/$file.in" > "config/$file"; done
for file in {servers}; do
  case $file in coordinator.toml) role=coordinator ;; *) role=shard ;; esac
  secureps serve $role --config "config/$file" & parties="$parties $!"
done
echo "$host:{port}" > {address}.new && mv {address}.new {address}
secureps status --server 127.0.0.1:{port} --kit {kit} --name coordinator --watch > /dev/null &
watch=$!
wait -n $watch $parties
status=$?
if kill $watch 2> /dev/null; then  # a server has ended, and the run is not over
  end
  exit $status
fi
sleep {grace} & wait $!
end
"""

_PARTY = """\
[ -s {address} ] || echo "waits for $PWD/{address}, where the coordinator's HOST:PORT stands"
until [ -s {address} ]; do sleep 1 & wait $!; done
moved() {{  # kills once: later the number may be another process's
  while sleep 5; do [ "$(cat {address})" = "$1" ] || {{ kill -TERM "$2"; break; }}; done
}}
{over}
while :; do
  server=$(cat {address})
  {begin} & parties=$!
  moved "$server" $parties & around=$!
  over "$server" $parties & around="$around $!"
  wait $parties
  status=$?
  kill $around 2> /dev/null
  # Where the aggregator's job has moved to another node, this party follows it.
  [ "$(cat {address})" = "$server" ] && exit $status
done
"""


@dataclass(frozen=True)
class Batch:
    """All jobs of a deployment, and their options.

    Args:
        request: with absolute paths, which lie on a file system that all nodes share.
        folder: absolute, on that file system.
        time: the time limit of a job, as sbatch spells it.
        needs: the peak memory of parties.
        more: further options of sbatch, such as "--partition=low".
        port: the coordinator's port; shards have the following ones.
    """

    request: Request
    folder: Path
    time: str
    needs: Needs
    more: Sequence[str]
    port: int
    copies: str | None

    @property
    def _roles(self) -> dict[str, Role]:
        return {kit.name: kit.role for kit in self.request.kits}

    def files(self) -> dict[str, dict[str, str]]:
        """Makes the files, by folder ("" and "config") and name."""
        self._refuse_unfit()
        jobs, config, options = {}, {}, self.request.options()
        for name, role in self._roles.items():
            if role in ("coordinator", "shard", "holder"):
                end = "" if role == "coordinator" else ".in"
                config[f"{name}.toml{end}"] = toml_tables(self._settings(name, role))
            if role == "coordinator":
                jobs[f"{SERVERS}.sbatch"] = self._aggregator()
            elif role == "holder":
                jobs[f"{name}.sbatch"] = self._holder(name)
            elif role == "client" and self.request.script is not None:
                jobs[f"{name}.sbatch"] = self._client(name, self.request.script, options)
        return {"": jobs, "config": config, "logs": {}}

    def _refuse_unfit(self) -> None:
        """Refuses names and options that sbatch or bash would misread."""
        if SERVERS in self._roles:
            raise ConfigError(
                f"{SERVERS} is what the servers' job is called: enrol it as another name"
            )
        if not _FOLDER.fullmatch(str(self.folder)):
            raise ConfigError(
                f"--out {str(self.folder)!r}: sbatch takes no such path for a log: letters, digits "
                "and ./@:+,=~_- alone"
            )
        if not _TIME.fullmatch(self.time):
            raise ConfigError(f"--time {self.time!r} is no time of sbatch's: as 1-00:00:00")
        for option in self.more:
            if not _OPTION.fullmatch(option):
                raise ConfigError(
                    f"--sbatch {option!r} is no option in one line: as --partition=low"
                )
        shards = [name for name, role in self._roles.items() if role == "shard"]
        if shards and "coordinator" not in self._roles.values():
            raise ConfigError(
                f"{shards[0]} runs in the coordinator's job: deploy both from one kit"
            )

    @property
    def _serving(self) -> list[str]:
        """The names of the coordinator and of all shards, in this order."""
        roles = self._roles.items()
        return [name for of in ("coordinator", "shard") for name, role in roles if role == of]

    def _settings(self, name: str, role: Role) -> dict[str, object]:
        made: dict[str, object] = {"name": name, "kit": str(self.request.kit)}
        made["state"] = str(self.folder / "state" / name)
        made["ca_fingerprint"] = self.request.ca_fingerprint
        if role == "holder":
            return made | {"coordinator": _THERE, **self.request.holders_terms()}
        port = self.port + self._serving.index(name)
        made |= {"listen": f"0.0.0.0:{port}", "checkpoints": str(self.folder / "checkpoints")}
        if self.copies is not None:
            made["checkpoint_copies"] = self.copies
        if role == "coordinator":
            return made | {"plan": str(self.request.plan)}
        own = {"coordinator": f"127.0.0.1:{self.port}", "advertise": f"{_HERE}:{port}"}
        return made | own | self.request.read.section.shard_memory

    def _aggregator(self) -> str:
        serving, coordinator = self._serving, self.needs["coordinator"]
        shards = [f"{name}.toml" for name in serving if name != "coordinator"]
        body = _AGGREGATOR.format(
            shards=" ".join(shards),
            servers=" ".join(f"{name}.toml" for name in serving),
            here=_HERE,
            port=self.port,
            address=ADDRESS,
            kit=shlex.quote(str(self.request.kit)),
            grace=GRACE,
        )
        memory = coordinator + len(shards) * self.needs.get("shard", coordinator)
        return self._job(SERVERS, len(serving), memory, body)

    def _holder(self, name: str) -> str:
        own = f"config/{name}.toml"
        begin = (
            f'(sed "s|{_THERE}|$server|" {own}.in > {own}; '
            f"exec secureps serve keyholder --config {own})"
        )
        kit = shlex.quote(str(self.request.kit))
        asks = f'secureps status --server "$1" --kit {kit} --name {name}'
        over = f'over() {{ {asks} --watch > /dev/null && kill -TERM "$2"; }}'
        body = _PARTY.format(address=ADDRESS, begin=begin, over=over)
        return self._job(name, 1, self.needs["holder"], body)

    def _client(self, name: str, script: Path, options: Sequence[str]) -> str:
        request, clients = self.request, [n for n, role in self._roles.items() if role == "client"]
        words = ["secureps", "join", str(script), "--name", name, "--kit", str(request.kit)]
        words += ["--state", str(self.folder / "state" / name)]
        words += fill_options(options, name, clients.index(name))
        words += [] if request.site is None else [f"--site={request.site}"]
        words.append(f"--ca-fingerprint={request.ca_fingerprint}")
        begin = f'{shlex.join(words)} --server "$server"'
        body = _PARTY.format(address=ADDRESS, begin=begin, over="over() { :; }")
        return self._job(name, 1, self.needs.get("client"), body)

    def _job(self, name: str, cores: int, memory: int | None, body: str) -> str:
        asked = [
            f"--job-name={name}",
            "--ntasks=1",
            f"--cpus-per-task={cores}",
            f"--time={self.time}",
            f"--signal=B:USR1@{NOTICE}",
            "--requeue",
            "--open-mode=append",
            f"--output={self.folder}/logs/{name}.log",
            *([f"--mem={-(-memory * 3 // 2 // (1 << 20))}M"] if memory is not None else []),
            *self.more,
        ]
        lines = "".join(f"#SBATCH {option}\n" for option in asked)
        return f"#!/bin/bash\n{lines}{_HEAD.format(folder=shlex.quote(str(self.folder)))}{body}"
