#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/gpu/pytorch_gpt2.py [AGAIN]: GPT-2 small with random weights generates 32 tokens, greedily.

Nothing is downloaded: the weights are drawn on the CPU with a fixed seed. Prints the token ids, in half and
in single precision, and as the last line their digest. AGAIN: how often it generates the same once more after the
first time, which loads the libraries' kernels; each is timed.
"""

import hashlib
import sys
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel

TOKENS = 32
again = int(sys.argv[1]) if len(sys.argv) > 1 else 0

digest = hashlib.sha256()
for dtype in (torch.float32, torch.float16):
    torch.manual_seed(4321)
    model = GPT2LMHeadModel(GPT2Config(n_layer=12, n_head=12, n_embd=768)).eval()
    prompt = torch.randint(0, 50000, (1, 16))
    model.to("cuda", dtype=dtype)
    for name in ("time", *("again" for _ in range(again))):
        started = time.perf_counter()
        with torch.no_grad():
            out = model.generate(prompt.to("cuda"), attention_mask=torch.ones_like(prompt).to("cuda"),
                                 max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False, pad_token_id=0)
        tokens = out[0, prompt.shape[1]:].tolist()
        seconds = time.perf_counter() - started
        if name == "time":
            print(dtype, "tokens", tokens)
        print(f"{name} {dtype} {seconds:.4f} s")
        digest.update(repr(tokens).encode())
print("digest", digest.hexdigest()[:32])
