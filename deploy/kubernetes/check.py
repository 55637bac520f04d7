"""Checks the manifests of this directory: schemas, and what only we know (ports, paths, settings, deadlines, what would lock up).

check.py GRADWIRE, a built program. Each check returns what is wrong. For each there is a change to the manifests that it has to notice.
"""

import copy
import pathlib
import re
import subprocess
import sys
import tempfile
import tomllib

import kubernetes_validate
import yaml

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent.parent
ROLES = ("scheduler", "server", "worker")
# Ends that another life would end with as well: also in the units for systemd.
FINAL = [2, 65, 75, 78]
# How the names of files end that stand in for others where there are RDMA devices.
RDMA = "-rdma.yaml"
# Settings of certificates, which nobody makes for this check.
CERTIFICATES = {"security.ca", "security.certificate", "security.key"}


class Manifests:
    """All documents, by file; and what is looked at often."""

    def __init__(self, files):
        self.files = files

    @classmethod
    def load(cls):
        files = sorted(HERE.glob("*.yaml"))
        return cls({file.name: list(yaml.safe_load_all(file.read_text())) for file in files})

    def of_kind(self, kind):
        return [(file, each) for file, documents in self.files.items() for each in documents if each["kind"] == kind]

    def one(self, kind, name, beside=None):
        """The one that a workload of file `beside` has: a file that stands in for another has its own."""
        found = {file: each for file, each in self.of_kind(kind) if each["metadata"]["name"] == name}
        return found.get(beside) or next(iter(found.values()))

    def workloads(self):
        """File, role, the workload, and its pods' specification."""
        for kind in ("StatefulSet", "Deployment", "Job"):
            for file, each in self.of_kind(kind):
                role = each["metadata"]["labels"]["app.kubernetes.io/component"]
                yield file, role, each, each["spec"]["template"]["spec"]

    def settings_text(self):
        return self.one("ConfigMap", "gradwire")["data"]["gradwire.toml"]

    def settings(self):
        return tomllib.loads(self.settings_text())


def container(pod):
    return pod["containers"][0]


def flat(table, prefix=""):
    for name, value in table.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def gradwire_env():
    """Settings, variables and exit codes that our programs know."""
    text = subprocess.run([GRADWIRE, "env"], check=True, capture_output=True, text=True).stdout
    settings, _, rest = text.partition("\n\n")
    lines = [line.split() for line in settings.splitlines()[1:]]
    codes = {int(line.split()[0]) for line in rest.partition("EXIT CODE")[2].splitlines()[1:] if line.strip()}
    return {line[0] for line in lines}, {line[1] for line in lines}, codes


def schemas(manifests):
    for file, documents in manifests.files.items():
        for each in documents:
            try:
                kubernetes_validate.validate(each, kubernetes_validate.latest_version(), strict=True)
            except Exception as error:  # noqa: BLE001: whatever it has to say
                yield f"{file}: {each['kind']}: {error}"


def references(manifests):
    known = {("ConfigMap", "gradwire"), ("PersistentVolumeClaim", "gradwire-checkpoints")}
    have = {(kind, each["metadata"]["name"]) for kind in ("ConfigMap", "PersistentVolumeClaim") for _, each in manifests.of_kind(kind)}
    for kind, name in known - have:
        yield f"there is no {kind} {name}"
    for file, role, workload, pod in manifests.workloads():
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        for mount in container(pod)["volumeMounts"]:
            if mount["name"] not in volumes:
                yield f"{file}: volume {mount['name']} is not there"
        for volume in volumes.values():
            if "configMap" in volume and ("ConfigMap", volume["configMap"]["name"]) not in have:
                yield f"{file}: {volume}"
            if "persistentVolumeClaim" in volume and ("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]) not in have:
                yield f"{file}: {volume}"
            if "secret" in volume and volume["secret"]["secretName"] != f"gradwire-tls-{role}":
                yield f"{file}: certificates are for one role each: {volume}"
        labels = workload["spec"]["template"]["metadata"]["labels"]
        if workload["kind"] == "StatefulSet":
            service = manifests.one("Service", workload["spec"]["serviceName"], file)
            if service["spec"]["selector"] != labels or workload["spec"]["selector"]["matchLabels"] != labels:
                yield f"{file}: the Service or the StatefulSet selects other pods than its own"
    everyone = [each["spec"]["template"]["metadata"]["labels"].items() for _, _, each, _ in manifests.workloads()]
    for kind, key in (("PodDisruptionBudget", "selector"), ("NetworkPolicy", "podSelector")):
        for file, each in manifests.of_kind(kind):
            wanted = each["spec"][key]["matchLabels"].items()
            if not any(wanted <= labels for labels in everyone):
                yield f"{file}: {each['metadata']['name']} selects nobody"


def ports(manifests):
    settings = manifests.settings()
    http = int(settings["node"]["http"].rpartition(":")[2])
    right = {"control": settings["scheduler"]["port"], "data": settings["node"]["port"], "http": http}
    for file, role, workload, pod in manifests.workloads():
        have = {port["name"]: port["containerPort"] for port in container(pod)["ports"]}
        for name, port in have.items():
            if right[name] != port:
                yield f"{file}: {role} has {name} at {port}, the settings at {right[name]}"
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            asked = container(pod).get(probe, {})
            used = (asked.get("httpGet") or asked.get("tcpSocket") or {}).get("port", "http")
            if used not in have:
                yield f"{file}: the {probe} of {role} asks port {used}, which it has not"
        if workload["spec"]["template"]["metadata"]["annotations"]["prometheus.io/port"] != str(http):
            yield f"{file}: metrics of {role} are looked for at another port"
        if workload["kind"] != "StatefulSet":
            continue
        for port in manifests.one("Service", workload["spec"]["serviceName"], file)["spec"]["ports"]:
            if port["targetPort"] not in have or port["port"] != have[port["targetPort"]]:
                yield f"{file}: port {port} of the Service is none of {role}"
    # The same everywhere: whoever goes from one kind of host to another looks for the page and the metrics at one port.
    service = tomllib.loads((ROOT / "deploy/config/scheduler.toml").read_text())["node"]["http"]
    scraped = re.search(r"http://[^/]*:([0-9]+)/targets", (ROOT / "deploy/prometheus/prometheus.yml").read_text())[1]
    if {int(service.rpartition(":")[2]), int(scraped)} != {http}:
        yield f"HTTP is at {http} here, at {service} of a scheduler under systemd, and Prometheus asks {scraped}"
    for file, policy in manifests.of_kind("NetworkPolicy"):
        if policy["spec"]["ingress"][1]["ports"][0]["port"] != http:
            yield f"{file}: opens another port than that of metrics"
    if settings["scheduler"]["host"] != manifests.one("Service", "gradwire-scheduler")["metadata"]["name"]:
        yield "members look for the scheduler at another name than its Service's"


def paths(manifests):
    endpoints = re.search(r"const ENDPOINTS: .*?= *\n? *\[(.*?)\];", (ROOT / "daemon/src/http.rs").read_text(), re.S)
    served = set(re.findall(r'"(/[a-z/]+)"', endpoints.group(1)))
    dockerfile = (ROOT / "deploy/container/Dockerfile").read_text()
    settings = dict(flat(manifests.settings()))
    for file, role, workload, pod in manifests.workloads():
        asked = [probe["httpGet"]["path"] for name, probe in container(pod).items() if name.endswith("Probe") and "httpGet" in probe]
        asked.append(workload["spec"]["template"]["metadata"]["annotations"]["prometheus.io/path"])
        for path in set(asked) - served:
            yield f"{file}: {role} does not serve {path}"
        command = container(pod)["command"]
        if command[0] != f"gradwire-{role}" or f"/release/{command[0]} " not in dockerfile:
            yield f"{file}: {command[0]} is not {role}'s program, or not in the image"
        mounts = {mount["name"]: mount["mountPath"] for mount in container(pod)["volumeMounts"]}
        if command[command.index("--config") + 1] != f"{mounts['config']}/gradwire.toml":
            yield f"{file}: the settings file is not where it is mounted"
        if "--data" in command:
            directory, _, name = command[command.index("--data") + 1].rpartition("/")
            if f"{name} {directory}/" not in dockerfile:
                yield f"{file}: the image has no {name} in {directory}"
        for key in CERTIFICATES:
            if not settings[key].startswith(mounts["tls"] + "/"):
                yield f"{file}: {key} is not where certificates are mounted"
        if role != "worker" and not settings["checkpoint.directory"].startswith(mounts["checkpoints"] + "/"):
            yield f"{file}: checkpoint.directory is not where the volume is mounted"


def settings_are_ours(manifests):
    known, variables, _ = gradwire_env()
    for key in {key for key, _ in flat(manifests.settings())} - known:
        yield f"there is no setting {key}"
    for file, _, _, pod in manifests.workloads():
        for variable in container(pod).get("env", []):
            if variable["name"].startswith("GRADWIRE_") and variable["name"] not in variables:
                yield f"{file}: there is no setting {variable['name']}"
    # With the bounds of each and their relations; nothing is connected. A pod has its address, which peers are told, from its variable.
    text = re.sub(r"(?s)\[security\].*?\n\n", '[security]\nmode = "off"\n\n', manifests.settings_text())
    with tempfile.TemporaryDirectory() as directory:
        file = pathlib.Path(directory) / "gradwire.toml"
        file.write_text(text)
        words = [GRADWIRE, "doctor", "--config", str(file), "--set", "scheduler.host=127.0.0.1", "--set", "node.advertise=127.0.0.1"]
        run = subprocess.run(words, capture_output=True, text=True, timeout=60, cwd=directory)
    if run.returncode == 78 or f"from {file}" not in run.stdout:
        yield f"the settings are refused: {run.stdout}{run.stderr}"


def counts(manifests):
    cluster = manifests.settings()["cluster"]
    for file, role, workload, _ in manifests.workloads():
        spec = workload["spec"]
        have = {"scheduler": [spec.get("replicas")], "server": [spec.get("replicas")], "worker": [spec.get("completions"), spec.get("parallelism")]}
        want = {"scheduler": 1, "server": cluster["servers"], "worker": cluster["workers"]}
        for count in have[role]:
            if count != want[role]:
                yield f"{file}: {count} of {role}, and the settings say {want[role]}"


def deadlines(manifests):
    settings = dict(flat(manifests.settings()))
    # Giving up the handover (2 x operation_ms without progress), saying goodbye, and hearing that all are to end.
    handover = 2 * settings.get("deadlines.operation_ms", 30_000) / 1000
    for file, role, _, pod in manifests.workloads():
        least = (handover if role == "server" else 0) + 3 + 1
        if pod["terminationGracePeriodSeconds"] <= least:
            yield f"{file}: {role} is killed before its own deadlines are over"
        startup = container(pod).get("startupProbe", {})
        within = startup.get("periodSeconds", 10) * startup.get("failureThreshold", 3)
        # The scheduler is looked for for 30 s.
        if "livenessProbe" in container(pod) and within <= 30:
            yield f"{file}: {role} is killed while it looks for the scheduler"


def little_is_open(manifests):
    for file, role, _, pod in manifests.workloads():
        is_rdma = "rdma" in file
        own, all_of = container(pod)["securityContext"], pod["securityContext"]
        right = [
            own["allowPrivilegeEscalation"] is False,
            own["readOnlyRootFilesystem"] is True,
            own["capabilities"]["drop"] == ["ALL"],
            own["capabilities"].get("add", []) == (["IPC_LOCK"] if is_rdma and role == "server" else []),
            all_of["seccompProfile"]["type"] == "RuntimeDefault",
            is_rdma or all_of.get("runAsNonRoot") is True and all_of["runAsUser"] >= 10000,
            pod["automountServiceAccountToken"] is False,
            "memory" in container(pod)["resources"]["limits"] and "cpu" in container(pod)["resources"]["requests"],
        ]
        if not all(right):
            yield f"{file}: {role} may do more than it has to: {right}"
    if not manifests.of_kind("NetworkPolicy"):
        yield "everyone reaches the data plane"
    for file, policy in manifests.of_kind("NetworkPolicy"):
        if not all(rule.get("from") for rule in policy["spec"]["ingress"]):
            yield f"{file}: everyone reaches a port that asks for no password"


def nothing_locks_up(manifests):
    for file, role, workload, pod in manifests.workloads():
        # Kubernetes' variables of Services begin with our prefix, and unknown settings are errors.
        if pod.get("enableServiceLinks") is not False:
            yield f"{file}: {role} gets variables of Services, which are no settings"
        # Whoever takes all places of the HTTP endpoints would have the pod killed.
        if "httpGet" in container(pod).get("livenessProbe", {}):
            yield f"{file}: {role} lives only as long as others leave its HTTP endpoints alone"
        if workload["kind"] == "StatefulSet":
            # None is ready before all are there.
            if workload["spec"]["replicas"] > 1 and workload["spec"].get("podManagementPolicy") != "Parallel":
                yield f"{file}: the second {role} waits until the first is ready, which waits for the second"
            if manifests.one("Service", workload["spec"]["serviceName"], file)["spec"].get("publishNotReadyAddresses") is not True:
                yield f"{file}: {role} is not reached before it is ready, and not ready before it is reached"


def exit_codes(manifests):
    _, _, codes = gradwire_env()
    for code in set(FINAL) - codes:
        yield f"there is no exit code {code}"
    values = [rule["onExitCodes"]["values"] for _, job in manifests.of_kind("Job") for rule in job["spec"]["podFailurePolicy"]["rules"] if "onExitCodes" in rule]
    if values != [FINAL]:
        yield f"a Job is given up after {values}, and not after {FINAL}"
    for unit in sorted((ROOT / "deploy/systemd").glob("*.service")):
        if f"RestartPreventExitStatus={' '.join(map(str, FINAL))}\n" not in unit.read_text():
            yield f"{unit.name} is started again after other codes"


def rdma_differs_where_it_says(manifests):
    for name in [name for name in manifests.files if name.endswith(RDMA)]:
        plain, rdma = (copy.deepcopy(manifests.files[each]) for each in (name.replace(RDMA, ".yaml"), name))
        for documents in (plain, rdma):
            pod = documents[1]["spec"]["template"]["spec"]
            for key in ("runAsNonRoot", "runAsUser", "runAsGroup"):
                pod["securityContext"].pop(key, None)
            own = container(pod)
            own["securityContext"]["capabilities"].pop("add", None)
            own["env"] = [each for each in own.get("env", []) if each["name"] != "GRADWIRE_TRANSPORT__VERBS"]
            for kind in ("requests", "limits"):
                own["resources"][kind].pop("rdma/hca_shared_devices_a", None)
        if plain != rdma:
            yield f"{name} differs from {name.replace(RDMA, '.yaml')} in more than its device and its user"


def volumes_have_one_user(manifests):
    """What one process makes there, others write into and remove; modes let nobody else do that. With RDMA and without it."""
    with_rdma = {name for name in manifests.files if name.endswith(RDMA)}
    without = {name.replace(RDMA, ".yaml") for name in with_rdma}
    for left_out in (with_rdma, without):
        users = {}
        for file, role, _, pod in manifests.workloads():
            claims = {volume["persistentVolumeClaim"]["claimName"] for volume in pod["volumes"] if "persistentVolumeClaim" in volume}
            # A container's own word counts before the pod's.
            who = {**pod["securityContext"], **container(pod)["securityContext"]}
            for claim in claims if file not in left_out else ():
                users.setdefault(claim, {})[f"{role} ({file})"] = (who.get("runAsUser"), who.get("fsGroup"))
        for claim, of in users.items():
            if len(set(of.values())) != 1 or None in next(iter(of.values())):
                yield f"{claim} is written by several users and groups: {of}"


def change(file, index, where, value):
    """The manifests with one value changed; None takes it out."""

    def apply(manifests):
        place = manifests.files[file][index]
        for step in where[:-1]:
            place = place[step]
        if value is None:
            del place[where[-1]]
        else:
            place[where[-1]] = value

    return apply


def without(file):
    return lambda manifests: manifests.files.pop(file)


def in_settings(old, new):
    def apply(manifests):
        data = manifests.one("ConfigMap", "gradwire")["data"]
        assert old in data["gradwire.toml"], old
        data["gradwire.toml"] = data["gradwire.toml"].replace(old, new)

    return apply


POD = ("spec", "template", "spec")
OWN = (*POD, "containers", 0)
CHECKS = {
    schemas: [change("30-servers.yaml", 1, (*OWN, "prots"), []), change("40-workers.yaml", 0, ("spec", "backoffLimit"), "many")],
    references: [change("20-scheduler.yaml", 1, (*POD, "volumes", 0, "configMap", "name"), "other"), change("20-scheduler.yaml", 0, ("spec", "selector", "app.kubernetes.io/component"), "server")],
    ports: [in_settings("port = 9092", "port = 9099"), in_settings("0.0.0.0:9095", "0.0.0.0:9096"), change("30-servers.yaml", 1, (*OWN, "livenessProbe", "tcpSocket", "port"), "web")],
    paths: [change("20-scheduler.yaml", 1, (*OWN, "readinessProbe", "httpGet", "path"), "/ready"), in_settings("/etc/gradwire/tls/key.pem", "/tls/key.pem")],
    settings_are_ours: [in_settings("replicas = 1", "replica = 1"), in_settings("replicas = 1", "replicas = 7"), change("40-workers.yaml", 0, (*OWN, "env", 1, "name"), "GRADWIRE_RANK")],
    counts: [in_settings("servers = 3", "servers = 2"), change("40-workers.yaml", 0, ("spec", "parallelism"), 3)],
    deadlines: [change("30-servers.yaml", 1, (*POD, "terminationGracePeriodSeconds"), 60), change("30-servers.yaml", 1, (*OWN, "startupProbe", "failureThreshold"), 10)],
    little_is_open: [
        change("20-scheduler-rdma.yaml", 1, (*OWN, "securityContext", "capabilities", "add"), ["IPC_LOCK"]),
        change("40-workers.yaml", 0, (*OWN, "securityContext", "readOnlyRootFilesystem"), False),
        change("60-network.yaml", 0, ("spec", "ingress", 1, "from"), None),
    ],
    nothing_locks_up: [change("20-scheduler.yaml", 1, (*OWN, "livenessProbe"), {"httpGet": {"path": "/healthz", "port": "http"}}), change("20-scheduler.yaml", 0, ("spec", "publishNotReadyAddresses"), None), change("30-servers.yaml", 1, ("spec", "podManagementPolicy"), None), change("40-workers.yaml", 0, (*POD, "enableServiceLinks"), None)],
    exit_codes: [change("40-workers.yaml", 0, ("spec", "podFailurePolicy", "rules", 1, "onExitCodes", "values"), [78])],
    rdma_differs_where_it_says: [change("30-servers-rdma.yaml", 1, ("spec", "replicas"), 2), change("20-scheduler-rdma.yaml", 1, (*POD, "terminationGracePeriodSeconds"), 40)],
    # The second one: a scheduler that is another user than servers with RDMA.
    volumes_have_one_user: [
        change("30-servers.yaml", 1, (*POD, "securityContext", "runAsUser"), 10002),
        without("20-scheduler-rdma.yaml"),
        change("20-scheduler-rdma.yaml", 1, (*OWN, "securityContext", "runAsUser"), 10001),
        change("20-scheduler.yaml", 1, (*POD, "securityContext", "fsGroup"), None),
    ],
}


def main():
    passed, failed = 0, 0
    whole = Manifests.load()
    for check, changes in CHECKS.items():
        wrong = list(check(whole))
        for number, apply in enumerate(changes):
            broken = Manifests(copy.deepcopy(whole.files))
            apply(broken)
            if not list(check(broken)):
                wrong.append(f"change {number} of the manifests goes unnoticed")
        print(f"{'ok' if not wrong else 'FAILED'}  {check.__name__.replace('_', ' ')}")
        for each in wrong:
            print(f"    {each}")
        passed, failed = passed + (not wrong), failed + bool(wrong)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


GRADWIRE = sys.argv[1]
sys.exit(main())
