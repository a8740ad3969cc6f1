"""`secureps deploy`: writes the files that run a kit's parties on a cluster."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from secureps.run.check import Permit
from secureps.run.deploy.deployment import (
    Request,
    kubernetes_files,
    notes,
    slurm_files,
    write_folders,
)
from secureps.run.deploy.kubernetes import SERVERS, Cluster, choose_store
from secureps.run.deploy.slurm import ADDRESS
from secureps.run.deploy.slurm import SERVERS as AGGREGATOR
from secureps.run.initial_schema import read_values
from secureps.run.options import Fetch, RunScript, Values

# Options by their panels of `--help`.
_client_option = partial(typer.Option, rich_help_panel="Of clients")
_place_option = partial(typer.Option, rich_help_panel="Where they run")
_store_option = partial(typer.Option, rich_help_panel="An object store, for servers")

Plan = Annotated[Path, typer.Argument(metavar="PLAN", help="The plan's file.")]
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
    plan: Plan,
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
    values: Values = None,
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
    plan: Plan,
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
    values: Values = None,
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
