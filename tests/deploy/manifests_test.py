"""The manifests of deploy/, and the overlays that docs/ shows, without a cluster: they render, have no field that
Kubernetes does not know, give the programs only flags that they take, follow the rules of policies.py, and could be
applied.

Run from the repository's root: .cache/venv/bin/python tests/deploy/manifests_test.py
"""

import copy
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import jsonschema
import kubernetes_validate
import yaml

import doc_overlays
import manifests
import policies

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "support"))
from stub_api_server import stub_api_server  # noqa: E402 - found by the line above

BIN = pathlib.Path(os.environ.get("FLOTILLA_BIN_DIR", "build/release/bin")).resolve()
VERSIONS = ("1.32", "1.37")  # of Kubernetes
NO_FLAG = "--flag-of-no-process"
FOREIGN_IMAGES = {"docker.io/curlimages/curl:8.11.1"}  # of the Job that fills a claim; its reader may set another


def plant(objects, mistake):
    """The objects with the mistake in them."""
    objects = copy.deepcopy(objects)
    by_name = {policies.name_of(item): item for item in objects}
    if "drop" in mistake:
        objects.remove(by_name[mistake["drop"]])
        return objects
    *steps, last = mistake["path"]
    parent = by_name[mistake["object"]]
    for step in steps:
        parent = parent[step]
    if "value" in mistake:
        parent[last] = mistake["value"]
    else:
        del parent[last]
    return objects


def variables(container, objects):
    """What $(NAME) in args means."""
    config = {item["metadata"]["name"]: item["data"] for item in policies.of_kind(objects, "ConfigMap")}
    known = {}
    for source in container.get("envFrom", []):
        known |= config[source["configMapRef"]["name"]]
    return known | {item["name"]: item["value"] for item in container.get("env", [])}


def argv(container, objects):
    """What the container runs, as a command of ours; None: another program."""
    if "command" in container:
        return None
    known = variables(container, objects)
    args = [re.sub(r"\$\((\w+)\)", lambda match: known[match.group(1)], arg) for arg in container["args"]]
    program = "flotilla-router" if "/router:" in container["image"] else "flotilla"
    return [str(BIN / program), *args]


class ManifestsTest(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.texts = manifests.texts()
        cls.ours = list(cls.texts)
        cls.texts |= {name: doc_overlays.rendered(name) for name in doc_overlays.overlays()}
        cls.sets = {name: list(yaml.safe_load_all(text)) for name, text in cls.texts.items()}
        cls.custom = yaml.safe_load((HERE / "custom_schemas.yaml").read_text())
        cls.mistakes = yaml.safe_load((HERE / "planted_mistakes.yaml").read_text())

    def test_every_overlay_and_component_renders(self):
        self.assertIn("overlays/cpu", self.sets)
        self.assertGreaterEqual(len(self.sets), 9)
        for name, objects in self.sets.items():
            self.assertGreaterEqual(len(objects), 8 if policies.of_kind(objects, "Job") else 12, name)
            names = [(policies.name_of(item), item["metadata"].get("namespace")) for item in objects]
            self.assertEqual(len(names), len(set(names)), name)

    def validate(self, item, version):
        """True if a schema says that the object is right; False if there is none. Raises if it is wrong."""
        try:
            used = kubernetes_validate.validate(item, version, strict=True)
            self.assertEqual(used, version, "validated against another version")
            return True
        except kubernetes_validate.SchemaNotFoundError:
            schema = self.custom["schemas"].get(f'{item["apiVersion"]}/{item["kind"]}')
            if schema is None:
                return False
            jsonschema.validate(item, {
                "type": "object", "required": ["spec"], "additionalProperties": False,
                "properties": {"apiVersion": {}, "kind": {}, "spec": schema,
                               "metadata": {"$ref": "#/definitions/metadata"}},
                "definitions": self.custom["definitions"]})
            return True

    def test_kubernetes_knows_every_field(self):
        unknown = set()
        for name, objects in self.sets.items():
            for item in objects:
                for version in VERSIONS:
                    with self.subTest(set=name, object=policies.name_of(item), version=version):
                        if not self.validate(item, version):
                            unknown.add(item["kind"])
        self.assertEqual(unknown, set(), "kinds without a schema")

    def test_the_schemas_see_an_unknown_field(self):
        for kind in ("Deployment", "NetworkPolicy", "HTTPRoute", "GRPCRoute", "ScaledObject", "Certificate"):
            for objects in self.sets.values():
                for item in policies.of_kind(objects, kind)[:1]:
                    wrong = copy.deepcopy(item)
                    wrong["spec"]["replicaz"] = 2
                    with self.assertRaises(jsonschema.ValidationError, msg=kind):
                        self.validate(wrong, VERSIONS[0])

    def refusal(self, command):
        """What the program says of its command line, NO_FLAG added so that it never starts."""
        run = subprocess.run([*command, NO_FLAG], capture_output=True, text=True, timeout=60)
        self.assertEqual(run.returncode, 2, run.stderr)
        return run.stderr.splitlines()[0]

    def test_the_programs_take_every_flag(self):
        """The binaries themselves check names and values; they must mind nothing but NO_FLAG."""
        checked = set()
        for name, objects in self.sets.items():
            for where, container in policies.containers(objects):
                command = argv(container, objects)
                if command is None or tuple(command) in checked:
                    continue
                checked.add(tuple(command))
                self.assertRegex(self.refusal(command), f"^[a-z-]+ has no flag {NO_FLAG};[^;]*$", f"{name}: {where}")
        self.assertGreaterEqual(len(checked), 4)

    def test_a_flag_or_value_that_does_not_exist_is_seen(self):
        router, engine = [str(BIN / "flotilla-router"), "--replica=a:1"], [str(BIN / "flotilla"), "engine"]
        for command in ([*router, "--polcy=round_robin"], [*router, "--policy=fastest"],
                        [*engine, "--kv-cache-memory=lots"], [*engine, "--grpc-prt=1"]):
            self.assertNotEqual(self.refusal(command), f"The following argument was not expected: {NO_FLAG}")

    def test_every_rule_holds(self):
        for name, objects in self.sets.items():
            for rule in policies.RULES:
                with self.subTest(set=name, rule=rule.__name__):
                    self.assertEqual(list(rule(objects)), [])

    def test_every_rule_sees_its_planted_mistakes(self):
        rules = {rule.__name__: rule for rule in policies.RULES}
        self.assertEqual({mistake["rule"] for mistake in self.mistakes}, set(rules))
        for mistake in self.mistakes:
            with self.subTest(**mistake):
                self.assertNotEqual(list(rules[mistake["rule"]](plant(self.sets[mistake["set"]], mistake))), [])

    def test_keys_and_certificates_go_together_in_either_order(self):
        both = ["components/api-keys", "components/mtls"]
        for order in (both, both[::-1]):
            objects = list(yaml.safe_load_all(manifests.on_the_base(*order)))
            router, = [spec for owner, spec in policies.pods(objects) if owner == "Deployment/router"]
            secrets = {volume["secret"]["secretName"] for volume in router["volumes"]}
            self.assertEqual(secrets, {"router-api-keys", "router-tls"})
            self.assertEqual([complaint for rule in policies.RULES for complaint in rule(objects)], [], order)

    def test_the_checksums_are_those_of_the_downloads(self):
        """`flotilla` pins what it fetches; the volume is held to the same file."""
        pinned = dict(re.findall(r"^(\w+)_sha256=(\w{64})$", (manifests.ROOT / "flotilla").read_text(), re.M))
        files = dict(re.findall(r"^(\w+)_file=(\S+)$", (manifests.ROOT / "flotilla").read_text(), re.M))
        sums = {f"{pinned[key]}  {files[key]}" for key in pinned}
        found = set()
        for objects in self.sets.values():
            for item in policies.of_kind(objects, "ConfigMap"):
                if "SHA256SUMS" in item["data"]:
                    found.add(item["data"]["SHA256SUMS"].strip())
        self.assertEqual(found, sums)

    def not_made(self, objects):
        """Images of the objects that build.sh does not make, by the whole name, as a kubelet compares it, but for those
        that nobody says are ours."""
        made = subprocess.run([manifests.DEPLOY / "images/build.sh", "--list"], capture_output=True, text=True, check=True,
                              env={key: value for key, value in os.environ.items() if key != "TAG"}).stdout.split()
        return sorted({image for _, image in policies.images(objects)} - set(made) - FOREIGN_IMAGES)

    def test_every_image_is_one_that_we_build(self):
        everything = [item for name in self.ours for item in self.sets[name]]
        self.assertEqual(self.not_made(everything), [])
        self.assertGreaterEqual(len({image for _, image in policies.images(everything)}), 4)
        version = re.search(r"^project\(.* VERSION (\S+)", (manifests.ROOT / "CMakeLists.txt").read_text(), re.M)[1]
        for wrong in (f"flotilla/router:{version}", f"docker.io/flotilla/router:{version}", "localhost/flotilla/router:0",
                      f"localhost/flotilla/routers:{version}"):
            planted = plant(self.sets["overlays/cpu"], {
                "object": "Deployment/router", "value": wrong,
                "path": ["spec", "template", "spec", "containers", 0, "image"]})
            self.assertEqual(self.not_made(planted), [wrong])

    def test_every_target_of_the_dockerfile_is_made(self):
        dockerfile = (manifests.DEPLOY / "images/Dockerfile").read_text(encoding="utf-8")
        targets = set(re.findall(r"^FROM \S+ AS (\S+)$", dockerfile, re.M)) - {"roots", "base"}
        titles = re.findall(r'org.opencontainers.image.title="flotilla/(\S+)"', dockerfile)
        script = (manifests.DEPLOY / "images/build.sh").read_text(encoding="utf-8")
        self.assertEqual(set(re.search(r"^every=\((.*)\)$", script, re.M)[1].split()), targets)
        self.assertEqual(set(titles), targets)

    def test_nothing_in_the_overlays_of_docs_is_idle(self):
        pages = {name.partition(":")[0] for name in doc_overlays.overlays()}
        self.assertEqual(pages, {"docs/deploying.md", "docs/observability.md"})
        for name, overlay in doc_overlays.overlays().items():
            with self.subTest(name):
                self.assertEqual(doc_overlays.idle_entries(overlay), [])

    def test_mistakes_in_a_page_are_seen(self):
        patch = ("patches:\n  - target: {kind: %s, name: %s}\n    patch: |-\n"
                 "      - {op: replace, path: %s, value: 3}\n")
        for text, idle in ((patch % ("StatefulSet", "engines", "/spec/replicas"), ["patches[0]"]),
                           (patch % ("Deployment", "engine", "/spec/replicas"), ["patches[0]"]),
                           (patch % ("StatefulSet", "engine", "/spec/replicas"), []),
                           ("images:\n  - {name: flotilla/router, newTag: x}\n", ["images[0]"]),
                           ("nameSuffix: ''\n", ["nameSuffix"])):
            (overlay,) = doc_overlays.in_page(f"# A page\n\n```\n{text}```\n", "docs/page.md").values()
            self.assertEqual(doc_overlays.idle_entries(overlay), idle, text)
        for wrong in (patch % ("StatefulSet", "engine", "/spec/scale/replicas"),
                      "configMapGenerator:\n  - {name: engines-model, behavior: merge, literals: [A=b]}\n",
                      "components:\n  - ../../components/model-pv\n"):
            (overlay,) = doc_overlays.in_page(f"```\n{wrong}```\n", "docs/page.md").values()
            with self.assertRaises(AssertionError, msg=wrong):
                doc_overlays.idle_entries(overlay)
        with self.assertRaises(yaml.YAMLError):
            doc_overlays.in_page("```\npatches:\n  - a: b\n c: d\n```\n", "docs/page.md")

    def other_volumes(self, script):
        """Where try.sh gives the images other writable folders than overlays/cpu gives the pods: pod → both."""
        found = {}
        for owner, spec in policies.pods(self.sets["overlays/cpu"]):
            sizes = {volume["name"]: volume["emptyDir"]["sizeLimit"] for volume in spec.get("volumes", [])}
            asked = {mount["mountPath"].lstrip("/"): sizes[mount["name"]]
                     for mount in spec["containers"][0].get("volumeMounts", [])}
            name = spec["containers"][0]["name"]
            given = dict(each.split("=") for each in re.search(rf"^{name}_volumes='(.*)'$", script, re.M)[1].split())
            if asked != {folder: size.replace("m", "Mi") for folder, size in given.items()}:
                found[owner] = (asked, given)
        return found

    def test_images_are_tried_with_the_volumes_of_the_pods(self):
        script = (manifests.DEPLOY / "images/try.sh").read_text(encoding="utf-8")
        self.assertEqual(self.other_volumes(script), {})
        for wrong in (script.replace("run/flotilla=16m", "run/flotilla=1024m"), script.replace(" var/lib/flotilla=1040m", ""),
                      script.replace("router_volumes=''", "router_volumes='tmp=16m'")):
            self.assertEqual(len(self.other_volumes(wrong)), 1)

    def dry_run(self, server, text):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "all.yaml")
            file.write_text(text)
            return subprocess.run(
                ["kubectl", "apply", "--dry-run=client", "--validate=false", f"--server={server}",
                 f"--cache-dir={folder}/cache", "-f", file],
                capture_output=True, text=True, timeout=60, env=os.environ | {"KUBECONFIG": os.devnull})

    def test_kubectl_would_apply_everything(self):
        with stub_api_server() as server:
            for name, objects in self.sets.items():
                run = self.dry_run(server, self.texts[name])
                self.assertEqual((run.returncode, run.stderr), (0, ""), name)
                self.assertEqual(run.stdout.count(" created (dry run)\n"), len(objects), name)
            run = self.dry_run(server, self.texts["overlays/cpu"].replace("StatefulSet", "StatefullSet"))
            self.assertIn('no matches for kind "StatefullSet"', run.stderr)


if __name__ == "__main__":
    skipped = manifests.why_skipped()
    if skipped:
        print(f"skipped: {skipped}")
        sys.exit(manifests.SKIPPED)
    unittest.main()
