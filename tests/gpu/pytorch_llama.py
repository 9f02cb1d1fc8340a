#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/gpu/pytorch_llama.py: a Llama of 1.1 billion parameters with random weights, in bf16: generates and trains.

Nothing is downloaded: the weights are drawn on the CPU with a fixed seed. Prints the parameters' number, the ids of
32 tokens (greedy), the losses of three training steps, and as the last line a digest of tokens, losses and of what the
last step made of one weight matrix.
"""

import hashlib
import os
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # PyTorch's condition for deterministic GEMMs

import torch  # noqa: E402  after the variable above
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

TOKENS = 32
STEPS = 3

torch.manual_seed(2468)
torch.set_default_dtype(torch.bfloat16)
model = LlamaForCausalLM(LlamaConfig(vocab_size=32000, hidden_size=2048, intermediate_size=5632, num_hidden_layers=22,
                                     num_attention_heads=32, num_key_value_heads=4, max_position_embeddings=2048))
print("parameters", sum(p.numel() for p in model.parameters()))
prompt = torch.randint(0, 32000, (2, 24))
batch = torch.randint(0, 32000, (2, 256))
model.to("cuda")
digest = hashlib.sha256()

started = time.perf_counter()
with torch.no_grad():
    out = model.eval().generate(prompt.to("cuda"), attention_mask=torch.ones_like(prompt).to("cuda"),
                                max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False, pad_token_id=0)
tokens = out[:, prompt.shape[1]:].tolist()
print("tokens", tokens)
print(f"time generation {time.perf_counter() - started:.3f} s")
digest.update(repr(tokens).encode())

torch.use_deterministic_algorithms(True)
optimiser = torch.optim.SGD(model.parameters(), lr=1e-2)
model.train()
started = time.perf_counter()
for step in range(STEPS):
    ids = batch.to("cuda")
    loss = model(input_ids=ids, labels=ids).loss
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    print(f"step {step} loss {loss.item():.9g}")
    digest.update(repr(loss.item()).encode())
print(f"time training {time.perf_counter() - started:.3f} s")
digest.update(model.model.layers[0].mlp.up_proj.weight.detach().float().cpu().numpy().tobytes())
print("digest", digest.hexdigest()[:32])
