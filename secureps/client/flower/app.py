"""Finds a Flower app in a Python file, in a project's folder, or among a script's objects."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import flwr.client
from flwr.client import Client, NumPyClient
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from secureps.client.flower.mods import check_mods, has_mods
from secureps.client.flower.settings import texts_of
from secureps.client.script_settings import flat
from secureps.client.trainer import Setting
from secureps.config.sections import read_toml
from secureps.errors import ConfigError, ScriptFailed
from secureps.tracebacks import told
from secureps.tracebacks import where as place_of

NOTHING = (
    "neither ours, with make(settings), nor Flower's: needs a ClientApp, a client_fn(context), "
    "or a NumPyClient"
)


NO_TRAIN = (
    "the ClientApp has no train function: give it a client_fn, or register one with @app.train(). "
    "Means of what it answers to queries, alone, travel encrypted too: docs/flower.md, Analytics"
)


@dataclass(frozen=True)
class FlowerApp:
    """A Flower app that a client can run.

    Args:
        where: it was found, for messages.
        client: its ClientApp; of clients and client_fn one is made.
        server: its ServerApp, which knows the initial model and what the clients are told.
        config: the project's [tool.flwr.app.config], flat ("a.b" for b of table a).
        texts: finds every text in the project's own code; none of an app without a project.

    Raises:
        ConfigError: it does not train, or has mods that cannot work here.
    """

    where: str
    client: ClientApp
    server: Callable[[], ServerApp | None] = lambda: None
    config: Mapping[str, Setting] = field(default_factory=dict)
    texts: Callable[[], Collection[str]] = frozenset

    def __post_init__(self) -> None:
        if not self.legacy and not self._actions("train"):
            raise ConfigError(f"{self.where}: {NO_TRAIN}")
        check_mods(self.client, self.where, self.legacy)

    # Flower has no public way to ask for what follows; see the pin in pyproject.toml.

    @property
    def legacy(self) -> bool:
        """Whether the app is a client_fn, instead of functions that take messages."""
        return self.client._call is not None

    def has(self, message_type: str) -> bool:
        """Whether a Message-API app has a function for that type of message."""
        name = message_type if "." in message_type else f"{message_type}.default"
        return name in self.client._registered_funcs

    def action(self, kind: str) -> str | None:
        """The one type of messages that a Message-API app has a function for: "train.mine".

        Raises:
            ConfigError: it has several.
        """
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
        """Whether the app has mods."""
        return has_mods(self.client)


# --- where it may be --------------------------------------------------------------


def of_object(thing: Any, where: str) -> FlowerApp:
    """Makes an app of a ClientApp, a client_fn, a client, or a client's class.

    Raises:
        ConfigError: `thing` is none of them.
    """
    return FlowerApp(where, _client_app(thing, where))


def in_module(module: ModuleType, started: list[Any], where: str) -> FlowerApp:
    """Finds the app of a file, which gave the clients in `started` to `start_client` (`loading`).

    Raises:
        ConfigError: there is none, or more than one.
    """
    things = vars(module)
    apps = _named(things, lambda each: isinstance(each, ClientApp))
    servers = list(_named(things, lambda each: isinstance(each, ServerApp)).values())
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
        clients = _named(things, lambda each: isinstance(each, Client | NumPyClient))
        classes = _named(
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


def in_project(folder: Path) -> FlowerApp:
    """Imports the app that a project's pyproject.toml names; its folder joins sys.path.

    Raises:
        ConfigError: it names none.
        ScriptFailed: it names one that does not import.
    """
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
        """Imported only when it is needed."""
        found = None if named is None else _load(folder, str(named), where)
        return found if isinstance(found, ServerApp) else None

    config = dict(flat(dict(own.get("config", {})), f"{where}: tool.flwr.app.config"))
    return FlowerApp(str(folder), app, server, config, lambda: texts_of(folder))


@contextmanager
def loading(where: str) -> Iterator[list[Any]]:
    """Collects what a file gives to `start_client` while it is loaded; starts nothing.

    Raises:
        ConfigError: the file mixes Flower's two ways to write an app.
    """
    started: list[Any] = []

    def start(**settings: Any) -> None:
        started.append(settings.get("client_fn") or settings["client"])

    # To read what is there would import it: a second, for what nobody here may call.
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
        # Flower makes one of a NumPyClient too, but with a warning at every message.
        made: Client = thing(given).to_client()
        return made

    try:
        return ClientApp(client_fn)
    except ValueError:
        raise ConfigError(f"{where}: client_fn must take one argument, a Context") from None


def _named(things: Mapping[str, Any], wanted: Callable[[Any], bool]) -> dict[str, Any]:
    """The objects of a module that are wanted, each once, by name."""
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
    """Imports the object "module:name" of a project."""
    module_name, _, name = reference.partition(":")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        with loading(where):
            module = importlib.import_module(module_name)
    except ConfigError:
        raise
    except Exception as error:
        text = f"{told(error)} ({place_of(error)})"
        raise ScriptFailed(f"{where}: {reference} does not import: {text}") from error
    file = getattr(module, "__file__", None)
    if file is None or not Path(file).resolve().is_relative_to(folder.resolve()):
        raise ConfigError(f"{where}: {module_name} is not the project's: {file} is in its place")
    if not hasattr(module, name):
        raise ConfigError(f"{where}: {module_name} has no {name!r}")
    return getattr(module, name)
