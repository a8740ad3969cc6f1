"""Plans are refused with a reason, and their text is the same for all parties."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secureps.config.plan import PlanSection
from secureps.config.sections import parse, read_toml
from secureps.crypto.cipher import Opening
from secureps.errors import ConfigError, PlanRefused
from secureps.messages.encoding import file_digest
from secureps.messages.run import Schema, TensorSpec
from secureps.policy.plan import Plan, different_keys, load_plan
from secureps.policy.rules.registry import Sync
from tests.kits import privacy_kit
from tests.kits.roles_kit import PRIVACY

SCHEMA = Schema((TensorSpec("bias", (5,), "float32"), TensorSpec("weight", (4, 5), "float32")))
CLIENT = privacy_kit.PRIVACY | {"placement": "distributed"}
TOML = """
name = "demo"
versions = 3
shards = 2
block_size = 64
{top}

[cipher]
name = "{cipher}"

[training]
local_steps = 5
rate = 0.5
label = "x"
flag = true

[[group]]
name = "embedding"
pattern = "embedding.*"
[group.rule]
quorum = 5
most = 20

[[group]]
name = "rest"
[group.rule]
quorum = 6
deadline = 30
[group.optimizer]
name = "adam"
learning_rate = 0.01
schedule = {{ name = "cosine" }}
"""


def group(rule: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    return {"rule": {"quorum": 5} | (rule or {}), **changes}


def plan(**changes: Any) -> Plan:
    body = {"name": "demo", "versions": 3, "group": [group()], **changes}
    return Plan(parse(PlanSection, body, "demo.toml"))


def noisy_evaluation(multiplier: float = 3.0, **evaluation: Any) -> dict[str, Any]:
    return {
        "privacy": CLIENT | {"placement": "local", "noise_multiplier": multiplier},
        "group": [group(weighting="uniform")],
        "evaluation": {"every": 1, "metrics": {"accuracy": 1.0, "loss": 10.0}} | evaluation,
    }


def write(folder: Path, top: str = "", cipher: str = "bfv") -> Path:
    path = folder / "demo.toml"
    path.write_text(TOML.format(top=top, cipher=cipher))
    return path


# --- what a plan says -------------------------------------------------------------


def test_a_plan_file(tmp_path: Path) -> None:
    made = load_plan(write(tmp_path))
    assert made.groups == ("embedding", "rest")
    for name, numbers in (("embedding", (5, 5, 5, 20, 60.0, 2)), ("rest", (6, 5, 6, 32, 30.0, 2))):
        rule = made.rule(name)
        assert isinstance(rule, Sync)
        own, at = rule.section, rule.bounds
        assert numbers == (own.quorum, own.minimum, at.start, at.most, own.deadline, own.extensions)
    assert made.section.training == {"local_steps": 5, "rate": 0.5, "label": "x", "flag": True}
    assert made.group("rest").optimizer.schedule.name == "cosine"
    assert made.initial_digest == ""
    with pytest.raises(KeyError):
        made.group("none")


def test_defaults_follow_one_another() -> None:
    own = plan(cipher={"capacity": 9}).bounds("all")
    assert (own.minimum, own.most) == (5, 9)
    assert plan(group=[group({"start": 7})]).bounds("all").start == 7


def test_the_grid_is_the_clip_unless_a_range_is_given() -> None:
    groups = [
        group(name="a", pattern="bias", clip=2.0, bits=8),
        group(name="b", clip=2.0, range=0.5, bits=12),
    ]
    made = plan(group=groups)
    assert (made.grid("a", 5).range, made.grid("a", 5).bits) == (2.0, 8)
    assert (made.grid("b", 55).range, made.grid("b", 55).bits) == (0.5, 12)
    assert made.cipher_parameters.levels == made.grid("b", 55).levels


def test_holders_are_those_that_the_cipher_needs() -> None:
    assert plan(cipher={"name": "plain", "holders": 3}).holders == 0
    assert plan(cipher={"name": "bfv"}).holders == 1
    made = plan()
    assert made.section.cipher.name == "rlwe"
    assert (made.holders, made.threshold, made.opening) == (4, 3, Opening.COMMITTEE)
    for holders, threshold in ((1, 1), (2, 2), (3, 2), (5, 3), (7, 4)):
        made = plan(cipher={"name": "rlwe", "holders": holders})
        assert (made.holders, made.threshold) == (holders, threshold)


def test_a_committee_is_that_of_the_roster() -> None:
    made = plan(cipher={"name": "rlwe", "holders": 4, "threshold": 4})
    committee = made.committee(["d", "b", "a", "c"])
    assert (committee.holders, committee.threshold) == (("a", "b", "c", "d"), 4)
    with pytest.raises(PlanRefused, match="the plan has 4 key holders, and the roster 3: issue"):
        made.committee(["a", "b", "c"])


def test_the_layout_follows_the_plan() -> None:
    layout = plan(block_size=16, local=["bias"]).layout(SCHEMA)
    assert [t.name for t in layout.local] == ["bias"]
    assert layout.group("all").blocks == 2
    with pytest.raises(PlanRefused, match="'weight' matches no group's pattern"):
        plan(group=[group(pattern="bias")]).layout(SCHEMA)


# --- refusals ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"group": [group(), group()]}, "two groups have the same name"),
        ({"group": [group({"minimum": 6})]}, "such a cohort would never be opened: raise rule"),
        ({"group": [group({"quorum": 2})]}, "the quorum 2 is below the minimum cohort 5"),
        ({"group": [group({"start": 4, "minimum": 3})]}, "could never reach its quorum of 5"),
        ({"group": [group({"most": 33})]}, "capacity of 32; raise cipher.capacity to 33"),
        ({"group": [group({"most": 5, "start": 6})]}, "waits for 6; raise rule.most to 6$"),
        ({"cipher": {"capacity": 4}}, "but a round waits for 5; raise cipher.capacity to 5"),
        ({"cipher": {"name": "rwle"}}, r"no cipher 'rwle'; did you mean rlwe\? known are bfv, pl"),
        (
            {"group": [group(bits=24)], "cipher": {"name": "bfv", "capacity": 4096}},
            "bits|plain modulus|does not",
        ),
        (
            {"cipher": {"name": "rlwe", "holders": 13, "threshold": 7}},
            "need 3003 seeds a key, and at most 2048 are allowed: take fewer holders",
        ),
        ({"cipher": {"name": "bfv", "threshold": 1}}, "bfv has no committee; remove it, or take"),
        ({"cipher": {"name": "plain", "threshold": 1}}, "plain has no committee; remove it"),
        ({"cipher": {"name": "bfv", "holders": 2}}, "bfv has one holder of the whole secret key"),
        ({"privacy": CLIENT, "group": [group(most_examples=32)]}, 'weighting = "examples" makes'),
        ({"group": [group({"minimum": 1})]}, "rule.minimum = 1: the sum of a cohort of one is"),
        (
            noisy_evaluation(best={"metric": "loss", "goal": "min"}),
            r"the noise would choose the version: on loss, which is within \+-10, it has a "
            "standard deviation of 19 in the smallest cohort; remove best and stop",
        ),
        ({"privacy": PRIVACY}, "training.local_steps: a private plan states how many steps"),
        *(
            ({"privacy": PRIVACY, "training": {"local_steps": steps}}, "training.local_steps")
            for steps in (0, True, 2.0)
        ),
    ],
)
def test_unsound_plans(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(PlanRefused, match=reason):
        plan(**changes)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"more": 1}, "demo.toml: more: unknown key; known are name, versions, shards"),
        ({"group": [group({"patience": 1})]}, r"group 1\.rule\.patience: unknown key; known are"),
        ({"group": []}, "group: must be a list or table of 1 or more"),
        ({"group": [{}]}, r"group 1\.rule: is missing"),
        ({"name": "Bad Name"}, "name: must be 1 to 63 of a-z"),
        ({"group": [group({"deadline": 0})]}, "deadline: must be above 0, and is 0"),
        ({"group": [group(bits=1)]}, "bits: must be 2 or more"),
        ({"group": [group(bits=25)]}, "bits: must be 24 or less"),
        ({"privacy": PRIVACY | {"sample_rate": 1.5}}, "sample_rate: must be "),
        ({"privacy": CLIENT | {"placement": "central"}}, "privacy.placement: unknown value"),
        (  # arrivals are no random sample: nothing is amplified by them
            {"privacy": CLIENT | {"sample_rate": 0.1}},
            r"privacy\.sample_rate: unknown key; known are unit, placement",
        ),
        (  # what a client alone leaves out, encrypted sums cannot
            {"group": [group(support="topk")]},
            r"group 1\.support: unknown key",
        ),
        ({"training": {"x": [1]}}, "training.x"),
        *(
            ({"privacy": unit | {"noise_multiplier": 0}}, r"noise_multiplier: must be above")
            for unit in (PRIVACY, CLIENT)
        ),
        ({"shrads": 2}, r"shrads: unknown key; did you mean shards\? known are name, versions"),
        ({"encryption": {}}, r"encryption: unknown key; did you mean cipher\? known are name, ver"),
        ({"Crypto": {}}, r"Crypto: unknown key; did you mean cipher\? known are name, versions"),
        (
            {"group": [{"rule": {"name": "bufered", "buffer": 5}}]},
            "group 1.rule: no such rule, .bufered.; did you mean buffered. known are sync, ssp, "
            'buffered, async, priority, fragments, or your own as "package.module:Class"',
        ),
        ({"group": [{"rule": "fedavg"}]}, "no such rule, .fedavg.; known are sync, ssp"),
        ({"group": [{"rule": 7}]}, "no such rule, 7; known are sync"),
        ({"group": [group(weighting="example")]}, r".example.; did you mean examples"),
        (
            {"group": [group(weighting="unifrom", most_examples=256)]},
            r"weighting: unknown value .unifrom.; did you mean uniform\?",
        ),
    ],
)
def test_keys_that_are_wrong(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        plan(**changes)


def test_one_wrong_key_is_one_complaint() -> None:
    with pytest.raises(ConfigError) as caught:
        plan(group=[{"rule": {"quorum": 5, "quorom": 5}}])
    told = (
        "demo.toml: group 1.rule.quorom: unknown key; did you mean quorum? known are name, quorum"
    )
    assert str(caught.value).startswith(told)
    assert str(caught.value).count("quorom") == 1


def test_what_is_unsound_names_its_file_and_what_the_user_wrote(tmp_path: Path) -> None:
    path = write(tmp_path)
    text = path.read_text() + "[evaluation]\nevery = 1\nmetrics = { loss = 1.0 }\n"
    path.write_text(text.replace("[training]", "capacity = 4\n\n[training]"))
    with pytest.raises(PlanRefused) as caught:
        load_plan(path)
    assert str(caught.value).startswith(f"{path}: group embedding: a cohort of 20 exceeds")
    path.write_text(text + "rule = { quorum = 2, minimum = 3 }\n")
    with pytest.raises(PlanRefused, match="evaluation: the quorum 2 is below"):
        load_plan(path)


def test_a_cohort_of_one_is_for_runs_without_encryption() -> None:
    assert plan(cipher={"name": "plain"}, group=[group({"minimum": 1})]).bounds("all").minimum == 1


def test_noise_on_metrics_is_in_their_units_and_may_choose_only_while_small() -> None:
    # sigma = z * clip / sqrt(members), clip = sqrt(2 metrics), the smallest cohort 5
    noise = plan(**noisy_evaluation()).metric_noise
    expected = 3.0 * math.sqrt(2 / 5)
    assert noise == pytest.approx({"accuracy": expected, "loss": 10 * expected}, rel=0.01)
    best = {"metric": "accuracy", "goal": "max"}
    assert plan(**noisy_evaluation(0.39, best=best)).metric_noise["accuracy"] < 0.25
    assert plan(**noisy_evaluation(evaluator="eve", best=best)).metric_noise == {}
    assert plan(evaluation={"every": 1, "metrics": {"loss": 1.0}, "best": None}).metric_noise == {}


# --- the canonical text -----------------------------------------------------------


SCALARS = st.booleans() | st.integers() | st.floats(-1e9, 1e9) | st.text(max_size=5)


@given(
    st.integers(5, 20),
    st.floats(1e-3, 1e6),
    st.sampled_from(["sgd", "momentum", "nesterov", "adam", "yogi"]),
    st.dictionaries(st.text(max_size=5), SCALARS),
)
def test_every_sound_plan_comes_back(
    quorum: int, deadline: float, name: str, training: dict[str, Any]
) -> None:
    groups = [group({"quorum": quorum, "deadline": deadline}, optimizer={"name": name})]
    made = plan(group=groups, training=training)
    again = Plan.from_text(made.text)
    assert (again, again.text) == (made, made.text)


def test_who_takes_part_on_this_machine_does_not_change_the_run() -> None:
    federation = {"script": "client.py", "clients": 5, "settings": {"a": 1}}
    made = plan(federation=federation)
    assert made.section.federation is not None
    assert made.text == plan().text
    assert Plan.from_text(made.text) == plan()


def test_every_other_key_changes_the_run() -> None:
    texts = {
        plan(**changes).text
        for changes in (
            {},
            {"name": "other"},
            {"versions": 4},
            {"shards": 3},
            {"block_size": 32},
            {"lease": 5.0},
            {"local": ["bias"]},
            {"training": {"a": 1}},
            {"training": {"a": True}},
            {"cipher": {"name": "plain"}},
            {"group": [group({"deadline": 5})]},
            {"group": [group(clip=2.0)]},
            {"group": [group(most_examples=7)]},
        )
    }
    assert len(texts) == 13


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "{}",
        "[]",
        "3",
        "null",
        '{"plan":{}}',
        '{"plan":3,"initial_digest":""}',
        '{"plan":{},"initial_digest":""}',
        '{"plan":{"name":"x","versions":1,"group":[],"more":2},"initial_digest":""}',
        "[" * 100_000,
    ],
)
def test_garbage_is_no_plan(text: str) -> None:
    with pytest.raises((PlanRefused, ConfigError), match="the coordinator's plan"):
        Plan.from_text(text)


def test_a_text_has_the_keys_of_older_plans_and_is_read_whatever_they_say() -> None:
    """So an older plan keeps its run id, and its checkpoints and audit logs are read."""
    stream = {"name": "buffered", "buffer": 5, "power": 0.0}
    sent = [{"name": "support", "one_in": 4}, "rotate", "round"]
    evaluation = {"every": 1, "metrics": {"accuracy": 1.0}}
    for made in (
        plan(replicas=2, evaluation=evaluation),
        plan(group=[{"rule": stream, "codec": sent, "clip": 1.0}]),
        plan(privacy=CLIENT | {"placement": "local"}, group=[group(adaptive={})]),
    ):
        older = json.loads(made.text)
        body = older["plan"]
        (own,) = body["group"]
        former: list[tuple[dict[str, Any], str, Any, Any]] = [
            (body["cipher"], "envelope_versions", 10, 1),
            (own["optimizer"]["schedule"], "total_steps", 100, 3),
        ]
        if "replicas" in body:
            former.append((body, "shards_wait", 600.0, 5.0))
            former.append((body["evaluation"], "bits", None, 24))
        if "codec" in own:
            former.append((own["codec"][0], "every", None, 3))
            former.append((own["codec"][2], "deviations", 3.0, 2.0))
        if "adaptive" in own:
            former.append((own["adaptive"], "rate", 0.2, 1.0))
        for table, key, default, other in former:
            assert table[key] == default
            table[key] = other
        own["tier"] = "mapped"
        assert Plan.from_text(json.dumps(older)) == made


def test_an_unsound_text_is_refused_too() -> None:
    text = plan().text.replace('"quorum":5', '"quorum":4')
    with pytest.raises(PlanRefused, match="below the minimum cohort"):
        Plan.from_text(text)


def test_two_plans_differ_in_the_keys_that_are_told() -> None:
    one, longer = plan(), plan(versions=5, training={"lr": 0.5})
    assert different_keys(one.text, longer.text) == ("training.lr", "versions")
    assert different_keys(longer.text, one.text) == ("training.lr", "versions")
    later = plan(group=[group({"deadline": 5.0})])
    assert different_keys(one.text, later.text) == ("group.0.rule.deadline",)


# --- files ------------------------------------------------------------------------


def test_the_initial_file_is_pinned_by_its_digest(tmp_path: Path) -> None:
    (tmp_path / "v0.safetensors").write_bytes(b"model")
    path = write(tmp_path, 'initial = "v0.safetensors"')
    made = load_plan(path)
    assert made.initial_digest == file_digest(b"model").hex()
    assert made.section.initial == str((tmp_path / "v0.safetensors").resolve())
    assert Plan.from_text(made.text) == made
    (tmp_path / "v0.safetensors").write_bytes(b"other")
    other = load_plan(path)
    assert other.initial_digest == file_digest(b"other").hex()
    assert other.text != made.text


def test_plans_agree_wherever_their_initial_file_lies(tmp_path: Path) -> None:
    made = []
    for name, content in (("here", b"model"), ("there", b"model"), ("other", b"another")):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.safetensors").write_bytes(content)
        made.append(load_plan(write(tmp_path / name, f'initial = "{name}.safetensors"')))
    here, there, other = made
    assert here.text != there.text, "each says where its own machine has the file"
    assert here.digest == there.digest != other.digest
    assert different_keys(here.text, there.text) == ()
    assert different_keys(here.text, other.text) == ("initial_digest",)


def test_an_initial_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PlanRefused, match=r"demo\.toml: initial: no file .*v0\.safetensors"):
        load_plan(write(tmp_path, 'initial = "v0.safetensors"'))


def test_files_that_do_not_parse(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        read_toml(tmp_path / "none.toml")
    for data in (b"a = ", b"\xff", b"\xff\xfea"):
        (tmp_path / "bad.toml").write_bytes(data)
        with pytest.raises(ConfigError, match=r"bad\.toml: no TOML file: "):
            read_toml(tmp_path / "bad.toml")
    with pytest.raises(ConfigError, match="Is a directory; name a file in it"):
        read_toml(tmp_path)


def test_the_cipher_has_room_for_the_heaviest_member_that_the_rules_allow() -> None:
    """Its 10 sigma depend on squared weights, not on the number of members."""
    even, faded = (
        plan(
            cipher={"name": "rlwe"},
            group=[{"rule": {"name": "buffered", "buffer": 8, "power": power}}],
        )
        for power in (0.0, 0.5)
    )
    assert even.cipher_parameters.most_weight == 1
    assert faded.cipher_parameters.most_weight == 4
