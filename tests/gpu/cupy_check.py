#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/gpu/cupy_check.py: CuPy: run-time compiled kernels, cuBLAS, cuFFT, pools, streams and graphs.

Inputs come from NumPy with a fixed seed and results are compared with NumPy's; the last line is a digest.
"""

import hashlib

import cupy
import numpy

random = numpy.random.default_rng(7)
a = random.standard_normal((512, 512)).astype(numpy.float32)
b = random.standard_normal((512, 512)).astype(numpy.float32)
results = {}

left, right = cupy.asarray(a), cupy.asarray(b)
results["matmul"] = cupy.asnumpy(left @ right)
numpy.testing.assert_allclose(results["matmul"], a @ b, rtol=2e-3, atol=2e-2)

results["elementwise"] = cupy.asnumpy(cupy.sin(left) * right + 1)
numpy.testing.assert_allclose(results["elementwise"], numpy.sin(a) * b + 1, rtol=1e-4, atol=1e-5)

results["sum"] = cupy.asnumpy(left.sum(axis=0))
numpy.testing.assert_allclose(results["sum"], a.sum(axis=0), rtol=1e-3, atol=1e-2)

kernel = cupy.RawKernel("""
extern "C" __global__ void scale(const float* in, float* out, float factor, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = in[i] * factor;
}""", "scale")
out = cupy.empty_like(left)
kernel((left.size // 256,), (256,), (left, out, numpy.float32(3), numpy.int32(left.size)))
results["raw"] = cupy.asnumpy(out)
numpy.testing.assert_array_equal(results["raw"], a * numpy.float32(3))

results["fft"] = cupy.asnumpy(cupy.fft.fft(left[0]))
numpy.testing.assert_allclose(results["fft"], numpy.fft.fft(a[0]), rtol=1e-3, atol=1e-2)

results["sort"] = cupy.asnumpy(cupy.sort(left.ravel()))
numpy.testing.assert_array_equal(results["sort"], numpy.sort(a.ravel()))

if cupy.cuda.runtime.deviceGetAttribute(115, 0):  # cudaDevAttrMemoryPoolsSupported
    cupy.cuda.set_allocator(cupy.cuda.malloc_async)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        pooled = cupy.asarray(a) * 2
        stream.synchronize()
        results["pool"] = cupy.asnumpy(pooled)
    numpy.testing.assert_array_equal(results["pool"], a * 2)
    del pooled
    cupy.cuda.set_allocator(cupy.cuda.MemoryPool().malloc)
else:
    print("no memory pools here: that part is left out")

stream = cupy.cuda.Stream(non_blocking=True)
counter = cupy.zeros(256, dtype=cupy.float32)
with stream:
    counter += 1
    stream.synchronize()
    stream.begin_capture()
    counter += 1
    graph = stream.end_capture()
    for _ in range(10):
        graph.launch(stream)
    stream.synchronize()
results["graph"] = cupy.asnumpy(counter)
numpy.testing.assert_array_equal(results["graph"], numpy.full(256, 11, numpy.float32))

digest = hashlib.sha256()
for name, value in results.items():
    print(f"{name} sum {float(numpy.abs(value).sum()):.9g}")
    digest.update(numpy.ascontiguousarray(value).tobytes())
print("digest", digest.hexdigest()[:32])
