"""Compiles kernels for a device that is not there, and reads what became of them.

    python -m tests.kits.device_code FOLDER       writes NAME.ptx, and NAME.sass, of every kernel

Triton compiles for any device with what it brings, in a process in which it does not interpret.
Every number that is loaded from memory counts as data, and whatever is computed from it.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HOPPER = 90
"""Compute capability 9.0: an H100 or H200."""

_LINE = re.compile(r"^\s*(?:@(!?)(%p\d+)\s+)?([a-z][\w.:]*)\s+(.*);")
_NAME = re.compile(r"%[a-z]+\d+")
DIVISIONS = ("div.", "rem.")
BRANCHES = ("bra", "brx", "call")
TOUCHES = (
    "ld.global",
    "st.global",
    "ld.shared",
    "st.shared",
    "ld.local",
    "st.local",
    "atom",
    "red",
)


def complaints(ptx: str) -> Iterator[str]:
    """Divisions; branches on data; addresses that have some; memory touched only by some data."""
    lines = [found.groups() for line in ptx.splitlines() if (found := _LINE.match(line))]
    tainted, before = set[str](), -1
    while before < len(tainted):
        before = len(tainted)
        for _, predicate, operation, operands in lines:
            made, _, rest = operands.partition("[" if operation.startswith(TOUCHES) else ",")
            loads = operation.startswith(("ld.global", "ld.shared", "ld.local"))
            data = loads or tainted & ({predicate} | set(_NAME.findall(rest)))
            if data and not operation.startswith(("st.", "bar", *BRANCHES)):
                tainted.update(_NAME.findall(made if loads else operands.partition(",")[0]))
    for _, predicate, operation, operands in lines:
        inside = re.findall(r"\[(.*?)\]", operands)
        if operation.startswith(DIVISIONS):
            yield f"divides: {operation} {operands}"
        if operation.startswith(BRANCHES) and tainted & {predicate, *_NAME.findall(operands)}:
            yield f"branches: {operation} {operands}"
        if operation.startswith(TOUCHES):
            if tainted & set(_NAME.findall(" ".join(inside))):
                yield f"looks up: {operation} {operands}"
            if predicate in tainted:
                yield f"touches by data: {operation} {operands}"


def branches(sass: str) -> list[str]:
    """The branches of machine code but the endless loop behind its end."""
    found = re.findall(r"/\*([0-9a-f]+)\*/\s+((?:@!?U?P\d+ )?(?:BRA|BRX|JMP|CALL)\b[^;]*);", sass)
    return [text for at, text in found if f"0x{int(at, 16):x}" not in text]


def compiled(kernel: Any, types: list[str], constants: dict[str, int], warps: int) -> Any:
    """A kernel for HOPPER, with the hints that its callers' arguments would give."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    rest = iter(types)
    signature = {
        name: "constexpr" if name in constants else next(rest) for name in kernel.arg_names
    }
    aligned = [at for at, name in enumerate(signature) if signature[name].startswith("*")]
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs=constants,
        attrs={(at,): [["tt.divisibility", 16]] for at in aligned},
    )
    options = {"num_warps": warps, "enable_fp_fusion": False}
    return triton.compile(source, target=GPUTarget("cuda", HOPPER, 32), options=options)


def write(folder: Path) -> None:
    """Compiles every kernel, of the smallest ring and of one with several words."""
    import triton

    from secureps.gpu.backend import WARPS
    from secureps.gpu.chacha_kernels import key_stream
    from secureps.gpu.open_kernels import decode_narrow, decode_wide, remove_key
    from secureps.gpu.public_kernels import reduce_accepted
    from secureps.gpu.seal_kernels import pack_words, seal_words

    u32, u64 = "*u32", "*u64"
    narrow, wide = {"N": 2048, "LOG": 11, "WORDS": 1}, {"N": 8192, "LOG": 13, "WORDS": 4}
    window = {"WINDOW": 2176, "SPAN": 4096, "N": 2048, "PRIMES": 2}
    decode = {"N": 2048, "PARTS": 2, "LANES": 512}
    wide_types = [*[u32] * 3, u64, "*fp64", u64, "*i64", "*fp64", u64]
    wide_decode = {"N": 8192, "PARTS": 23, "WORDS": 4, "TOGETHER": 6, "LANES": 512}
    seal, remove = [*[u32] * 9, u64, u32], [u64, *[u32] * 7]
    wanted = {
        "key_stream": (key_stream, [u32, u32, "u32", "u32", "i32"], {"LANES": 256}, 4),
        "seal_narrow": (seal_words, seal, narrow | {"PARTS": 2}, WARPS[2048]),
        "seal_wide": (seal_words, seal, wide | {"PARTS": 23}, WARPS[8192]),
        "pack_words": (pack_words, [u64, u64, "i32"], {"LANES": 256}, 4),
        "reduce_accepted": (reduce_accepted, [u32] * 4, window, 2 * WARPS[2048]),
        "remove_key": (remove_key, remove, narrow, WARPS[2048]),
        "decode_narrow": (decode_narrow, [u32] * 3 + [u64, "*i64", "*fp64", u64], decode, 4),
        "decode_wide": (decode_wide, wide_types, wide_decode, 4),
    }
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    for name, (kernel, types, constants, warps) in wanted.items():
        made = compiled(kernel, types, constants, warps)
        (folder / f"{name}.ptx").write_text(made.asm["ptx"])
        binary = folder / f"{name}.cubin"
        binary.write_bytes(made.asm["cubin"])
        told = subprocess.run(
            [tools / "cuobjdump", "-sass", binary], capture_output=True, text=True, check=True
        )
        (folder / f"{name}.sass").write_text(told.stdout)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
