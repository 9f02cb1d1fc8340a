#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/gpu/triton_check.py: kernels of Triton: elementwise, a matrix product, a soft maximum.

Inputs come from a fixed seed on the CPU; results are compared with PyTorch's. The last line is a digest.
"""

import hashlib

import torch
import triton
import triton.language as tl


@triton.jit
def add_kernel(x, y, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < count
    tl.store(out + at, tl.load(x + at, mask) + tl.load(y + at, mask), mask)


@triton.jit
def softmax_kernel(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + at, at < columns, other=-float("inf"))
    values = tl.exp(values - tl.max(values, 0))
    tl.store(out + row * columns + at, values / tl.sum(values, 0), at < columns)


@triton.jit
def matmul_kernel(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        inner = k + tl.arange(0, BK)
        total += tl.dot(tl.load(a + rows[:, None] * K + inner[None, :]),
                        tl.load(b + inner[:, None] * N + columns[None, :]))
    tl.store(c + rows[:, None] * N + columns[None, :], total)


torch.manual_seed(5)
digest = hashlib.sha256()


def check(name, got, expected, **tolerance):
    torch.testing.assert_close(got, expected, **tolerance)
    array = got.float().cpu().numpy()
    print(f"{name} sum {float(array.sum(dtype='float64')):.9g}")
    digest.update(array.tobytes())


x, y = torch.randn(98432).to("cuda"), torch.randn(98432).to("cuda")
out = torch.empty_like(x)
add_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, out, x.numel(), BLOCK=1024)
check("add", out, x + y)

m = torch.randn(256, 781).to("cuda")
out = torch.empty_like(m)
softmax_kernel[(m.shape[0],)](m, out, m.shape[1], BLOCK=1024)
check("softmax", out, torch.softmax(m, 1), rtol=1e-4, atol=1e-6)

a = torch.randn(256, 512).to("cuda", torch.float16)
b = torch.randn(512, 384).to("cuda", torch.float16)
c = torch.empty(256, 384, device="cuda", dtype=torch.float32)
matmul_kernel[(256 // 64, 384 // 64)](a, b, c, 256, 384, 512, BM=64, BN=64, BK=32)
check("matmul", c, a.float() @ b.float(), rtol=1e-2, atol=1e-1)

print("digest", digest.hexdigest()[:32])
