#!/usr/bin/env python3
"""Checks that TensorBoard itself (pip install tensorboard) reads each step once, in order, from a folder of events.

    tests/read_tensorboard.py FOLDER
"""
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0})
events.Reload()
failed = 0
for tag in events.Tags()["scalars"]:
    steps = [event.step for event in events.Scalars(tag)]
    once = steps == sorted(set(steps))
    failed += not once
    print(f"{'ok' if once else 'FAILED'}: {tag}: {len(steps)} steps, {steps[0]} to {steps[-1]}")
sys.exit(failed > 0)
