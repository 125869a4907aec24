#!/usr/bin/env python3
"""The templates in launch/kubernetes contain only fields of their kinds, correctly spelled, and the values runs need.

    kubernetes_test.py CHECKOUT

Reads the subset of YAML that they use, with only Python's standard library. Kubernetes ignores a misspelt field of an
MPIJob. Check by hand with PyPI's kubernetes-validate --strict for the Job, and jsonschema with the MPIJob's schema.
"""
import pathlib
import re
import sys


def scalar(text):
    if text[:1] in "\"'":
        return text[1:-1]
    return int(text) if re.fullmatch(r"\d+", text) else text


def flow(text):
    """Parses {a: b, c: [d, e]}. Returns the Python value and the remaining text."""
    if text[0] in "{[":
        close, items, text = "}" if text[0] == "{" else "]", [], text[1:].lstrip()
        while text[0] != close:
            key = None
            if close == "}":
                key, text = text.split(":", 1)
            value, text = flow(text.strip())
            items.append((key, value))
            text = text.lstrip(", ")
        return (dict(items) if close == "}" else [value for _, value in items]), text[1:].lstrip()
    found = re.match(r"\"[^\"]*\"|'[^']*'|[^,\]}]+", text)
    return scalar(found.group().strip()), text[found.end():].lstrip()


def value_of(text):
    return flow(text)[0] if text[0] in "{[\"'" else scalar(text)


def block(lines, indent):
    """Parses, and removes from `lines`, the leading lines of this indentation or deeper."""
    if lines[0][1].startswith("- "):
        out = []
        while lines and lines[0][0] == indent and lines[0][1].startswith("- "):
            inner = lines[0][1][2:]
            if inner[0] in "{[\"'" or not re.match(r"\w+:( |$)", inner):
                lines.pop(0)
                out.append(value_of(inner))
            else:
                lines[0] = (indent + 2, inner)
                out.append(block(lines, indent + 2))
        return out
    out = {}
    while lines and lines[0][0] == indent and not lines[0][1].startswith("- "):
        key, text = lines.pop(0)[1].split(":", 1)
        assert key not in out, f"{key} is given twice"
        out[key] = value_of(text.strip()) if text.strip() else block(lines, lines[0][0])
    return out


def read(path):
    lines = []
    for line in path.read_text().splitlines():
        line = re.sub(r"(^|\s)#.*", "", line).rstrip()
        if line:
            lines.append((len(line) - len(line.lstrip()), line.lstrip()))
    document = block(lines, 0)
    assert not lines, f"{path}: left over: {lines[0]}"
    return document


class Any:
    """A mapping whose keys Kubernetes does not define, or a list of strings."""


TEXT, NUMBER, TEXTS = str, int, [(str, int)]
SECURITY = {"runAsUser": NUMBER, "runAsGroup": NUMBER, "fsGroup": NUMBER}
CONTAINER = {
    "name": TEXT, "image": TEXT, "workingDir": TEXT, "command": TEXTS, "args": TEXTS,
    "volumeMounts": [{"name": TEXT, "mountPath": TEXT}],
    "readinessProbe": {"tcpSocket": {"port": NUMBER}, "periodSeconds": NUMBER},
    "lifecycle": {"preStop": {"exec": {"command": TEXTS}}},
    "securityContext": {"capabilities": {"add": TEXTS}},
    "resources": {"limits": Any},
}
POD = {
    "restartPolicy": TEXT, "terminationGracePeriodSeconds": NUMBER, "securityContext": SECURITY,
    "volumes": [{"name": TEXT, "persistentVolumeClaim": {"claimName": TEXT}, "emptyDir": {"medium": TEXT, "sizeLimit": TEXT}}],
    "containers": [CONTAINER],
}
REPLICAS = {"replicas": NUMBER, "restartPolicy": TEXT, "template": {"spec": POD}}
KINDS = {
    "MPIJob": {
        "slotsPerWorker": NUMBER, "mpiImplementation": TEXT, "sshAuthMountPath": TEXT, "launcherCreationPolicy": TEXT,
        "runPolicy": {"cleanPodPolicy": TEXT, "backoffLimit": NUMBER},
        "mpiReplicaSpecs": {"Launcher": REPLICAS, "Worker": REPLICAS},
    },
    "Job": {
        "backoffLimit": NUMBER,
        "podFailurePolicy": {"rules": [{
            "action": TEXT, "onExitCodes": {"containerName": TEXT, "operator": TEXT, "values": TEXTS},
            "onPodConditions": [{"type": TEXT, "status": TEXT}]}]},
        "template": {"spec": POD},
    },
}


def check(value, kind, place):
    if kind is Any:
        return
    if isinstance(kind, dict):
        assert isinstance(value, dict), f"{place}: found {value!r}, expected a mapping"
        for key, inner in value.items():
            assert key in kind, f"{place}.{key}: no field of that name, expected one of {', '.join(kind)}"
            check(inner, kind[key], f"{place}.{key}")
    elif isinstance(kind, list):
        assert isinstance(value, list) and value, f"{place}: found {value!r}, expected a list"
        for number, inner in enumerate(value):
            check(inner, kind[0], f"{place}[{number}]")
    else:
        assert isinstance(value, kind), f"{place}: found {value!r}, expected {kind}"


def at(document, place):
    for key in place.split("."):
        document = document[int(key)] if isinstance(document, list) else document[key]
    return document


# Values that differ from the defaults and must not change unnoticed.
WANTED = {
    "mpijob.yaml": {
        "apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob",
        "spec.runPolicy.cleanPodPolicy": "Running",
        "spec.launcherCreationPolicy": "WaitForWorkersReady",
        "spec.mpiReplicaSpecs.Launcher.restartPolicy": "OnFailure",
        "spec.mpiReplicaSpecs.Worker.restartPolicy": "Never",
        "spec.mpiReplicaSpecs.Worker.template.spec.volumes.1.emptyDir.medium": "Memory",
        "spec.mpiReplicaSpecs.Worker.template.spec.containers.0.readinessProbe.tcpSocket.port": 2222,
    },
    "job.yaml": {
        "apiVersion": "batch/v1", "kind": "Job",
        "spec.template.spec.restartPolicy": "Never",  # a podFailurePolicy requires it
        "spec.podFailurePolicy.rules.0.onExitCodes.values": [64, 65, 93],
        "spec.podFailurePolicy.rules.1.onExitCodes.values": [75],
        "spec.template.spec.volumes.1.emptyDir.medium": "Memory",
    },
}


def main():
    checkout = pathlib.Path(sys.argv[1])
    containerfile = (checkout / "launch/container/Containerfile").read_text()
    for name, wanted in WANTED.items():
        document = read(checkout / "launch/kubernetes" / name)
        check({key: document[key] for key in document if key != "spec"},
              {"apiVersion": TEXT, "kind": TEXT, "metadata": {"name": TEXT}}, name)
        check(document["spec"], KINDS[document["kind"]], f"{name}: spec")
        for place, expected in wanted.items():
            found = at(document, place)
            assert found == expected, f"{name}: {place}: found {found!r}, expected {expected!r}"
        version = re.search(r"project\(trivet VERSION ([0-9.]+)", (checkout / "CMakeLists.txt").read_text()).group(1)
        for image in re.findall(r"image: (\S+)", (checkout / "launch/kubernetes" / name).read_text()):
            assert image == f"trivet:{version}", f"{name}: image: found {image}, expected trivet:{version}"
    for text in ("Port 2222", "uid 1000", "/home/trivet/.ssh"):
        assert text in containerfile, f"Containerfile: {text} is what the templates need"
    # The check itself detects a misspelt field.
    document = read(checkout / "launch/kubernetes/mpijob.yaml")
    document["spec"]["runPolicy"]["cleanPodPolcy"] = document["spec"]["runPolicy"].pop("cleanPodPolicy")
    try:
        check(document["spec"], KINDS["MPIJob"], "spec")
    except AssertionError as error:
        assert "cleanPodPolcy" in str(error)
    else:
        raise AssertionError("a misspelt field passes")


if __name__ == "__main__":
    main()
