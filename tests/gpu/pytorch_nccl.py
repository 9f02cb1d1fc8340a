#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/gpu/pytorch_nccl.py [RANKS]: NCCL's collectives, and a step of data-parallel training, a process a device.

RANKS: processes and devices (all that there are). Prints of each collective the digest of what every rank got, in the
order of ranks, the losses of DistributedDataParallel, and by what NCCL's channels went, as its log says: the order of a
sum depends on how many there are.
"""

import collections
import hashlib
import os
import pathlib
import re
import socket
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def digest(tensor):
    return hashlib.sha256(tensor.cpu().numpy().tobytes()).hexdigest()[:16]


def channels(log):
    """'P2P/CUMEM 24': how many channels to others went by what."""
    ways = collections.Counter(re.findall(r"Channel \d+\S* : .* via (\S+)", log.read_text(errors="replace")))
    return ", ".join(f"{way} {count}" for way, count in sorted(ways.items())) or "none"


def rank_main(rank, ranks, port, folder, answers):
    log = pathlib.Path(folder) / f"rank{rank}"
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,P2P,SHM",
                      NCCL_DEBUG_FILE=str(log))
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=ranks, device_id=torch.device("cuda", rank))
    torch.manual_seed(97 + rank)
    said = []
    for count in (1, 1000, 1 << 20, 1 << 24):
        values = torch.randn(count).cuda()
        dist.all_reduce(values)
        said.append(f"all_reduce of {count}: {digest(values)}")
    values = torch.randn(1 << 16).cuda()
    dist.broadcast(values, src=ranks - 1)
    said.append(f"broadcast: {digest(values)}")
    gathered = [torch.empty(5000, device="cuda") for _ in range(ranks)]
    dist.all_gather(gathered, torch.randn(5000).cuda())
    said.append(f"all_gather: {digest(torch.cat(gathered))}")
    part = torch.empty(4096, device="cuda")
    dist.reduce_scatter(part, list(torch.randn(ranks, 4096).cuda()))
    said.append(f"reduce_scatter: {digest(part)}")
    torch.manual_seed(5)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 256).cuda(), device_ids=[rank])
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(7 + rank)
    for step in range(3):
        loss = model(torch.randn(32, 256).cuda()).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        said.append(f"step {step} loss {loss.item():.9g}")
    dist.destroy_process_group()
    said.append(f"channels: {channels(log)}")
    answers.put((rank, said))


def main():
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else torch.cuda.device_count()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    answers = mp.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="nccl-") as folder:
        mp.spawn(rank_main, args=(ranks, port, folder, answers), nprocs=ranks)
    for rank, said in sorted(answers.get() for _ in range(ranks)):
        for line in said:
            print(f"rank {rank}: {line}")


if __name__ == "__main__":
    main()
