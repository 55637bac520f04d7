#!/usr/bin/python3
"""What the packaged programs are made of, as a CycloneDX document on standard output:

    deploy/package/sbom.py REPOSITORY [FEATURE...]

Every crate of Cargo.lock that the four programs need with these features, with version, licence, package URL and the checksum of the registry's
archive, and who needs whom. Crates that only build others have the scope "excluded". The same commit gives the same bytes. It
reads what cargo says, and decides nothing: which licences may be there is deny.toml's.
"""

import datetime
import json
import os
import subprocess
import sys
import tomllib
import uuid

PROGRAMS = ("gradwire-cli", "gradwire-scheduler", "gradwire-server", "gradwire-trainer")


def said(directory, *words):
    return subprocess.run(words, cwd=directory, check=True, capture_output=True, text=True).stdout


def reached(nodes, roots, kinds):
    """Packages that these need by dependencies of these kinds."""
    found, left = set(), list(roots)
    while left:
        here = left.pop()
        if here in found:
            continue
        found.add(here)
        for need in nodes[here]["deps"]:
            if any(kind["kind"] in kinds for kind in need["dep_kinds"]):
                left.append(need["pkg"])
    return found


def purl(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def component(package, checksums, is_linked):
    record = {
        "type": "library",
        "bom-ref": purl(package),
        "name": package["name"],
        "version": package["version"],
        "scope": "required" if is_linked else "excluded",
        "purl": purl(package),
    }
    if package["description"]:
        record["description"] = " ".join(package["description"].split())
    # Some crates still write the old form.
    record["licenses"] = [{"expression": " OR ".join(part.strip() for part in package["license"].split("/"))}]
    checksum = checksums.get((package["name"], package["version"]))
    if checksum:
        record["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    if package["repository"]:
        record["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
    return record


def main():
    root = sys.argv[1]
    host = next(line.split()[1] for line in said(root, "rustc", "-vV").splitlines() if line.startswith("host: "))
    words = ["--locked", "--format-version", "1", "--filter-platform", host, "--features", ",".join(sys.argv[2:])]
    known = json.loads(said(root, "cargo", "metadata", *words))
    with open(os.path.join(root, "Cargo.lock"), "rb") as file:
        lock = tomllib.load(file)["package"]
    checksums = {(each["name"], each["version"]): each["checksum"] for each in lock if "checksum" in each}
    packages = {package["id"]: package for package in known["packages"]}
    nodes = {node["id"]: node for node in known["resolve"]["nodes"]}
    roots = [id for id in known["workspace_members"] if packages[id]["name"] in PROGRAMS]
    linked, all_of_them = reached(nodes, roots, {None}), reached(nodes, roots, {None, "build"})
    in_order = sorted(all_of_them, key=lambda id: purl(packages[id]))
    version = next(packages[id]["version"] for id in roots if packages[id]["name"] == "gradwire-cli")
    whole = {"type": "application", "bom-ref": "gradwire", "name": "gradwire", "version": version}
    whole["licenses"] = [{"expression": "Apache-2.0 OR MIT"}]
    needs = [{"ref": "gradwire", "dependsOn": sorted(purl(packages[id]) for id in roots)}]
    for id in in_order:
        below = {need["pkg"] for need in nodes[id]["deps"] if need["pkg"] in all_of_them}
        needs.append({"ref": purl(packages[id]), "dependsOn": sorted(purl(packages[need]) for need in below)})
    components = [component(packages[id], checksums, id in linked) for id in in_order]
    commit = said(root, "git", "log", "-1", "--format=%H %ct").split()
    seconds = int(os.environ.get("SOURCE_DATE_EPOCH", commit[1]))
    when = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, 'gradwire ' + json.dumps([components, needs, seconds]))}",
        "version": 1,
        "metadata": {
            "timestamp": when.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": whole,
            "properties": [{"name": "gradwire:commit", "value": commit[0]}, {"name": "gradwire:target", "value": host}],
        },
        "components": components,
        "dependencies": needs,
    }
    json.dump(document, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
