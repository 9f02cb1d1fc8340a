#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/gpu/pytorch_features.py NAME: one of the ways in which PyTorch uses the driver, checked and digested.

conv      convolution forward and backward through cuDNN
graph     a CUDA graph of a training-like step, captured once and replayed
async     the cudaMallocAsync allocator (PYTORCH_CUDA_ALLOC_CONF is set here)
segments  expandable segments: virtual memory management
compile   torch.compile, which makes Triton kernels
streams   work on several streams, ordered by events
pinned    pinned memory both ways, asynchronously
"""

import hashlib
import os
import sys

ALLOCATOR = {"async": "backend:cudaMallocAsync", "segments": "expandable_segments:True"}


def conv(torch):
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    model = torch.nn.Conv2d(3, 64, 7).to("cuda")
    x = torch.randn(8, 3, 64, 64).to("cuda").requires_grad_()
    y = model(x)
    y.square().sum().backward()
    return [y, x.grad, model.weight.grad]


def graph(torch):
    a, b = torch.randn(256, 256).to("cuda"), torch.randn(256, 256).to("cuda")
    total = torch.zeros(256, 256, device="cuda")

    def step():
        total.add_(torch.relu(a @ b) * 0.01)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        step()
    for i in range(10):
        a.add_(0.001 * i)
        recorded.replay()
    return [total]


def training(torch):
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10)).to("cuda")
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for size in (16, 64, 256, 32, 128):
        x = torch.randn(size, 256).to("cuda")
        loss = model(x).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return list(model.parameters())


def compiled(torch):
    function = torch.compile(lambda x, y: torch.relu(x @ y) + x.sin())
    x = torch.randn(256, 256).to("cuda")
    return [function(x, x)]


def streams(torch):
    parts = [torch.randn(1 << 18).to("cuda") for _ in range(4)]
    lanes = [torch.cuda.Stream() for _ in parts]
    for lane, part in zip(lanes, parts):
        lane.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(lane):
            for _ in range(20):
                part.mul_(1.01).add_(0.5)
    for lane in lanes:
        torch.cuda.current_stream().wait_stream(lane)
    return [sum(parts)]


def pinned(torch):
    source = torch.randn(1 << 22).pin_memory()
    target = torch.empty(1 << 22).pin_memory()
    on_device = source.to("cuda", non_blocking=True)
    target.copy_(on_device * 2, non_blocking=True)
    torch.cuda.synchronize()
    assert torch.equal(target, source * 2)
    return [target]


KINDS = {"conv": conv, "graph": graph, "async": training, "segments": training, "compile": compiled,
         "streams": streams, "pinned": pinned}


def main():
    name = sys.argv[1]
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if name in ALLOCATOR:
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = ALLOCATOR[name]
    import torch
    torch.manual_seed(99)
    digest = hashlib.sha256()
    for tensor in KINDS[name](torch):
        array = tensor.detach().float().cpu().numpy()
        print(f"{name} shape {array.shape} sum {float(array.sum(dtype='float64')):.9g}")
        digest.update(array.tobytes())
    print("digest", digest.hexdigest()[:32])


if __name__ == "__main__":
    main()
