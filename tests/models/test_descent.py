"""Fitting computes products in bf16 where the processor multiplies in it, and in fp32 elsewhere."""

import pytest
import torch

from helpers.formats import PRODUCTS, cpuinfo, instructions
from helpers.models._torch.descent import mixed_precision

# as /proc/cpuinfo has them: of an AVX2 processor, of one with AVX-512, and of two that know bf16
FLAGS = {
    "fpu sse4_2 fma avx2": torch.float32,
    "fpu avx2 avx512f avx512bw avx512_vnni": torch.float32,
    "fpu avx2 avx512f avx512_vnni avx512_bf16": torch.bfloat16,
    "fpu avx2 avx512f avx512_bf16 amx_bf16 amx_tile": torch.bfloat16,
}


def computed():
    """The precision of a product that is fitted."""
    with mixed_precision():
        return (torch.ones(2, 2) @ torch.ones(2, 2)).dtype


@pytest.mark.parametrize("flags", FLAGS)
def test_products_are_in_bf16_only_where_the_processor_has_instructions_for_it(flags, monkeypatch):
    known = {name: name in flags.split() for name in ("avx2", "avx512_vnni", *PRODUCTS["bf16"])}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: known)

    assert computed() is FLAGS[flags]


def test_on_this_processor_torch_knows_the_instructions_that_linux_lists():
    assert "avx2" in cpuinfo("flags").split()

    expected = torch.bfloat16 if instructions("bf16") else torch.float32

    assert computed() is expected


def test_the_setting_ends_with_the_block():
    computed()

    assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.float32
