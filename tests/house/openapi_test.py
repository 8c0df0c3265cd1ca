"""docs/openapi.yaml has every route of the router and no other, and all that it refers to. docs/migrating.md names routes
that are not there, and others instead that are.

    openapi_test.py --route-list build/release/tests/route_list
"""

import argparse
import pathlib
import re
import subprocess
import sys

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]


def references(value):
    """Every $ref below `value`."""
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"]
        for each in value.values():
            yield from references(each)
    elif isinstance(value, list):
        for each in value:
            yield from references(each)


def resolves(document, reference):
    at = document
    for name in reference.removeprefix("#/").split("/"):
        if not isinstance(at, dict) or name not in at:
            return False
        at = at[name]
    return True


def wrong_in_migrating(page, paths):
    """What the table of routes says amiss."""
    table = page.partition("| not here | instead |\n|---|---|\n")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| (.*?) \| (.*) \|$", table, re.M)
    if len(rows) < 10:
        yield f"docs/migrating.md: {len(rows)} rows of routes"
    for gone, instead in rows:
        for path in re.findall(r"`(/[^`]*)`", gone):
            if path in paths:
                yield f"docs/migrating.md: {path} is there"
        for path in re.findall(r"`(/[^`]*)`", instead):
            if path not in paths | {"/metrics", "/metrics/vllm"}:
                yield f"docs/migrating.md: {path} is no route"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--route-list", type=pathlib.Path, required=True)
    program = parser.parse_args().route_list.resolve()
    run = subprocess.run([program], capture_output=True, text=True, check=True)
    served = set(run.stdout.splitlines())
    assert len(served) > 10, f"{program} prints only {served}"
    document = yaml.safe_load((ROOT / "docs/openapi.yaml").read_text(encoding="utf-8"))
    written = {f"{method.upper()} {path}" for path, item in document["paths"].items() for method in item}
    wrong = [f"not in docs/openapi.yaml: {route}" for route in sorted(served - written)]
    wrong += [f"in docs/openapi.yaml, but the router has no such route: {route}" for route in sorted(written - served)]
    wrong += [f"docs/openapi.yaml refers to {each}, which is not there" for each in sorted(set(references(document)))
              if not resolves(document, each)]
    page = (ROOT / "docs/migrating.md").read_text(encoding="utf-8")
    wrong += wrong_in_migrating(page, set(document["paths"]))
    for mistaken in (page.replace("`/slots`", "`/tokenize`"), page.replace("`/health/ready`", "`/health/generate`"), ""):
        assert len(list(wrong_in_migrating(mistaken, set(document["paths"])))) == 1
    names = [item[method]["operationId"] for item in document["paths"].values() for method in item]
    if len(set(names)) != len(names):
        wrong.append(f"an operationId twice: {sorted(names)}")
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
