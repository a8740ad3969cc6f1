"""Every module of the package has the test that bears its name, in the same room of `tests/`.

What is tested elsewhere is listed here, with the file that tests it.
"""

from __future__ import annotations

import pytest

from tests.kits.nursery import ROOT

ELSEWHERE = {
    # values: what is written and sent is read again, each kind of it
    "golden/test_stored_values.py": (
        "messages/acts",
        "messages/charge",
        "messages/coordinator_records",
        "messages/envelope_keys",
        "messages/evaluation",
        "messages/following",
        "messages/holder_records",
        "messages/member_records",
        "messages/orders",
        "messages/records",
        "messages/requests",
        "messages/moves",
        "messages/scaling",
        "messages/scaling_records",
        "messages/schema",
        "messages/shard_records",
        "messages/steps",
    ),
    "golden/test_format.py": ("messages/format",),
    "roles/coordinator/test_resharding.py": ("roles/coordinator/moving",),
    "run/simulate/test_simulate.py": (
        "run/simulate/coordinator_watch",
        "run/simulate/play",
        "run/simulate/scenario_file",
    ),
    # sections of files, and the page that lists their keys
    "config/test_sections.py": (
        "config/codec",
        "config/optimizer",
        "config/plan",
        "config/plan",
        "config/scaling",
        "config/scenario",
        "config/serve",
    ),
    # kernels and their tables; a cohort's parts; what one machine is made of
    "crypto/test_ntt.py": ("crypto/numpy_ntt",),
    "crypto/test_public.py": ("crypto/public_kernels",),
    "crypto/test_rlwe.py": ("crypto/backend", "crypto/cpu_backend", "crypto/kernels"),
    "crypto/test_rlwe_kernels.py": ("crypto/numpy_seal", "crypto/rlwe_tables"),
    "crypto/test_rlwe_open.py": ("crypto/numpy_open",),
    "crypto/test_words.py": ("crypto/numpy_words",),
    "gpu/test_kernels.py": (
        "gpu/chacha_kernels",
        "gpu/open_kernels",
        "gpu/public_kernels",
        "gpu/seal_kernels",
        "gpu/transform_kernels",
    ),
    "codec/test_grid.py": ("codec/kernels", "codec/rounding"),
    "codec/test_delta.py": ("codec/delta_kernels", "codec/numpy_kernels"),
    "policy/rules/test_rule.py": (
        "policy/rules/buffered",
        "policy/rules/priority",
        "policy/rules/ssp",
    ),
    "policy/rules/test_user_rule.py": ("policy/rules/registry",),
    "policy/explain/test_committee_cost.py": ("policy/envelope_size",),
    "federation/test_replaced_holders.py": ("roles/coordinator/succession",),
    "federation/test_accusing.py": ("policy/cohorts/accusations",),
    "federation/test_evaluation.py": ("policy/checks/evaluation",),
    "roles/test_extreme_lives.py": ("roles/machine", "roles/pinned_run"),
    "roles/coordinator/test_commit.py": ("roles/coordinator/answers",),
    "roles/coordinator/test_coordinator.py": (
        "roles/coordinator/cache",
        "roles/coordinator/checkpoint",
        "roles/coordinator/checkpointing",
        "roles/coordinator/founding",
        "roles/coordinator/group",
        "roles/coordinator/receipts",
        "roles/coordinator/resubscribe",
        "roles/coordinator/sessions",
        "roles/coordinator/tasks",
        "roles/coordinator/transaction",
    ),
    "federation/test_standby.py": (
        "roles/coordinator/seat",
        "service/standby_worker",
    ),
    "processes/test_standby.py": ("run/takeover",),
    "federation/test_scaling.py": (
        "roles/coordinator/load",
        "roles/coordinator/scaled",
    ),
    "federation/test_streams.py": ("roles/coordinator/asynchronous", "policy/base"),
    "federation/test_committee_runs.py": ("roles/coordinator/envelope_checks",),
    "roles/coordinator/test_opening.py": ("roles/coordinator/synchronous",),
    "run/report/test_status_tables.py": ("roles/coordinator/status", "service/snapshot"),
    "run/test_check.py": ("run/script/rehearsal",),
    "roles/holder/test_bfv.py": ("roles/holder/holder", "roles/holder/tasks", "roles/tasks"),
    "roles/member/test_member.py": (
        "roles/member/fold",
        "roles/member/schedule",
        "roles/member/settings",
        "roles/member/tasks",
    ),
    "roles/member/test_member_sends.py": ("roles/member/budget",),
    "federation/test_site_policies.py": ("roles/member/terms",),
    "client/test_site_policy.py": ("config/site",),
    "federation/test_batch_norm.py": ("policy/groups",),
    "policy/checks/test_local_work.py": ("roles/member/timing",),
    "roles/shard/test_shard.py": (
        "roles/shard/fold",
        "roles/shard/keys",
        "roles/shard/state",
        "roles/shard/tasks",
        "roles/validation",
    ),
    # the client and the script that it runs
    "client/test_session.py": ("client/exchange",),
    "client/test_worker.py": (
        "client/integers",
        "client/pulled_block",
        "client/sealing",
        "client/site",
    ),
    "client/test_script_settings.py": ("client/runner",),
    "client/test_torch.py": ("client/global_rng", "client/local_sgd"),
    "client/test_device_update.py": ("client/trained", "client/trained_update"),
    "client/flower/test_script.py": (
        "client/flower/mods",
        "client/flower/settings",
        "client/flower/trainer",
    ),
    "run/test_server_app.py": ("client/flower/served",),
    "flower/test_strategy.py": (
        "flower/aggregator",
        "flower/federation",
        "flower/mod",
        "flower/names",
        "flower/node",
        "flower/trainer",
        "service/one_wave",
    ),
    # servers
    "service/test_executor.py": (
        "service/environment",
        "service/worker",
    ),
    "service/test_logs.py": ("service/log_lines",),
    "federation/test_folds.py": ("roles/holder/fold", "roles/member/state"),
    "store/test_journal.py": ("store/journal_rows",),
    "service/test_limits.py": ("service/disk_faults",),
    "processes/test_shard_memory.py": ("service/malloc",),
    "service/test_checkpoint_copies.py": ("store/copied_checkpoints",),
    "run/simulate/test_ray_cluster.py": ("client/ahead",),
    "service/test_tracing.py": ("service/spans", "service/trace_settings"),
    "processes/test_federation.py": ("service/coordinator_worker",),
    "processes/test_committee.py": ("service/holder/committee_worker",),
    "store/test_keyring.py": ("store/holder_keys", "store/kit_files"),
    "wire/grpc/test_tls.py": (
        "crypto/credentials",
        "crypto/tls",
        "wire/grpc/links",
    ),
    "wire/grpc/test_replays.py": ("wire/grpc/authentication", "wire/grpc/challenges"),
    "wire/grpc/test_resuming.py": ("wire/grpc/uploads",),
    "processes/test_floods.py": ("wire/grpc/admission",),
    "run/test_audit_log.py": ("audit/agreement", "audit/page"),
    "dashboard/test_application.py": ("dashboard/pages",),
    "dashboard/test_dashboard.py": ("dashboard/command",),
    # commands
    "project/test_front_door.py": ("run/api", "tracebacks"),
    "run/test_cli.py": ("run/commands",),
    "run/test_status.py": ("run/status_client",),
    "run/processes/test_fork_server.py": ("run/processes/fork_host",),
    "run/processes/test_supervisor.py": ("run/processes/spawning",),
    "run/up/test_up.py": ("run/assemble", "run/party_names"),
    "processes/test_resume.py": ("run/up/interruption",),
    "test_compiled.py": ("run/warm",),
    "run/report/test_terminal.py": ("run/report/summary",),
    "run/script/test_cut_off.py": ("run/script/no_network",),
    "run/script/test_process.py": ("run/script/channel", "run/script/host"),
    "run/script/test_baselines.py": ("run/script/scoring",),
    "run/deploy/test_kubernetes.py": (
        "run/deploy/commands",
        "run/deploy/files",
        "run/deploy/monitoring",
        "run/deploy/network",
        "run/deploy/pods",
        "run/deploy/workloads",
    ),
    "run/study/test_study.py": ("run/study/results", "run/study/trial"),
    "run/simulate/test_simulation.py": ("scenario/seeds",),
}
"""By the file of a test, the modules of other names that it tests."""


def modules() -> set[str]:
    """All, as `room/name`."""
    package = ROOT / "secureps"
    return {
        str(path.relative_to(package).with_suffix(""))
        for path in package.rglob("*.py")
        if "_pb2" not in path.name and "templates" not in path.parts and path.name[0] != "_"
    }


def has_its_test(module: str) -> bool:
    room, _, name = module.rpartition("/")
    return (ROOT / "tests" / room / f"test_{name}.py").exists()


@pytest.mark.parametrize("module", sorted(modules()))
def test_a_module_has_a_test(module: str) -> None:
    listed = [file for file, others in ELSEWHERE.items() if module in others]
    assert len(listed) + has_its_test(module) == 1, f"{module}: {listed}"


def test_the_list_names_files_and_modules_that_are_there() -> None:
    assert [file for file in ELSEWHERE if not (ROOT / "tests" / file).exists()] == []
    assert {module for others in ELSEWHERE.values() for module in others} <= modules()
