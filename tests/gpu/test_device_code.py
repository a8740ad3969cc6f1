"""What a compiler makes of the kernels for an H100, without one: all compile, and secrets stay so.

Those that touch a secret have no division, no branch and no address that depends on data.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from secureps.gpu.device import INTERPRETER
from tests.kits.device_code import branches, complaints
from tests.kits.nursery import ROOT

pytest.importorskip("triton", reason="Triton is not installed: make gpu")

SECRETIVE = ("key_stream", "seal_narrow", "seal_wide", "pack_words")
"""Kernels that work on secrets, or on ciphertexts on their way out."""
LOOPS = {"key_stream": 1, "seal_narrow": 0, "seal_wide": 2, "pack_words": 0}
"""Loops of public lengths: of rounds, and of the digits of a coefficient for each prime."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("kernels")
    around = {name: value for name, value in os.environ.items() if name != INTERPRETER}
    around |= {"TRITON_CACHE_DIR": str(made / "cache")}
    command = [sys.executable, "-m", "tests.kits.device_code", str(made)]
    done = subprocess.run(command, cwd=ROOT, env=around, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return made


@pytest.mark.parametrize("name", SECRETIVE)
def test_no_division_branch_or_look_up_depends_on_data(name: str, folder: Path) -> None:
    assert not list(complaints((folder / f"{name}.ptx").read_text()))
    machine_code = (folder / f"{name}.sass").read_text()
    found = branches(machine_code)
    assert len(found) == LOOPS[name], found
    assert "STL" not in machine_code, "a secret is spilled to memory that nobody wipes"


def test_every_stage_waits_for_the_one_before(folder: Path) -> None:
    """A barrier after each of 11 stages and before the first, for both primes of a word."""
    assert (folder / "seal_narrow.ptx").read_text().count("bar.sync") >= 2 * (11 + 1)
    assert (folder / "remove_key.ptx").read_text().count("bar.sync") >= 11 + 1


def test_the_public_kernels_look_up_by_data_and_the_reader_sees_it(folder: Path) -> None:
    said = list(complaints((folder / "reduce_accepted.ptx").read_text()))
    assert any(each.startswith("looks up: st.global") for each in said)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("div.u32 %r3, %r1, 7;", "divides"),
        ("@%p1 bra $L1;", "branches"),
        ("ld.global.b32 { %r3 }, [ %rd2 + 0 ];", "looks up"),
        ("@!%p1 st.global.b32 [ %rd9 + 0 ], { %r9 };", "touches by data"),
    ],
)
def test_the_reader_of_code_sees_what_it_looks_for(line: str, complaint: str) -> None:
    ptx = """
        ld.param.b64 %rd1, [k_param_0];
        ld.global.b32 { %r1 }, [ %rd1 + 0 ];
        add.s32 %r2, %r1, 1;
        setp.eq.b32 %p1, %r2, 0;
        mul.wide.u32 %rd2, %r2, 4;
    """
    assert not list(complaints(ptx + "st.global.b32 [ %rd1 + 0 ], { %r2 };"))
    assert [each.split(":")[0] for each in complaints(ptx + line)] == [complaint]


def test_the_endless_loop_behind_the_end_is_no_branch() -> None:
    sass = """
        /*0340*/              @P0 BRA 0x350 ;
        /*1410*/                  BRA 0x1410;
    """
    assert branches(sass) == ["@P0 BRA 0x350 "]
