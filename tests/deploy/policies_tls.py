"""Rules of certificates and of other files that flags name (policies.py)."""

from manifest_objects import containers, flag, flags, matches, name_of, of_kind, pods

SECRET_FILES = ("tls-key-file", "replica-tls-key-file", "api-keys-file")  # flags


def files_of_flags_are_mounted(objects):
    for where, container in containers(objects):
        mounts = [mount["mountPath"] for mount in container.get("volumeMounts", []) if mount.get("readOnly")]
        for arg in container.get("args", []):
            name, _, path = arg.partition("=")
            if name.endswith("-file") and not any(path.startswith(mount + "/") for mount in mounts):
                yield f"{where}: {path} of {name} is on no volume that is read only"


def names_in_certificates(objects, usage):
    """Secret → the names that its certificate has for this usage."""
    return {item["spec"]["secretName"]: item["spec"].get("dnsNames", [])
            for item in of_kind(objects, "Certificate") if usage in item["spec"].get("usages", [])}


def volume_of(spec, path):
    """The volume that a container's file is on; empty: none."""
    for mount in spec["containers"][0].get("volumeMounts", []):
        if path and path.startswith(mount["mountPath"] + "/"):
            return next(volume for volume in spec["volumes"] if volume["name"] == mount["name"])
    return {}


def secret_of(spec, path):
    """The Secret that a container's file is of; None: of none."""
    return volume_of(spec, path).get("secret", {}).get("secretName")


def secrets_are_for_their_pod_alone(objects):
    """Private keys, and the hashes of API keys, are of a Secret that the pod's group may read and nobody else; no pod
    starts without it."""
    for owner, spec in pods(objects):
        for name in SECRET_FILES:
            for path in flags(spec["containers"][0], name):
                secret = volume_of(spec, path).get("secret", {})
                if secret.get("defaultMode") != 0o440 or secret.get("optional"):
                    yield f"{owner}: {path} of --{name} is not of a Secret with the mode 0440, or that may be missing"


def both_sides_speak_tls_or_none(objects):
    """Where Certificates are in the set, they have the names and usages that the other side asks for."""
    specs = dict(pods(objects))
    routers = {owner: spec for owner, spec in specs.items() if owner.startswith("Deployment/router")}
    engines = {owner: spec for owner, spec in specs.items() if owner.startswith("StatefulSet/")}
    servers, clients = (names_in_certificates(objects, f"{side} auth") for side in ("server", "client"))
    for owner, spec in routers.items():
        router = spec["containers"][0]
        for other, engine_spec in engines.items():
            engine = engine_spec["containers"][0]
            if bool(flags(engine, "tls-cert-file")) != bool(flags(router, "replica-tls-ca-file")):
                yield f"{owner} and {other}: one speaks TLS, the other does not"
            if flags(engine, "tls-client-ca-file") and not flags(router, "replica-tls-cert-file"):
                yield f"{owner} has no certificate for {other}"
            server = secret_of(engine_spec, flag(engine, "tls-cert-file"))
            if server in servers and flag(router, "replica-tls-server-name") not in servers[server]:
                yield f'{other} is called {servers[server]}, {owner} asks for {flag(router, "replica-tls-server-name")}'
        client = secret_of(spec, flag(router, "replica-tls-cert-file"))
        if of_kind(objects, "Certificate") and client and client not in clients:
            yield f"{owner}: the certificate in {client} is none for a client"


def clients_may_call_routers_by_every_name(objects):
    """A Service has four names in a cluster, as long as the caller's distance asks for; a certificate needs them all."""
    servers = names_in_certificates(objects, "server auth")
    for item in of_kind(objects, "Deployment"):
        template = item["spec"]["template"]
        secret = secret_of(template["spec"], flag(template["spec"]["containers"][0], "tls-cert-file"))
        for service in of_kind(objects, "Service") if secret in servers else ():
            if matches(service["spec"]["selector"], template["metadata"]["labels"]):
                name, namespace = service["metadata"]["name"], service["metadata"]["namespace"]
                wanted = {name + rest for rest in (
                    "", f".{namespace}", f".{namespace}.svc", f".{namespace}.svc.cluster.local")}
                for missing in sorted(wanted - set(servers[secret])):
                    yield f"{name_of(item)}: its certificate has not the name {missing}"


def probes_need_no_certificate(objects):
    for where, container in containers(objects, init=False):
        metrics = ("metrics", int(flag(container, "metrics-port") or 0))
        for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
            probe = container.get(kind, {})
            if flags(container, "tls-cert-file") and probe.get("httpGet", {}).get("port") not in metrics:
                yield f"{where}: {kind} asks a port that speaks TLS"
