"""Which precisions this processor has in hardware, by the instructions that Linux lists."""

from pathlib import Path

# of products in a precision, the fastest first, under Linux' names
PRODUCTS = {
    "fp32": ("avx512f", "avx2"),
    "bf16": ("amx_bf16", "avx512_bf16"),
    "int8": ("amx_int8", "avx512_vnni", "avx_vnni"),
}


def cpuinfo(field: str) -> str:
    """Return a field of the first processor; empty if there is none of this name."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(field)), "")


def instructions(precision: str) -> tuple[str, ...]:
    """List this processor's instructions for products in a precision, the fastest first."""
    flags = cpuinfo("flags").split()
    return tuple(name for name in PRODUCTS.get(precision, ()) if name in flags)
