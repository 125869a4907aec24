#!/usr/bin/env python3
"""Data-parallel training of a small GPT-2 in PyTorch on the CPU over gloo, as a PyTorch user would write it: the model,
loss and optimizer of torch_step.py in DistributedDataParallel or fully_shard (FSDP2). netlab_bench.py runs it.

Every rank trains on its own batch in fp32; gradients are averaged and clipped to 1. mpirun starts the ranks, which read
their rank from its environment; MASTER_ADDR, and GLOO_SOCKET_IFNAME for the interface, are torch's own variables.
Rank 0 prints one line of JSON: the seconds that each step after the first two took.

    torch_ddp.py --how ddp|fsdp [--bucket-mb M] [--steps K] [--layers L] [--hidden H] [--seq S] [--batch B] [--vocab V]
"""
import argparse
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

import torch_step


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--how", choices=["ddp", "fsdp"], required=True)
    parser.add_argument("--bucket-mb", type=float, default=25, help="of ddp; 25 is torch's default")
    parser.add_argument("--steps", type=int, default=8)
    for name, size in {"layers": 8, "hidden": 384, "seq": 256, "batch": 4, "vocab": 257}.items():
        parser.add_argument("--" + name, type=int, default=size)
    options = parser.parse_args()
    torch_step.BATCH, torch_step.SEQ, torch_step.VOCAB = options.batch, options.seq, options.vocab
    torch_step.HIDDEN, torch_step.HEADS = options.hidden, options.hidden // 64

    rank, ranks = int(os.environ["OMPI_COMM_WORLD_RANK"]), int(os.environ["OMPI_COMM_WORLD_SIZE"])
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29511")
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = torch_step.Gpt(options.layers)
    if options.how == "ddp":
        trained = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=options.bucket_mb,
                                                      gradient_as_bucket_view=True)
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        mesh = init_device_mesh("cpu", (ranks,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        trained = fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    torch.manual_seed(2 + rank)
    tokens = torch.randint(options.vocab, (options.batch, options.seq + 1))

    seconds = []
    for _ in range(options.steps):
        start = time.perf_counter()
        loss = trained(tokens[:, :-1], tokens[:, 1:].contiguous())
        loss.backward()
        nn.utils.clip_grad_norm_(trained.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        seconds.append(time.perf_counter() - start)
    if rank == 0:
        print(json.dumps({"seconds": seconds[2:], "torch": torch.__version__}))
        sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
