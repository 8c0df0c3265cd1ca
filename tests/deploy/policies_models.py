"""Rules of the volumes that models, and what is made of them, lie on (policies.py)."""

import re

from manifest_objects import containers, flag, of_kind, pods, serving


def claims_are_there_and_can_be_filled(objects):
    modes = {item["metadata"]["name"]: set(item["spec"]["accessModes"])
             for item in of_kind(objects, "PersistentVolumeClaim")}
    for owner, spec in pods(objects):
        for volume in spec.get("volumes", []):
            name = volume.get("persistentVolumeClaim", {}).get("claimName")
            if name and not modes.get(name, set()) & {"ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"}:
                yield f"{owner}: nobody may write to the claim {name}, or there is none"


def only_jobs_write_to_models(objects):
    for where, container in containers(serving(objects)):
        for mount in container.get("volumeMounts", []):
            if mount["mountPath"] == "/models" and not mount.get("readOnly"):
                yield f"{where} may change the models"


def models_are_verified_before_they_are_read(objects):
    """By an init container; by a Job, whose end says that they are right, last."""
    for owner, spec in pods(objects):
        from_volume = [volume["name"] for volume in spec.get("volumes", []) if "persistentVolumeClaim" in volume]
        for volume in from_volume:
            checks = [container for container in spec.get("containers" if owner.startswith("Job/") else "initContainers", [])
                      if re.search(r"\bsha256sum\b", " ".join(container.get("command", [])))
                      and {"--check", "--strict"} <= set(container.get("args", []))
                      and any(mount["name"] == volume for mount in container["volumeMounts"])]
            if not checks:
                yield f"{owner}: nobody compares the files of volume {volume} with their checksums"


def packed_weights_have_room(objects):
    """They are as large as the model. On a volume with a size the pod would be evicted, started anew and evicted."""
    for owner, spec in pods(objects):
        claims = {volume["name"] for volume in spec.get("volumes", []) if "persistentVolumeClaim" in volume}
        for container in spec["containers"]:
            if "engine" not in container.get("args", []):
                continue
            folder = flag(container, "pack-cache-dir") or "auto"
            kept = [mount["mountPath"] for mount in container["volumeMounts"]
                    if mount["name"] in claims and not mount.get("readOnly")]
            if folder != "off" and not any(f"{folder}/".startswith(f"{path}/") for path in kept):
                yield f"{owner}: --pack-cache-dir={folder} is neither off nor on a claim"
