"""Files of people: plans, servers' settings, scenarios; and the plan as a coordinator tells it."""

from collections.abc import Callable
from pathlib import Path

from secureps.client.site_policy import read_site
from secureps.config.scenario import ScenarioSection
from secureps.config.sections import parse, read_toml, toml_text, toml_value
from secureps.config.site_files import ServeSection
from secureps.errors import Malformed
from secureps.policy.plan import Plan, different_keys, load_plan
from secureps.run.simulate.scenario_file import load_scenario
from tests.fuzz.target import Target, in_file
from tests.kits.nursery import ROOT

SERVE = b"""\
name = "shard-0"
kit = "kit"
state = "state"
listen = "127.0.0.1:0"
advertise = "localhost:7700"
coordinator = "127.0.0.1:7000"
weight = 2.0
minimum = 4
threshold = 3
metrics = "127.0.0.1:0"
threads = 2
memory = "1.5 GiB"
insecure = false
"""
SITE = b"""\
minimum = 5
threshold = 3
budget = 8.0
ledger = "ledger.db"
plans = ["0000000000000000000000000000000000000000000000000000000000000000"]
scripts = ["1111111111111111111111111111111111111111111111111111111111111111"]
evaluation = false
updates_per_hour = 6
reveal = "keys"
"""
VALUES = (b"1", b"-3", b"0.5", b"1e3", b"true", b'"text"', b"'raw'", b"text", b"./path", b"[1]")


def targets(folder: Path) -> list[Target]:
    plans = tuple(path.read_bytes() for path in sorted((ROOT / "policies").glob("*.toml")))
    simulations = ROOT / "simulations"
    scenarios = tuple(path.read_bytes() for path in sorted(simulations.glob("*.toml")))
    texts = tuple(
        load_plan(path).text.encode() for path in sorted((ROOT / "policies").glob("*.toml"))
    )
    # beside the plans and scripts that they name, which is where they are read from
    read = ("config.sections:read_toml", "config.sections:Tables._places")
    told = ("policy.plan:Plan.from_text", "policy.plan:different_keys")
    return [
        Target("plan", read, plans, _plan(folder / "plan.toml"), cost=60),
        Target("plan-told", told, texts, _told(texts), cost=60),
        Target("serve", read, (SERVE,), _serve(folder / "serve.toml"), cost=10),
        Target("site", read, (SITE,), in_file(folder / "site.toml", read_site), cost=10),
        Target("scenario", read, scenarios, _scenario(folder), cost=60),
        Target("setting", ("config.sections:toml_value",), VALUES, _value, cost=2),
    ]


def _plan(path: Path) -> Callable[[bytes], bytes]:
    def taken(data: bytes) -> bytes:
        path.write_bytes(data)
        plan = load_plan(path)
        return data if Plan.from_text(plan.text).text == plan.text else plan.text.encode()

    return taken


def _told(texts: tuple[bytes, ...]) -> Callable[[bytes], bytes]:
    own = texts[0].decode()

    def taken(data: bytes) -> bytes:
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise Malformed("no text comes so over the wire") from None
        plan = Plan.from_text(text)
        different_keys(own, text)
        return data if Plan.from_text(plan.text).text == plan.text else plan.text.encode()

    return taken


def _serve(path: Path) -> Callable[[bytes], bytes]:
    def taken(data: bytes) -> bytes:
        path.write_bytes(data)
        section = parse(ServeSection, read_toml(path), str(path))
        again = ServeSection.model_validate(section.model_dump())
        return data if again == section else repr(again).encode()

    return taken


def _scenario(folder: Path) -> Callable[[bytes], bytes]:
    beside = folder / "simulations"
    (folder / "policies").symlink_to(ROOT / "policies")
    (folder / "clients").symlink_to(ROOT / "clients")
    beside.mkdir()
    path = beside / "scenario.toml"

    def taken(data: bytes) -> bytes:
        path.write_bytes(data)
        scenario = load_scenario(path)
        again = ScenarioSection.model_validate(scenario.section.model_dump())
        return data if again == scenario.section else repr(again).encode()

    return taken


def _value(data: bytes) -> bytes:
    value = toml_value(data.decode("utf-8", "surrogateescape"))
    same = toml_value(toml_text(value))
    if type(same) is type(value) and same == value:
        return data
    return repr(same).encode()
