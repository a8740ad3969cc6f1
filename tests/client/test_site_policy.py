"""A site's policy as its file says it, and the scripts that it allows."""

import os
import py_compile
import socket
import subprocess
import sys
from pathlib import Path
from py_compile import PycInvalidationMode

import numpy as np
import pytest

import secureps as ps
from secureps.client.runner import Joining
from secureps.client.site_policy import NO_POLICY, SitePolicy, read_site, script_digest
from secureps.errors import ConfigError
from secureps.roles.member.terms import Terms
from secureps.run.join import join
from tests.kits import processes
from tests.kits.nursery import ROOT


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "site.toml"
    path.write_text(text)
    return path


def test_the_example_is_sound() -> None:
    policy = read_site(ROOT / "clients" / "site.toml")
    assert policy.terms == Terms(8.0, 3, minimum=5, evaluation=False, updates_per_hour=60)
    text = (ROOT / "clients" / "site.toml").read_text()
    whole = text.replace("# plans", "plans").replace("# scripts", "scripts")
    assert "plans = [" in whole


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("\nminimun = 5\n", "minimun: unknown key; "),
        ("minimum = 0", "minimum: must be 1 or more, and is 0 (line 1)"),
        ("budget = 0", "budget: must be above 0, and is 0 (line 1)"),
        ("budget = inf", "budget: must be a finite number, and is inf (line 1)"),
        ("evaluation = 0", "evaluation: must be true or false, and is 0 (line 1)"),
        ('plans = ["abc"]', 'plans 1: must be a digest: 64 of 0-9 a-f, and is "abc" (line 1)'),
        ("scripts = []", "scripts: must be a list or table of 1 or more, and is a list (line 1)"),
        ('messages = ["fit"]', "messages 1: "),
        ('reveal = "all"', 'reveal: unknown value "all"; '),
        ("updates_per_hour = 1.5", "updates_per_hour: must be a whole number, and is 1.5 (line 1)"),
    ],
)
def test_what_it_may_not_say_is_named_with_its_line(text: str, told: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        read_site(path)
    assert f"{path}: {told}" in str(caught.value)


def test_an_option_says_no_other_number_than_the_site(tmp_path: Path) -> None:
    policy = read_site(written(tmp_path, "records = 500"))
    assert policy.choose_records(None) == policy.choose_records(500) == 500
    with pytest.raises(ConfigError, match="has 500 for all clients of this site"):
        policy.choose_records(812)
    assert NO_POLICY.choose_records(None) is None
    assert NO_POLICY.choose_records(812) == 812


# --- scripts ----------------------------------------------------------------------

SCRIPT = """
from pathlib import Path
(Path(__file__).parent / "ran").touch()
def make(settings):
    raise AssertionError
"""


def test_a_script_that_is_not_allowed_is_not_run(tmp_path: Path) -> None:
    script = tmp_path / "hospital.py"
    script.write_text(SCRIPT)
    policy = read_site(written(tmp_path, f'scripts = ["{"ab" * 32}"]'))
    options = joining(tmp_path, policy)
    with pytest.raises(ConfigError) as caught:
        join(script, options, {})
    assert f"{script} has the SHA-256 digest {script_digest(script)}" in str(caught.value)
    assert "nothing of it was run" in str(caught.value)
    assert not (tmp_path / "ran").exists()
    for absent in (tmp_path / "nowhere.py", Path("/dev/null")):
        told = "no file, and this site allows files by their digests"
        with pytest.raises(ConfigError, match=told):
            join(absent, options, {})
    allowed = read_site(written(tmp_path, f'scripts = ["{script_digest(script)}"]'))
    with pytest.raises(ps.SecurepsError):
        join(script, joining(tmp_path, allowed), {})
    assert (tmp_path / "ran").exists()


CALLER = """
import socket
from pathlib import Path
def make(settings):
    socket.create_connection(("127.0.0.1", settings["port"]), timeout=5).close()
    (Path(__file__).parent / "reached").touch()
"""


@pytest.mark.parametrize("network", ["true", "false"])
def test_a_script_without_a_network_reaches_nobody(network: str, tmp_path: Path) -> None:
    script = tmp_path / "hospital.py"
    script.write_text(CALLER)
    policy = read_site(written(tmp_path, f"network = {network}"))
    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.raises(ps.SecurepsError):
        join(script, joining(tmp_path, policy), {"port": listener.getsockname()[1]})
    assert (tmp_path / "reached").exists() == (network == "true")


def joining(tmp_path: Path, policy: SitePolicy) -> Joining:
    return Joining("127.0.0.1:1", tmp_path / "kit", "a", tmp_path / "state", site=policy)


def test_a_script_that_is_started_by_itself_is_held_against_the_policy_too(tmp_path: Path) -> None:
    script = tmp_path / "hospital.py"
    site = written(tmp_path, f'scripts = ["{"ab" * 32}"]')
    script.write_text(
        "import secureps as ps\n"
        "def make(settings):\n    print('made')\n"
        f"ps.run_client(make, ['--server', 'h:1', '--kit', 'kit', '--name', 'a', '--site', "
        f"{str(site)!r}])\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout) == (78, "")
    assert done.stderr.startswith(f"error: {site}: scripts: {script} has the SHA-256 digest")


def test_a_loop_of_ones_own_is_held_against_it_too(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(processes.PLAN.format(cipher="plain", versions=1))
    for text, told in (
        (f'scripts = ["{"ab" * 32}"]', "scripts: "),
        ("network = false", "network = false: this script runs in the client's own process"),
    ):
        with pytest.raises(ConfigError, match=told):
            ps.join(
                tmp_path / "kit",
                tmp_path / "plan.toml",
                server="h:1",
                name="a",
                initial={"w": np.zeros(1, np.float32)},
                examples=1,
                site=written(tmp_path, text),
            )


def test_a_compiled_file_beside_an_allowed_script_does_not_run_in_its_place(tmp_path: Path) -> None:
    script = tmp_path / "hospital.py"
    script.write_text(SCRIPT.replace('"ran"', '"compiled"'))
    py_compile.compile(str(script), invalidation_mode=PycInvalidationMode.UNCHECKED_HASH)
    script.write_text(SCRIPT)
    allowed = read_site(written(tmp_path, f'scripts = ["{script_digest(script)}"]'))
    with pytest.raises(ps.SecurepsError):
        join(script, joining(tmp_path, allowed), {})
    assert (tmp_path / "ran").exists()
    assert not (tmp_path / "compiled").exists()


# --- apps in a folder -------------------------------------------------------------

OF_A_FOLDER = (
    "find . -type f -not -path '*/.*' -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum"
)


def project(tmp_path: Path) -> Path:
    """A project whose files say that they ran, with names that sort otherwise as paths."""
    folder = tmp_path / "app"
    for name in ("hospital", "hospital-old", ".git", "Ä b"):
        (folder / name).mkdir(parents=True)
        (folder / name / "task.py").write_text("RATE = 0.1\n")
    (folder / "pyproject.toml").write_text(
        '[tool.flwr.app.components]\nclientapp = "hospital.client_app:app"\n'
    )
    (folder / "hospital" / "client_app.py").write_text(
        "from pathlib import Path\nfrom hospital import task\n"
        "(Path(__file__).parents[2] / 'ran').touch()\n"
    )
    return folder


def test_a_folders_digest_is_what_the_page_says(tmp_path: Path) -> None:
    folder = project(tmp_path)
    said = subprocess.run(
        OF_A_FOLDER, shell=True, cwd=folder, capture_output=True, text=True, check=True
    )
    assert said.stdout.split()[0] == script_digest(folder)
    assert OF_A_FOLDER in " ".join((ROOT / "docs" / "site.md").read_text().split())


def test_all_files_of_a_folder_count_but_hidden_ones(tmp_path: Path) -> None:
    folder = project(tmp_path)
    own = script_digest(folder)
    (folder / ".git" / "index").write_bytes(b"x")
    (folder / ".env").write_bytes(b"x")
    (folder / "empty").mkdir()
    assert script_digest(folder) == own
    task = folder / "hospital" / "task.py"
    text = task.read_text()
    found = {own}
    task.write_text("RATE = 0.2\n")
    found.add(script_digest(folder))
    task.write_text(text)
    task.rename(folder / "hospital" / "tusk.py")
    found.add(script_digest(folder))
    task.write_text(text)
    found.add(script_digest(folder))
    (folder / "hospital" / "tusk.py").unlink()
    (folder / "hospital" / "__pycache__").mkdir()
    (folder / "hospital" / "__pycache__" / "task.cpython-311.pyc").write_bytes(b"x")
    found.add(script_digest(folder))
    assert len(found) == 5


@pytest.mark.parametrize("made", ["link to a file", "link to a folder", "pipe", "name"])
def test_a_folder_with_what_has_no_digest_is_refused(made: str, tmp_path: Path) -> None:
    folder = project(tmp_path)
    match made:
        case "link to a file":
            (folder / "task.py").symlink_to(folder / "hospital" / "task.py")
        case "link to a folder":
            (folder / "more").symlink_to(folder / "hospital")
        case "pipe":
            os.mkfifo(folder / "more")
        case _:
            (folder / "a\nb.py").touch()
    with pytest.raises(ConfigError, match="no links, without line ends"):
        script_digest(folder)


@pytest.mark.parametrize("network", ["true", "false"])
def test_an_allowed_app_runs_and_is_allowed_again(network: str, tmp_path: Path) -> None:
    folder = project(tmp_path)
    text = f'network = {network}\nscripts = ["{{}}"]'
    refused = read_site(written(tmp_path, text.format("ab" * 32)))
    with pytest.raises(ConfigError, match="nothing of it was run"):
        join(folder, joining(tmp_path, refused), {})
    assert not (tmp_path / "ran").exists()
    allowed = read_site(written(tmp_path, text.format(script_digest(folder))))
    options = ("--server", "127.0.0.1:1", "--kit", str(tmp_path / "kit"), "--name", "a")
    command = (sys.executable, "-m", "secureps", "join", str(folder), *options)
    env = {name: v for name, v in os.environ.items() if name != "PYTHONPYCACHEPREFIX"}
    for _ in range(2):
        done = subprocess.run(
            [*command, "--site", allowed.where], capture_output=True, text=True, env=env
        )
        assert "nothing of it was run" not in done.stderr
        assert (tmp_path / "ran").exists(), done.stderr
        (tmp_path / "ran").unlink()


def test_the_digest_is_that_of_sha256sum(tmp_path: Path) -> None:
    script = tmp_path / "hospital.py"
    script.write_text(SCRIPT)
    said = subprocess.run(["sha256sum", script], capture_output=True, text=True, check=True)
    assert said.stdout.split()[0] == script_digest(script)
