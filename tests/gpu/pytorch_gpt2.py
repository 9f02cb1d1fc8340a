#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/gpu/pytorch_gpt2.py [turns]: GPT-2 small with random weights generates 32 tokens, greedily.

Nothing is downloaded: the weights are drawn on the CPU with a fixed seed. Prints the token ids, in single and
in half precision, and as the last line their digest.

turns: says "ready" then, and generates the same once more for each line on standard input that names a type
(float32, float16), answering with "again TYPE SECONDS", so that processes that run elsewhere can take turns with it. The
digest, at the end of the input, is of all that was generated but for what equals the first.
"""

import hashlib
import sys
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel

TOKENS = 32


class Generator:
    def __init__(self, dtype):
        torch.manual_seed(4321)
        self._model = GPT2LMHeadModel(GPT2Config(n_layer=12, n_head=12, n_embd=768)).eval()
        self._prompt = torch.randint(0, 50000, (1, 16))
        self._model.to("cuda", dtype=dtype)

    def run(self):
        """(tokens, seconds)"""
        started = time.perf_counter()
        with torch.no_grad():
            out = self._model.generate(self._prompt.to("cuda"), attention_mask=torch.ones_like(self._prompt).to("cuda"),
                                       max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False, pad_token_id=0)
        tokens = out[0, self._prompt.shape[1]:].tolist()
        return tokens, time.perf_counter() - started


digest = hashlib.sha256()
generators, first = {}, {}
for name in ("float32", "float16"):
    generators[name] = Generator(getattr(torch, name))
    first[name], seconds = generators[name].run()
    print(name, "tokens", first[name])
    print(f"time {name} {seconds:.4f} s")
    digest.update(repr(first[name]).encode())
if sys.argv[1:] == ["turns"]:
    print("ready", flush=True)
    for line in sys.stdin:
        name = line.strip()
        tokens, seconds = generators[name].run()
        print(f"again {name} {seconds:.6f}", flush=True)
        if tokens != first[name]:
            digest.update(repr(tokens).encode())
print("digest", digest.hexdigest()[:32])
