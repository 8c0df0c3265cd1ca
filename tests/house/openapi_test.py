"""docs/openapi.yaml has every route of the router and no other, and all that it refers to.

    openapi_test.py --route-list build/release/tests/route_list
"""

import argparse
import pathlib
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
    names = [item[method]["operationId"] for item in document["paths"].values() for method in item]
    if len(set(names)) != len(names):
        wrong.append(f"an operationId twice: {sorted(names)}")
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
