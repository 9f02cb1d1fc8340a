#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/gpu/jax_check.py: JAX: compiled functions, gradients, random numbers, a loop and a convolution.

Inputs come from NumPy with a fixed seed. The last line is a digest of all results.
"""

import hashlib
import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # the device may be shared
os.environ.setdefault("XLA_FLAGS", "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0")

import jax  # noqa: E402  after the variables above
import jax.numpy as jnp  # noqa: E402
import numpy  # noqa: E402

assert jax.devices()[0].platform == "gpu", jax.devices()
random = numpy.random.default_rng(11)
a = random.standard_normal((256, 256)).astype(numpy.float32)
results = {}
results["matmul"] = jax.jit(lambda x: x @ x.T)(a)
numpy.testing.assert_allclose(results["matmul"], a @ a.T, rtol=5e-2, atol=5e-1)
results["elementwise"] = jax.jit(lambda x: jnp.tanh(x) * jnp.exp(-x * x))(a)
numpy.testing.assert_allclose(results["elementwise"], numpy.tanh(a) * numpy.exp(-a * a), rtol=1e-3, atol=1e-5)
results["gradient"] = jax.jit(jax.grad(lambda x: (jnp.sin(x) ** 2).sum()))(a)
results["random"] = jax.random.normal(jax.random.PRNGKey(3), (1024,))
results["loop"] = jax.jit(lambda x: jax.lax.fori_loop(0, 50, lambda i, v: v * 0.99 + i, x))(a)
image = random.standard_normal((1, 16, 32, 32)).astype(numpy.float32)
taps = random.standard_normal((8, 16, 3, 3)).astype(numpy.float32)
results["convolution"] = jax.jit(lambda x, w: jax.lax.conv(x, w, (1, 1), "SAME"))(image, taps)
results["sort"] = jax.jit(jnp.sort)(a.ravel())
numpy.testing.assert_array_equal(results["sort"], numpy.sort(a.ravel()))

digest = hashlib.sha256()
for name, value in results.items():
    array = numpy.asarray(value)
    print(f"{name} sum {float(numpy.abs(array).sum(dtype='float64')):.9g}")
    digest.update(numpy.ascontiguousarray(array).tobytes())
print("digest", digest.hexdigest()[:32])
