"""Checks that each all-reduce in a trace of two ranks ends at the same time on both: traces_agree.py TRACE.json"""
import json, statistics, sys
ends = {1: [], 2: []}
for event in json.load(open(sys.argv[1]))["traceEvents"]:
    if event["name"] == "all_reduce" and event["cat"] == "comm.data":
        ends[event["pid"]].append(event["ts"] + event["dur"])
assert len(ends[1]) == len(ends[2]) > 4, ends
apart = statistics.median(abs(a - b) for a, b in zip(ends[1], ends[2]))
print(f"{len(ends[1])} calls end {apart:.0f} us apart")
sys.exit(apart > 100_000)
