"""What the rules of policies.py ask of rendered objects: their pods, containers, images and flags."""

KINDS_WITH_PODS = ("Deployment", "StatefulSet", "DaemonSet", "Job")


def of_kind(objects, *kinds):
    return [item for item in objects if item["kind"] in kinds]


def serving(objects):
    """All but what ends by itself."""
    return [item for item in objects if item["kind"] != "Job"]


def name_of(item):
    return f'{item["kind"]}/{item["metadata"]["name"]}'


def pods(objects):
    """(name, pod's spec) of everything that makes pods."""
    for item in of_kind(objects, *KINDS_WITH_PODS):
        yield name_of(item), item["spec"]["template"]["spec"]


def containers(objects, init=True):
    """(workload/container, container)"""
    for owner, spec in pods(objects):
        for container in spec["containers"] + (spec.get("initContainers", []) if init else []):
            yield f'{owner}/{container["name"]}', container


def images(objects):
    """(where, image) of containers and of volumes."""
    for where, container in containers(objects):
        yield where, container["image"]
    for owner, spec in pods(objects):
        for volume in spec.get("volumes", []):
            if "image" in volume:
                yield f'{owner}/{volume["name"]}', volume["image"]["reference"]


def flags(container, name):
    """The values of each --name=value in args."""
    return [arg.split("=", 1)[1] for arg in container.get("args", []) if arg.startswith(f"--{name}=")]


def flag(container, name):
    """The value of the first --name=value in args; None without it."""
    return next(iter(flags(container, name)), None)


def watches_services(spec):
    return any(flags(container, "replica-service") for container in spec["containers"])


def mebibytes(quantity):
    return int(quantity[:-2]) * {"Mi": 1, "Gi": 1024}[quantity[-2:]]


def matches(selector, labels):
    return all(labels.get(key) == value for key, value in selector.items())


def pod_labels(objects):
    return {name_of(item): item["spec"]["template"]["metadata"]["labels"]
            for item in of_kind(objects, *KINDS_WITH_PODS)}
