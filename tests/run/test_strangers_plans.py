"""Hostile input: a stranger's plan runs no code, except by the commands of a table."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from safetensors.numpy import save
from typer.core import TyperGroup

from secureps.crypto.identity import Role
from secureps.messages.run import Schema, TensorSpec
from secureps.policy.plan import load_plan
from secureps.store.issuing import create_kit, issue
from tests.kits.checkpoints import write_checkpoint
from tests.kits.command import commands
from tests.kits.nursery import ROOT, spawn

SCRIPT = "script"
RULE = "rule"
INITIAL = "initial"

GIVEN: dict[str, tuple[str, ...]] = {
    "check": ("PLAN",),
    "check --site": ("APP", "--site", "site.toml"),
    "check --values": ("PLAN", "--values", "10"),
    "check --run-script": ("LOCAL", "--run-script"),
    "check --fetch": ("PLAN", "--fetch"),
    "audit": ("PRIVATE", "script.py", "--seconds", "0", "--out", "audit"),
    "audit --out": ("PRIVATE", "--seconds", "0", "--out", "audited"),
    "up": ("PLAN", "--out", "up"),
    "resume": ("RUN",),
    "simulate": ("scenario.toml", "--out", "simulated"),
    "study": ("scenario.toml", "--out", "studied"),
    "flower": ("APP", "--out", "founded"),
    "keys init": ("fresh", "--plan", "PLAN"),
    "keys request": ("holders", "--role", "holder", "--name", "h", "--plan", "PLAN"),
    "deploy kubernetes": ("PLAN", "--kit", "kit", "--out", "k8s", "--store-secret", "keys"),
    "deploy kubernetes --fetch": (
        *("PLAN", "--kit", "kit", "--out", "k8s-fetched", "--store-secret", "keys", "--fetch"),
    ),
    "deploy kubernetes --run-script": (
        *("LOCAL", "--kit", "kit", "--out", "k8s-run", "--run-script"),
    ),
    "deploy slurm": ("PLAN", "--kit", "kit", "--out", "slurm"),
    "deploy slurm --fetch": ("PLAN", "--kit", "kit", "--out", "slurm-fetched", "--fetch"),
    "deploy slurm --run-script": ("LOCAL", "--kit", "kit", "--out", "slurm-run", "--run-script"),
    "preflight": ("kit", "--name", "south", "--plan", "APP", "--site", "site.toml"),
    "serve": ("coordinator", "--config", "coordinator.toml"),
    "join": ("script.py", "--server", "127.0.0.1:1", "--kit", "kit", "--name", "south"),
    "runs": (".",),
    "log": ("RUN",),
    "stop": ("RUN",),
    "status": ("RUN",),
    "export": ("trained", "--out", "exported.safetensors"),
}
"""Words after each command that is given a plan, or a folder or file that holds or names one."""

SUCCEEDS = {
    *("check", "check --site", "check --values", "check --fetch", "audit --out"),
    *("keys init", "keys request", "preflight", "runs", "log", "stop", "status"),
    "export",
    *("deploy kubernetes", "deploy kubernetes --fetch", "deploy slurm", "deploy slurm --fetch"),
}
"""Those that do all of their work in spite of a script that fails; all others are cut short."""

NO_PLAN = {
    *("new", "warm", "health", "takeover", "backup", "restore", "act", "shards", "dashboard"),
    *("budget show", "budget export", "budget verify", "audit-log export", "audit-log verify"),
    *("keys rotate", "keys approve", "keys issue", "keys show", "keys renew", "keys revoke"),
    *("roster add", "roster replace-holder", "roster revoke", "roster renew"),
}
"""They are given no plan: their files are data that is read, or they ask a server that runs."""

PLAN = """
name = "trap"
versions = 1
initial = "{initial}"
[cipher]
name = "plain"
capacity = 8
[[group]]
rule = {{ name = "trapped_rule:Rule", minimum = 2 }}
[federation]
script = "script.py"
clients = 4
"""
PRIVACY = """
[privacy]
unit = "client"
placement = "local"
noise_multiplier = 2.0
delta = 1e-5
budget = 10.0
"""
SCENARIO = """
name = "trap"
plan = "plan.toml"
script = "trainer.py"
clients = 4
[study]
seeds = [1]
every = 1.0
seconds = 10.0
target = 1.0
baseline = "a"
[[study.variant]]
name = "a"
"""
TOUCHES = "from pathlib import Path\n(Path(__file__).parent / {name!r}).touch()\n"
TRAPPED_SCRIPT = f"{TOUCHES.format(name=SCRIPT)}def make(settings): raise ValueError('enough')\n"
TRAPPED_APP = f"{TOUCHES.format(name=SCRIPT)}raise ValueError('enough')\nimport flwr\n"
"""A Flower app, whose ServerApp some commands run before they make a client."""
TRAPPED_TRAINER = f"""{TOUCHES.format(name=SCRIPT)}
import numpy as np
class Trainer:
    def parameters(self, seed): return {{"w": np.zeros(10, np.float32)}}
    def examples(self): return 1
    def fit(self, parameters, config): raise ValueError("enough")
    evaluate = fit
def make(settings): return Trainer()
"""
"""It fails once it trains, in a simulation whose coordinator has been made."""
TRAPPED_RULE = f"""{TOUCHES.format(name=RULE)}
class Rule:
    def __init__(self, minimum): ...
    def enter(self, state): ...
    def admit(self, now, member, state): ...
    def decide(self, now, arrivals, state): ...
"""
COORDINATOR = """
name = "coordinator"
kit = "kit"
state = "state"
plan = "plan.toml"
checkpoints = "checkpoints"
listen = "127.0.0.1:{port}"
"""
PARTIES: dict[str, Role] = {"coordinator": "coordinator", "shard-0": "shard", "south": "client"}


@dataclass
class Trap:
    folder: Path
    asked: list[str] = field(default_factory=list)

    def touched(self) -> set[str]:
        """All of it since the last call."""
        found = {INITIAL} if self.asked else set()
        self.asked.clear()
        for name in (SCRIPT, RULE):
            if (self.folder / name).exists():
                (self.folder / name).unlink()
                found.add(name)
        return found


@pytest.fixture(scope="module")
def trap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trap]:
    folder = tmp_path_factory.mktemp("stranger")
    trap, model = Trap(folder), save({"w": np.zeros(10, np.float32)})

    class Store(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            trap.asked.append(self.path)
            self.send_response(200)
            self.send_header("Content-Length", str(len(model)))
            self.end_headers()

        def do_GET(self) -> None:
            self.do_HEAD()
            self.wfile.write(model)

        def log_message(self, format: str, *args: object) -> None:
            """Logs nothing."""

    store = ThreadingHTTPServer(("127.0.0.1", 0), Store)
    port = store.server_port
    (folder / "app.py").write_text(TRAPPED_APP)
    (folder / "script.py").write_text(TRAPPED_SCRIPT)
    (folder / "trainer.py").write_text(TRAPPED_TRAINER)
    (folder / "trapped_rule.py").write_text(TRAPPED_RULE)
    (folder / "scenario.toml").write_text(SCENARIO)
    (folder / "site.toml").write_text("minimum = 2\n")
    # The port is taken, by the store: the coordinator ends as soon as it would listen.
    (folder / "coordinator.toml").write_text(COORDINATOR.format(port=port))
    plan = folder / "plan.toml"
    text = PLAN.format(initial=f"http://127.0.0.1:{port}/initial.safetensors")
    plan.write_text(text)
    (folder / "local.toml").write_text(text.replace("initial =", "# initial ="))
    private = text.replace("initial =", "# initial =").replace(
        "rule =", "weighting = 'uniform'\nrule ="
    )
    (folder / "private.toml").write_text(private + PRIVACY)
    create_kit(folder / "kit", load_plan(folder / "local.toml").cipher_parameters)
    for name, role in PARTIES.items():
        issue(folder / "kit", role, name)
    thread = Thread(target=store.serve_forever)
    thread.start()
    (folder / "app.toml").write_text(text.replace('"script.py"', '"app.py"'))
    schema = Schema((TensorSpec("w", (10,), "float32"),))
    zeros = {"w": np.zeros(10, np.float32)}
    write_checkpoint(folder / "trained" / "checkpoints", 1, load_plan(plan), schema, zeros, 5)
    _, told = secureps(folder, "up", "plan.toml", "--out", "run")
    assert (folder / "run" / "origin.json").exists(), told
    trap.touched()
    yield trap
    store.shutdown()
    thread.join()
    store.server_close()


def secureps(folder: Path, *words: str) -> tuple[int, str]:
    """Status and words of a command; PLAN, APP, LOCAL, PRIVATE and RUN are a stranger's."""
    meant = {"PLAN": "plan.toml", "APP": "app.toml", "LOCAL": "local.toml", "RUN": "run"}
    meant["PRIVATE"] = "private.toml"
    command = ("-m", "secureps", *(meant.get(word, word) for word in words))
    log = folder / "said.log"
    log.unlink(missing_ok=True)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"}
    return spawn(command, folder, log, environment).wait(120), log.read_text()


def named() -> dict[str, set[str]]:
    text = (ROOT / "docs" / "operate" / "run.md").read_text()
    _, _, section = text.partition("\n## Which command runs other people's code\n")
    table = section.partition("\n## ")[0]
    rows = [line.split("|") for line in table.splitlines() if line.startswith("| `secureps ")]
    found: dict[str, set[str]] = {}
    for _, words, *cells, _ in rows:
        touches = {
            what
            for what, cell in zip((SCRIPT, RULE, INITIAL), cells, strict=False)
            if cell.strip() != "-"
        }
        for command in re.findall(r"`secureps ([^`]+)`", words):
            found[command] = touches
    return found


def test_every_command_is_tried_or_is_given_no_plan() -> None:
    leaves = {name for name, command in commands() if not isinstance(command, TyperGroup)}
    tried = {name.partition(" --")[0] for name in GIVEN}
    assert tried | NO_PLAN == leaves
    assert tried & NO_PLAN == set()


def test_the_page_names_no_command_that_is_not_tried() -> None:
    assert named().keys() <= GIVEN.keys()


@pytest.mark.parametrize("name", GIVEN)
def test_a_command_touches_what_the_page_says_and_no_more(name: str, trap: Trap) -> None:
    command = name.partition(" --")[0].split()
    status, told = secureps(trap.folder, *command, *GIVEN[name])
    assert trap.touched() == named().get(name, set()), told
    assert "Traceback" not in told
    assert (status == 0) == (name in SUCCEEDS), told
