"""Finds a Flower app in a file, a project's folder or an object, and reads its settings.

Mods that need Flower's own server are refused.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import flwr.client
from flwr.client import Client, NumPyClient
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from secureps.client.settings import flatten_table, refuse_misspelt
from secureps.client.trainer import Setting
from secureps.config.sections import read_toml, toml_value
from secureps.errors import ConfigError, ScriptFailed
from secureps.tracebacks import describe_error
from secureps.tracebacks import find_place as place_of

log = logging.getLogger("secureps")

NOTHING = (
    "neither ours, with make(settings), nor Flower's: needs a ClientApp, a client_fn(context), "
    "or a NumPyClient"
)

NO_TRAIN = (
    "the ClientApp has no train function: give it a client_fn, or register one with @app.train(). "
    "An app that only answers queries can have the means of its answers: docs/flower.md, Analytics"
)


@dataclass(frozen=True)
class FlowerApp:
    """A Flower app that a client can run; ConfigError if it does not train, or has unusable mods.

    Args:
        where: the place where it was found, for error texts.
        client: its ClientApp, which may be made of a client or a client_fn.
        config: the project's [tool.flwr.app.config], flat ("a.b" for b of table a).
    """

    where: str
    client: ClientApp
    server: Callable[[], ServerApp | None] = lambda: None
    config: Mapping[str, Setting] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.legacy and not self._actions("train"):
            raise ConfigError(f"{self.where}: {NO_TRAIN}")
        for mod in {id(mod): mod for mod in _mods(self.client)}.values():
            _refuse(self.where, mod, self.legacy)

    # Flower has no public names for what follows, so pyproject.toml pins its version.

    @property
    def legacy(self) -> bool:
        """True if the app is of Flower's older API, with a client_fn and no message functions."""
        return self.client._call is not None

    def has(self, message_type: str) -> bool:
        """Tells whether an app of the newer API has a function for a type of message."""
        name = message_type if "." in message_type else f"{message_type}.default"
        return name in self.client._registered_funcs

    def action(self, kind: str) -> str | None:
        """The message type that the app has a function for; ConfigError if it has several."""
        found = self._actions(kind)
        if self.legacy or f"{kind}.default" in found:
            return kind
        if len(found) > 1:
            raise ConfigError(
                f"{self.where}: the ClientApp has {len(found)} functions to {kind} "
                f"({', '.join(found)}): leave one, or register the one that is meant under "
                f"@app.{kind}()"
            )
        return found[0] if found else None

    def _actions(self, kind: str) -> list[str]:
        return [name for name in self.client._registered_funcs if name.startswith(f"{kind}.")]

    @property
    def has_mods(self) -> bool:
        return next(_mods(self.client), None) is not None


# --- where it may be --------------------------------------------------------------


def wrap_object(thing: Any, where: str) -> FlowerApp:
    """Makes an app of a ClientApp, a client_fn, a client, or its class; else ConfigError."""
    return FlowerApp(where, _client_app(thing, where))


def find_in_module(module: ModuleType, started: list[Any], where: str) -> FlowerApp:
    """Finds a file's app; `started` is what it gave to `start_client`. ConfigError if none."""
    things = vars(module)
    apps = _select_named(things, lambda each: isinstance(each, ClientApp))
    servers = list(_select_named(things, lambda each: isinstance(each, ServerApp)).values())
    client_fn = things.get("client_fn")
    if apps:
        found = _only(apps, "ClientApps", where)
        if callable(client_fn) and found._call is None:
            raise ConfigError(
                f"{where}: has a client_fn, and a ClientApp that does not use it: either "
                "ClientApp(client_fn), or functions under @app.train() without a client_fn"
            )
    elif callable(client_fn):
        found = client_fn
    elif started:
        found = started[-1]
    else:
        clients = _select_named(things, lambda each: isinstance(each, Client | NumPyClient))
        classes = _select_named(
            things,
            lambda each: (
                inspect.isclass(each)
                and issubclass(each, Client | NumPyClient)
                and each.__module__ == module.__name__
            ),
        )
        if not clients and not classes:
            raise ConfigError(f"{where}: {NOTHING}")
        found = _only(clients or classes, "clients", where)
    if len(servers) > 1:
        raise ConfigError(f"{where}: has {len(servers)} ServerApps: leave one")
    server = servers[0] if servers else None
    return FlowerApp(where, _client_app(found, where), lambda: server)


def find_in_project(folder: Path) -> FlowerApp:
    """Imports the app that a project's pyproject.toml names; adds its folder to sys.path."""
    where = str(folder / "pyproject.toml")
    try:
        own = read_toml(folder / "pyproject.toml")["tool"]["flwr"]["app"]
        components = dict(own["components"])
        client = str(components["clientapp"])
    except (KeyError, TypeError, ValueError):
        raise ConfigError(
            f'{where}: no Flower project: [tool.flwr.app.components] needs clientapp = "module:app"'
        ) from None
    app = _load(folder, client, where)
    if not isinstance(app, ClientApp):
        raise ConfigError(f"{where}: clientapp: {client} is a {type(app).__name__}, no ClientApp")
    named = components.get("serverapp")

    def server() -> ServerApp | None:
        """Imports it, only when it is needed."""
        found = None if named is None else _load(folder, str(named), where)
        return found if isinstance(found, ServerApp) else None

    config = dict(flatten_table(dict(own.get("config", {})), f"{where}: tool.flwr.app.config"))
    return FlowerApp(str(folder), app, server, config)


@contextmanager
def catch_start_client(where: str) -> Iterator[list[Any]]:
    """Has `start_client`, while a file is loaded, collect its arguments and start nothing."""
    started: list[Any] = []

    def start(**settings: Any) -> None:
        started.append(settings.get("client_fn") or settings["client"])

    # Do not use getattr, which would import these functions, and take a second.
    names, module = ("start_client", "start_numpy_client"), vars(flwr.client)
    before = {name: module[name] for name in names if name in module}
    module.update(dict.fromkeys(names, start))
    try:
        yield started
    except (ScriptFailed, ValueError) as error:
        if "Use either `@app." not in str(error):
            raise
        raise ConfigError(
            f"{where}: mixes Flower's two APIs: a ClientApp with a client_fn takes no "
            "functions under @app.train() and the like; keep one of them"
        ) from None
    finally:
        for name in names:
            module.pop(name, None)
        module.update(before)


def _client_app(thing: Any, where: str) -> ClientApp:
    if isinstance(thing, ClientApp):
        return thing
    if isinstance(thing, Client | NumPyClient):
        return ClientApp(lambda context: thing.to_client())
    if inspect.isclass(thing):
        try:
            inspect.signature(thing).bind()
        except TypeError:
            raise ConfigError(
                f"{where}: class {thing.__name__} needs arguments: define client_fn(context), "
                "which makes one"
            ) from None
        make: Any = thing
        return ClientApp(lambda context: make().to_client())
    if not callable(thing):
        raise ConfigError(f"{where}: {NOTHING}")

    @functools.wraps(thing)
    def client_fn(given: Any) -> Client:  # a Context, or an old app's cid
        # Flower would convert a NumPyClient too, but with a warning at every message.
        made: Client = thing(given).to_client()
        return made

    try:
        return ClientApp(client_fn)
    except ValueError:
        raise ConfigError(f"{where}: client_fn must take one argument, a Context") from None


def _select_named(things: Mapping[str, Any], wanted: Callable[[Any], bool]) -> dict[str, Any]:
    found = {id(thing): (name, thing) for name, thing in things.items() if wanted(thing)}
    return dict(found.values())


def _only(things: Mapping[str, Any], kind: str, where: str) -> Any:
    if len(things) > 1:
        raise ConfigError(
            f"{where}: has {len(things)} {kind} ({', '.join(things)}): leave one, or give the "
            "folder of a project whose pyproject.toml names it"
        )
    return next(iter(things.values()))


def _load(folder: Path, reference: str, where: str) -> Any:
    module_name, _, name = reference.partition(":")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        with catch_start_client(where):
            module = importlib.import_module(module_name)
    except ConfigError:
        raise
    except Exception as error:
        text = f"{describe_error(error)} ({place_of(error)})"
        raise ScriptFailed(f"{where}: {reference} does not import: {text}") from error
    file = getattr(module, "__file__", None)
    if file is None or not Path(file).resolve().is_relative_to(folder.resolve()):
        raise ConfigError(f"{where}: {module_name} is not the project's: {file} is in its place")
    if not hasattr(module, name):
        raise ConfigError(f"{where}: {module_name} has no {name!r}")
    return getattr(module, name)


# --- settings ---------------------------------------------------------------------


NODE = {"partition": "partition-id", "partitions": "num-partitions"}
"""Settings of `up` and `simulate`, and their names in Flower's node_config."""


@dataclass(frozen=True)
class Settings:
    """Flower's node_config and run_config of a client, and our own `initial`, a path or URL."""

    node: Mapping[str, Setting]
    run: Mapping[str, Setting]
    initial: str | None

    @classmethod
    def of(cls, declared: Mapping[str, Setting], given: Mapping[str, Setting]) -> Settings:
        """Merges `--set` with the defaults that the project's [tool.flwr.app.config] declares.

        Declared names override run_config; `partition` and `partitions` become node_config's
        partition-id and num-partitions. Other names go to node_config, and if nothing is declared
        to run_config too.

        Raises:
            ConfigError: a value's type differs from the default's, a partition is no whole number,
                or a name is misspelt.
        """
        node: dict[str, Setting] = {}
        run = dict(declared)
        initial = None
        for name, value in given.items():
            if name in declared:
                run[name] = _check_type(name, value, type(declared[name]))
            elif name == "initial":
                initial = str(value)
            elif name in NODE or name in NODE.values():
                node[NODE.get(name, name)] = _check_type(name, value, int)
            else:
                node[name] = value
                if not declared:
                    run[name] = node[name]
        refuse_misspelt(node.keys() - NODE.values(), declared.keys() - given.keys())
        return cls(node, run, initial)


def _check_type(name: str, value: Setting, kind: type) -> Setting:
    if isinstance(value, str) and kind is not str:
        value = toml_value(value)
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise ConfigError(f"{name} must be of type {kind.__name__}, got {value!r}")
    return value


# --- mods -------------------------------------------------------------------------


_SUMS = (
    "needs Flower's own server; remove it: secureps encrypts every update and sums without "
    "seeing one"
)

_CLIPS = (
    "is one half of Flower's central privacy, and its server has the other; remove it: the plan's "
    "`clip` bounds every update"
)

NEEDS_SERVER = {
    "secagg_mod": _SUMS,
    "secaggplus_mod": _SUMS,
    "fixedclipping_mod": _CLIPS,
    "adaptiveclipping_mod": _CLIPS,
}
"""Flower's mods that are refused, and why; all for secure aggregation are refused too."""


def _mods(app: ClientApp) -> Iterator[Any]:
    """Yields all mods of an app and of its functions, the outermost first."""
    yield from app._mods
    functions: list[Any] = list(app._registered_funcs.values())
    for function in functions:
        while inspect.isfunction(function):
            inside = inspect.getclosurevars(function).nonlocals
            if "_mod" in inside:  # flwr.client.mod.make_ffn uses these names
                yield inside["_mod"]
            function = inside.get("_ffn")


def _refuse(where: str, mod: Any, legacy: bool) -> None:
    while isinstance(mod, functools.partial):
        mod = mod.func
    kind = mod if hasattr(mod, "__name__") else type(mod)
    name, module = kind.__name__, kind.__module__
    sums = "secagg" in name.lower() or "secure_aggregation" in module
    if why := NEEDS_SERVER.get(name, _SUMS if sums else ""):
        raise ConfigError(f"{where}: mod {name} {why}")
    if name != "LocalDpMod" or not module.startswith("flwr."):
        return
    if legacy != module.startswith("flwr.client."):
        own, other = ("flwr.client", "client_fn") if legacy else ("flwr.clientapp", "@app.train()")
        raise ConfigError(
            f"{where}: mixes Flower's two APIs: an app of {other} takes LocalDpMod from {own}.mod"
        )
    log.warning(
        "%s: LocalDpMod stays, but its noise is not accounted: no epsilon is claimed", where
    )
