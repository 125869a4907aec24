#!/usr/bin/env python3
"""Tries the dashboard: a Debian prometheus scrapes a run, and every expression of grafana.json returns a series.

    launch/prometheus/check.py PROGRAM RUN.yaml [ARGUMENT OF trivet train ...]

Needs the packages prometheus and curl; ports 9464 and 9090. RUN.yaml trains for 30 s at least, evaluates and saves.
"""
import json, pathlib, subprocess, sys, tempfile, time, urllib.parse, urllib.request

here = pathlib.Path(__file__).parent


def ask(expression):
    url = "http://127.0.0.1:9090/api/v1/query?" + urllib.parse.urlencode({"query": expression})
    with urllib.request.urlopen(url) as answer:
        return json.load(answer)["data"]["result"]


if len(sys.argv) < 3:
    sys.exit(__doc__)


def wait_for(condition, what, seconds=60):
    end = time.time() + seconds
    while not condition():
        if time.time() > end:
            sys.exit(f"{what}: not within {seconds} s")
        time.sleep(0.5)


def answers(port, path):
    try:
        return urllib.request.urlopen(f"http://127.0.0.1:{port}{path}").status == 200
    except OSError:
        return False


with tempfile.TemporaryDirectory() as folder:
    run = subprocess.Popen([sys.argv[1], "train", *sys.argv[2:], "--set", "prometheus.listen=127.0.0.1:9464"],
                           stdout=subprocess.DEVNULL)
    prometheus = subprocess.Popen(["prometheus", f"--config.file={here}/prometheus.yml", f"--storage.tsdb.path={folder}",
                                   "--web.listen-address=127.0.0.1:9090"], stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: answers(9464, "/metrics") and answers(9090, "/-/ready"), "the run and prometheus")
        # promtool checks the scraped text, too.
        text = urllib.request.urlopen("http://127.0.0.1:9464/metrics").read()
        subprocess.run(["promtool", "check", "metrics"], input=text, check=True)
        for name in ("trivet_loss", "trivet_eval_validation_loss", "trivet_checkpoint_step"):
            wait_for(lambda: ask(name), f"a series {name}")
        time.sleep(11)  # a rate needs two scrapes
        failed = 0
        for panel in json.loads((here / "grafana.json").read_text())["panels"]:
            for target in panel["targets"]:
                expression = target["expr"].replace("$run", ".*")
                found = len(ask(expression))
                optional = "where GPUs" in panel["title"]
                failed += found == 0 and not optional
                print(f"{'ok' if found else 'none' if optional else 'FAILED'}: {found} series of {expression}")
        sys.exit(f"{failed} expressions have no series" if failed else 0)
    finally:
        for process in (run, prometheus):
            process.terminate()
            process.wait()
