"""`secureps deploy`: turns a plan and a kit into files for Kubernetes or Slurm, and writes them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from secureps.config.sections import read_toml, toml_value
from secureps.crypto.identity import Role
from secureps.errors import ConfigError, OperatorError, naming
from secureps.files.objects import ObjectStore, is_url
from secureps.policy.explain.explanation import Explanation
from secureps.policy.memory import FILED, MemoryUse
from secureps.run.check import KERNEL_BYTES, PROGRAM_BYTES, Permit
from secureps.run.deploy.kubernetes import (
    DATA,
    SERVERS,
    SERVING,
    SITE,
    Cluster,
    Store,
    choose_store,
    manifests,
    refuse_meaningless,
    refuse_unreachable,
)
from secureps.run.deploy.parties import Needs, Request, fill_options
from secureps.run.deploy.slurm import ADDRESS, Batch
from secureps.run.deploy.slurm import SERVERS as AGGREGATOR
from secureps.run.initial_schema import read_values
from secureps.run.options import Fetch, RunScript
from secureps.run.options import Values as ValueOptions
from secureps.store.atomic_file import make_directory, replace_text
from secureps.wording import named

MOST_CONFIG = 900_000
"""The most bytes of a ConfigMap's files; encoded they stay below Kubernetes' 1 MiB."""

STORE_BYTES = 64 << 20
"""Resident memory of s3fs and its imports, in a process that copies to an object store."""


def kubernetes_files(request: Request, cluster: Cluster) -> dict[str, dict[str, str]]:
    """Makes the texts of files for Kubernetes, by folder and file name.

    Raises ConfigError, KitError or PlanRefused.
    """
    explained = request.explained
    request.refuse_bad_options()
    clients = {}
    if request.script is not None:
        clients[request.script.name] = _read_script(request.script)
    if request.site is not None:
        clients[SITE] = _read_site_file(request.site)
    copies = cluster.store is not None and cluster.store.copies is not None
    parts = {"coordinator": _read_plan_files(request, cluster.store), "client": clients}
    needs = _estimate_needs(explained, copies)
    folders = manifests(request, parts, needs, _set_storage(cluster, explained))
    return {
        folder: {file: yaml_text(objects) for file, objects in files.items()}
        for folder, files in folders.items()
    }


def notes(request: Request, shared: bool) -> Iterator[str]:
    """Yields hints for the operator; `shared`: clients see the files of this machine."""
    roles = {kit.role for kit in request.kits}
    if "client" in roles and request.script is None:
        yield "clients are left out: name what they run by --script"
    for setting, absolute, missing in _local_paths(request):
        if shared:
            none = f"; nothing is there for {named(missing)}" if missing else ""
            yield f"--set {setting} is a path from here: jobs have {absolute}{none}"
        else:
            yield (
                f"--set {setting} is a path on this machine, whose files no pod has: records "
                "come from a volume (--records)"
            )
    if roles & {"coordinator", "shard"} and "observer" not in roles:
        yield "nobody reads metrics: the kit has no observer's key (`secureps keys request`)"
    if request.explained.shard is None:
        yield (
            "nothing is known of the model's size: --values N has memory and disk asked for by it, "
            "or --run-script, which runs the plan's script to ask it"
        )


def _local_paths(request: Request) -> Iterator[tuple[str, str, list[str]]]:
    """Finds settings of clients' script whose value is a relative path to something here.

    Yields KEY=VALUE as given and with the absolute path, and the clients for which nothing is
    there.
    """
    clients = [kit.name for kit in request.kits if kit.role == "client"]
    for setting in () if request.script is None else request.settings:
        key, _, text = setting.partition("=")
        value = toml_value(text)
        if not isinstance(value, str) or not value or Path(value).is_absolute():
            continue
        filled = {name: fill_options([value], name, i)[0] for i, name in enumerate(clients)}
        missing = [name for name, path in filled.items() if not os.path.exists(path)]
        if len(missing) < len(clients):
            yield setting, f"{key}={Path(value).absolute()}", missing


def _version_bytes(shard: MemoryUse) -> int:
    """Bytes of three versions of a shard's blocks, in memory or in files."""
    return max(shard.state, shard.files)


def _estimate_needs(explained: Explanation, copies: bool = False) -> Needs:
    program, probe = PROGRAM_BYTES + KERNEL_BYTES, PROGRAM_BYTES  # a probe runs as another process
    more, shard = STORE_BYTES if copies else 0, explained.shard
    needs: dict[Role, int] = dict.fromkeys(("coordinator", "holder"), program + probe + more)
    if shard is None:
        return needs
    part = _version_bytes(shard) if copies else 0  # one version is read, another is being sent
    # The system caches pages of version files in the rest of the container's limit: without room
    # for them every pull would read the disk.
    left = 0 if shard.limit is None else shard.limit - shard.state
    needs["shard"] = shard.memory + min(left, shard.files // FILED) + probe + more + part
    needs["client"] = program + sum(group.client_memory or 0 for group in explained.groups)
    return needs


def _set_storage(cluster: Cluster, explained: Explanation) -> Cluster:
    if cluster.storage:
        return cluster
    if (shard := explained.shard) is None:
        return replace(cluster, storage="10Gi")
    models = _version_bytes(shard) + shard.checkpoints
    gibibytes = -(-2 * (shard.disk + models) // (1 << 30))
    return replace(cluster, storage=f"{max(gibibytes, 1)}Gi")


def _read_script(path: Path) -> bytes:
    if not path.is_file():
        raise ConfigError(
            f"{path}: no file: a script of one file travels with its party; a Flower project's "
            "folder is built into an image of one's own"
        )
    return _read_small(path)


def _read_site_file(path: Path) -> bytes:
    """Reads a site's file; refuses a relative ledger, because its folder is read-only in a pod."""
    ledger = read_toml(path).get("ledger")
    if ledger is not None and not Path(str(ledger)).is_absolute():
        raise ConfigError(
            f"{path}: ledger: {ledger}: in a cluster nothing is written beside this file: name a "
            f"place on the client's volume, as {DATA}/ledger.db"
        )
    return _read_small(path)


def _read_plan_files(request: Request, store: Store | None) -> dict[str, bytes]:
    """Reads the plan's file, and the initial model's file if it lies beside the plan."""
    path, initial = request.plan, request.read.section.initial
    serves = any(kit.role in SERVING for kit in request.kits)
    files = {"plan.toml": path.read_bytes()}
    at_store = initial is not None and is_url(initial)
    if store is not None and store.copies is None and not at_store:
        raise ConfigError(
            f"--store-secret {store.secret}: nothing is at a store: there is no --copies, and the "
            "plan's initial is no URL"
        )
    if initial is not None and at_store:
        if serves and store is None:
            raise ConfigError(
                f"{path}: initial: {initial}: pods have no keys to a store: name their Secret by "
                "--store-secret; or bring the file here, beside the plan, and have the plan name it"
            )
        refuse_meaningless(f"{path}: initial", initial)
        if request.permit.fetch:
            refuse_unreachable(f"{path}: initial", initial)
    elif initial is not None:
        named = Path(read_toml(path)["initial"])
        if named.name != str(named) or named.name == "plan.toml":
            raise ConfigError(
                f"{path}: initial: {named}: in a cluster it lies beside the plan: put it there, "
                "and have the plan name it without a folder"
            )
        files[named.name] = _read_small(path.parent / named)
    return files


def _read_small(path: Path) -> bytes:
    data = path.read_bytes()
    if len(data) > MOST_CONFIG:
        raise ConfigError(
            f"{path} has {len(data)} bytes, and a ConfigMap holds {MOST_CONFIG}: leave it out, and "
            "let the first client found the run"
        )
    return data


def slurm_files(
    request: Request,
    out: Path,
    time: str,
    more: tuple[str, ...],
    port: int,
    copies: str | None = None,
) -> dict[str, dict[str, str]]:
    """Makes the texts of files for Slurm, by folder and name; raises as `kubernetes_files`."""
    needs = _estimate_needs(request.explained, copies is not None)
    script, site = request.script, request.site
    request.refuse_bad_options()
    if script is not None and not script.exists():
        raise ConfigError(f"{script}: no such script")
    if copies is not None:
        with naming("--copies", ConfigError):
            ObjectStore(copies)  # refuse a bad URL now rather than in every server
    whole = {given: whole for given, whole, _ in _local_paths(request)}
    absolute = replace(  # jobs begin in another folder
        request,
        plan=request.plan.resolve(),
        kit=request.kit.resolve(),
        script=script and script.resolve(),
        site=site and site.resolve(),
        settings=tuple(whole.get(setting, setting) for setting in request.settings),
    )
    return Batch(absolute, out.resolve(), time, needs, more, port, copies).files()


_SOMETHING_ELSE = re.compile(
    r"y|n|yes|no|on|off|true|false|null|[-+]?\.(inf|nan)|[-+.]?[0-9].*|[~=]|<<|", re.I | re.S
)
"""Texts that need quotes, because YAML 1.1 or 1.2 may read them as another type."""


def yaml_text(documents: Iterable[object]) -> str:
    """Writes YAML documents of dicts with text keys, lists, texts, numbers and booleans."""
    import yaml  # takes 13 ms, and only manifests need it

    def represent(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
        quotes = '"' if _SOMETHING_ELSE.fullmatch(text) else None
        return dumper.represent_scalar(
            "tag:yaml.org,2002:str", text, "|" if "\n" in text else quotes
        )

    own = {
        "ignore_aliases": lambda dumper, value: True,
        "yaml_representers": {**yaml.SafeDumper.yaml_representers, str: represent},
    }
    kind = type("Dumper", (yaml.SafeDumper,), own)
    options = {"sort_keys": False, "explicit_start": True, "allow_unicode": True, "width": 1 << 20}
    return str(yaml.dump_all(documents, Dumper=kind, **options))


OWN = (".yaml", ".sbatch")
"""Endings of files that are applied or submitted together with all others in their folder."""


def write_folders(out: Path, folders: Mapping[str, Mapping[str, str]]) -> list[Path]:
    """Writes texts by folder and file, and returns the folders.

    Raises:
        ConfigError: a folder has files of another deployment, which would be applied too.
        OperatorError: the disk refuses.
    """
    for name, files in folders.items():
        folder = out / name
        there = {path.name for path in folder.glob("*") if path.name.endswith(OWN)}
        if others := sorted(there - set(files)):
            raise ConfigError(
                f"{folder} has {others[0]}, which is no part of this: name another folder, or "
                "remove that one"
            )
    try:
        for name, files in folders.items():
            make_directory(out / name, 0o700)
            for file, text in files.items():
                replace_text(out / name / file, text, 0o600)
    except OSError as error:
        raise OperatorError(f"{error.filename or out}: {error.strerror}") from None
    return [out / name for name in folders]


# Options by their panels of `--help`.
_client_option = partial(typer.Option, rich_help_panel="Of clients")
_place_option = partial(typer.Option, rich_help_panel="Where they run")
_store_option = partial(typer.Option, rich_help_panel="An object store, for servers")

PlanFile = Annotated[Path, typer.Argument(metavar="PLAN", help="The plan's file.")]
Kit = Annotated[
    Path,
    typer.Option(metavar="DIR", help="A start-up kit: whoever has private keys in it is deployed."),
]
Out = Annotated[Path, typer.Option(metavar="DIR", help="Where the files are written.")]
Names = Annotated[
    list[str] | None,
    typer.Option("--name", metavar="NAME", help="These parties of the kit alone; repeat it."),
]
Script = Annotated[
    Path | None, _client_option(metavar="FILE", help="What clients run. Default: none.")
]
Settings = Annotated[
    list[str] | None,
    _client_option("--set", metavar="KEY=VALUE", help="A setting of the script; repeat it."),
]
Budget = Annotated[
    float | None, _client_option(metavar="EPSILON", help="Of `secureps join`: your own limit.")
]
Threshold = Annotated[
    int | None,
    _client_option(
        min=1,
        metavar="T",
        help="So many key holders must agree; the kit's key holders insist on it too.",
    ),
]
Site = Annotated[
    Path | None,
    _client_option(
        metavar="FILE", help="What the site allows, whatever the plan says; of its key holder too."
    ),
]


def kubernetes(
    plan: PlanFile,
    kit: Kit,
    out: Out,
    image: Annotated[
        str, _place_option(help="Of servers; `Containerfile` makes it.")
    ] = "secureps:latest",
    namespace: Annotated[str, _place_option(help="Of all that is made.")] = "secureps",
    domain: Annotated[
        str | None,
        _place_option(
            metavar="HOST",
            help="Where other clusters find servers: coordinator.HOST, shard-0.HOST, each by a "
            "load balancer. The same at all parties. Default: all are in one cluster.",
        ),
    ] = None,
    storage_class: Annotated[
        str | None, _place_option(help="Of volumes. Default: the cluster's own.")
    ] = None,
    storage_size: Annotated[
        str | None,
        _place_option(
            metavar="SIZE", help="Of each volume, as 10Gi. Default: by the plan, else 10Gi."
        ),
    ] = None,
    monitoring: Annotated[
        str,
        _place_option(
            metavar="NAMESPACE",
            help="Where Prometheus is; it reads metrics if the kit has an observer's key.",
        ),
    ] = "monitoring",
    standby: Annotated[
        bool,
        _place_option("--standby", help="The coordinator has a standby. The same at all parties."),
    ] = False,
    copies: Annotated[
        str | None,
        _store_option(
            metavar="URL", help="Copy checkpoints there, as s3://BUCKET/RUN/checkpoints."
        ),
    ] = None,
    store_secret: Annotated[
        str | None,
        _store_option(
            metavar="SECRET",
            help="A Secret of the namespace whose entries are the keys, as AWS_ACCESS_KEY_ID. For "
            "--copies, and for a plan's initial that is a URL.",
        ),
    ] = None,
    store_endpoint: Annotated[
        str | None,
        _store_option(
            metavar="URL",
            help="The store's server, as https://minio.example:9000. Default: Amazon's.",
        ),
    ] = None,
    store_network: Annotated[
        list[str] | None,
        _store_option(
            metavar="CIDR",
            help="Where its addresses are, as 10.1.0.0/16; repeat it. Default: outside the "
            "cluster, or as the endpoint says.",
        ),
    ] = None,
    names: Names = None,
    values: ValueOptions = None,
    run_script: RunScript = False,
    fetch: Fetch = False,
    script: Script = None,
    settings: Settings = None,
    budget: Budget = None,
    threshold: Threshold = None,
    site: Site = None,
    records: Annotated[
        str | None,
        _client_option(
            metavar="CLAIM", help="A PersistentVolumeClaim with the records, at /srv/records."
        ),
    ] = None,
    client_image: Annotated[
        str | None,
        _client_option(
            metavar="IMAGE", help="With what the script imports. Default: that of servers."
        ),
    ] = None,
) -> None:
    """Each party runs this command with its own kit, and applies its own folder to its own
    cluster. OUT has private keys (as Secrets): keep it as the kit is kept.

    Example: secureps deploy kubernetes plan.toml --kit kit --out manifests --domain ps.example
    """
    of_model = (read_values(values or ()), Permit(run_script, fetch))
    of_clients = (script, tuple(settings or ()), budget, threshold, site)
    request = Request(plan, kit, tuple(names or ()), *(*of_model, *of_clients))
    place = (image, namespace, storage_size or "", domain, storage_class, monitoring)
    store = choose_store(store_secret, copies, store_endpoint, tuple(store_network or ()))
    cluster = Cluster(*place, standby, store, records, client_image)
    files = kubernetes_files(request, cluster)
    for folder in write_folders(out, files):
        typer.echo(f"kubectl apply -f {folder}")
    if store is not None and SERVERS in files:
        _note(f"servers need the Secret {store.secret} in {namespace}, with keys to the store")
    if standby and SERVERS in files and request.read.section.take_over_after is None:
        _note("the plan has no take_over_after: the standby takes over by command alone")
    for line in notes(request, shared=False):
        _note(line)


def slurm(
    plan: PlanFile,
    kit: Kit,
    out: Out,
    time: Annotated[
        str, typer.Option(metavar="TIME", help="Of a job, which is queued again after it.")
    ] = "1-00:00:00",
    sbatch: Annotated[
        list[str] | None,
        typer.Option(
            "--sbatch",
            metavar="OPTION",
            help="A further option of sbatch, as --sbatch=--partition=low; repeat it.",
        ),
    ] = None,
    port: Annotated[
        int,
        typer.Option(min=1, max=65000, help="The coordinator's; shards have those that follow."),
    ] = 7600,
    copies: Annotated[
        str | None, typer.Option(metavar="URL", help="Of an object store, for checkpoints.")
    ] = None,
    names: Names = None,
    values: ValueOptions = None,
    run_script: RunScript = False,
    fetch: Fetch = False,
    script: Script = None,
    settings: Settings = None,
    budget: Budget = None,
    threshold: Threshold = None,
    site: Site = None,
) -> None:
    """PLAN, KIT, OUT and the script lie on a file system that all nodes share; OUT
    is where state, logs and checkpoints will be. A job that is preempted or whose
    time is over is queued again, and goes on where it was, on whatever node. A
    setting that is a path from here has its whole path in jobs.

    Example: secureps deploy slurm plan.toml --kit kit --out /shared/run --script client.py
    """
    of_model = (read_values(values or ()), Permit(run_script, fetch))
    of_clients = (script, tuple(settings or ()), budget, threshold, site)
    request = Request(plan, kit, tuple(names or ()), *(*of_model, *of_clients))
    files = slurm_files(request, out, time, tuple(sbatch or ()), port, copies)
    write_folders(out, files)
    for name in files[""]:
        typer.echo(f"sbatch {out / name}")
    if files[""] and f"{AGGREGATOR}.sbatch" not in files[""]:
        _note(f"the coordinator runs elsewhere: jobs wait for its HOST:PORT in {out / ADDRESS}")
    for line in notes(request, shared=True):
        _note(line)


def _note(text: str) -> None:
    typer.secho(f"note: {text}", fg=typer.colors.YELLOW)
