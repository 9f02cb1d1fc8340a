#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/gpu/pytorch_mlp.py [STEPS|turns]: trains an MLP with a fixed seed and prints the loss of every tenth step.

The data and the weights are drawn on the CPU, so that what the device adds is arithmetic alone. The last
line, `digest ...`, is the same on two machines exactly if all losses and final weights are.

turns: says "ready" then, and trains TURN_STEPS steps more for each line on standard input, answering with
"again mlp SECONDS", so that processes that run elsewhere can take turns with it.
"""

import hashlib
import os
import sys
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # PyTorch's condition for deterministic GEMMs

import torch  # noqa: E402  after the variable above

TURNS = sys.argv[1:] == ["turns"]
STEPS = int(sys.argv[1]) if len(sys.argv) > 1 and not TURNS else 100
TURN_STEPS = 50

torch.manual_seed(1234)
torch.use_deterministic_algorithms(True)
model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024),
                            torch.nn.ReLU(), torch.nn.Linear(1024, 10))
data = [(torch.randn(64, 512), torch.randint(0, 10, (64,))) for _ in range(8)]
model.to("cuda")
optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
digest = hashlib.sha256()


def train(step):
    """Does that step and returns its loss."""
    x, y = (part.to("cuda", non_blocking=True) for part in data[step % len(data)])
    loss = torch.nn.functional.cross_entropy(model(x), y)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    value = loss.item()
    digest.update(f"{value!r}".encode())
    return value


started = time.perf_counter()
for step in range(STEPS):
    value = train(step)
    if step % 10 == 0 or step == STEPS - 1:
        print(f"step {step} loss {value:.9g}")
print(f"time {time.perf_counter() - started:.3f} s")
if TURNS:
    print("ready", flush=True)
    for _ in sys.stdin:
        started = time.perf_counter()
        for step in range(STEPS, STEPS + TURN_STEPS):
            train(step)
        print(f"again mlp {time.perf_counter() - started:.6f}", flush=True)
for parameter in model.parameters():
    digest.update(parameter.detach().cpu().numpy().tobytes())
print("digest", digest.hexdigest()[:32])
