"""What is asked of a cluster: valid to its own schemas, closed on every side, told apart by session."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from engine.core.errors import SandboxError
from engine.core.specs import ImageSpec, SandboxSpec
from engine.sandbox.kubernetes import manifests
from engine.sandbox.kubernetes.code import code, reference
from engine.sandbox.kubernetes.inpod import ENTRY, MODULES

VERSIONS = ("1.33.0", "1.35.0", kubernetes_validate.latest_version())
SESSION = manifests.Session(owner="openhands_gspo/ab", name="lego-rl-openhands-gspo-ab-0011223344")
GATEWAY = manifests.Gateway(host="192.0.2.7", port=40001, pods={})
SHAPE = manifests.Shape(
    namespace="lego",
    uid=10001,
    shm_mb=64,
    storage="tmpfs",
    storage_class=None,
    user_namespaces=True,
    delivery="mount",
    writable=("/home/agent", "/tmp", "/run/lego"),
    tools="registry.test/lego/tools@sha256:00",
    runtime_class=None,
    node_selector={"pool": "sandboxes"},
    tolerations=({"key": "sandboxes", "operator": "Exists", "effect": "NoSchedule"},),
    pull_secrets=("registry",),
    machine="x86_64",
)


def a_plan(**changes: Any) -> manifests.Plan:
    spec = SandboxSpec(
        name="e0-astroid-1616-s3-a0",
        image=ImageSpec(name="task", suite=None, packages=(), pip=()),
        mounts=(),
        workdir="/testbed",
        environment={},
        memory_mb=2048,
        cpus=1.5,
        pids=512,
        disk_mb=4096,
    )
    return manifests.Plan(
        name=manifests.object_name(spec.name, "0123456789"),
        spec=replace(spec, **changes),
        image="registry.test/lego/task:0011",
        mounts=(("registry.test/lego/openhands:2233", "/opt/agent"),),
        config_map="lego-rl-code",
        files={"pod.py": "pod.py", "passwd": "passwd", "engine.__init__.py": "engine/__init__.py"},
        token="secret-of-the-relay",
        life_s=14400,
        expires_s=1_800_000_000.5,
    )


def a_pod(shape: manifests.Shape = SHAPE, **changes: Any) -> dict[str, Any]:
    return manifests.pod(shape, SESSION, GATEWAY, a_plan(**changes))


def containers(pod: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in (*pod["spec"]["initContainers"], *pod["spec"]["containers"])}


SHAPES = {
    "mount": SHAPE,
    "copy": replace(SHAPE, delivery="copy"),
    "volume": replace(SHAPE, storage="volume", storage_class="fast"),
    "node": replace(SHAPE, storage="node", user_namespaces=False, runtime_class="gvisor", machine="aarch64"),
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", SHAPES)
def test_pods_are_valid_to_the_clusters_schemas(name: str, version: str) -> None:
    assert kubernetes_validate.validate(a_pod(SHAPES[name]), version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("host", ["192.0.2.7", "2001:db8::7"])
def test_the_other_objects_are_valid_too(host: str, version: str) -> None:
    gateway = replace(GATEWAY, host=host, pods={"app": "trainer"})
    stamp = "2026-11-30T12:00:00.000000Z"
    for item in (
        manifests.network_policy("lego", SESSION, gateway),
        manifests.config_map("lego", SESSION, "lego-rl-code", {"pod.py": ENTRY}),
        manifests.lease("lego", SESSION, holder="host/1", seconds=60, renewed=stamp),
    ):
        assert kubernetes_validate.validate(item, version, strict=True)
        assert item["metadata"]["labels"] == SESSION.labels


def test_a_schema_would_see_a_mistake() -> None:
    wrong = a_pod()
    wrong["spec"]["containers"][0]["imagePolicy"] = "Never"
    with pytest.raises(kubernetes_validate.ValidationError, match="imagePolicy"):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


def test_no_container_has_more_rights_than_a_process_needs() -> None:
    spec = a_pod()["spec"]
    assert spec["automountServiceAccountToken"] is False and spec["enableServiceLinks"] is False
    assert spec["hostUsers"] is False and spec["restartPolicy"] == "Never"
    assert spec["activeDeadlineSeconds"] == 14400
    assert not {"hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace", "serviceAccountName"} & set(spec)
    for each in containers(a_pod()).values():
        security = each["securityContext"]
        assert security["capabilities"] == {"drop": ["ALL"]} and security["runAsNonRoot"] is True
        assert security["allowPrivilegeEscalation"] is False and security["readOnlyRootFilesystem"] is True
        assert security["seccompProfile"] == {"type": "RuntimeDefault"} and security["runAsUser"] == SHAPE.uid
        assert set(each["resources"]["limits"]) == {"cpu", "memory", "ephemeral-storage"}


def test_only_the_copying_container_is_root_and_it_too_has_no_capability() -> None:
    rights = {name: each["securityContext"] for name, each in containers(a_pod(SHAPES["copy"])).items()}
    assert [name for name, each in rights.items() if each["runAsUser"] == 0] == ["deliver"]
    assert rights["deliver"]["capabilities"] == {"drop": ["ALL"]}
    assert rights["deliver"]["allowPrivilegeEscalation"] is False


def test_the_agents_container_knows_nothing_of_the_gateway_and_writes_in_the_room_alone() -> None:
    pod = a_pod()
    task = containers(pod)["task"]
    assert "secret-of-the-relay" not in str(task) and "secret-of-the-relay" in str(containers(pod)["relay"])
    assert "env" not in task
    open_ones = {each["mountPath"]: each["name"] for each in task["volumeMounts"] if not each.get("readOnly")}
    rooms = dict.fromkeys(("/testbed", "/home/agent", "/tmp", "/run/lego"), "room")
    assert open_ones == {**rooms, "/dev/shm": "shm"}
    assert {each["subPath"] for each in task["volumeMounts"] if each["name"] == "room"} == {
        path.lstrip("/") for path in rooms
    }


def test_the_agents_runtime_is_an_image_volume() -> None:
    pod = a_pod()
    (mount,) = [each for each in containers(pod)["task"]["volumeMounts"] if each["mountPath"] == "/opt/agent"]
    (volume,) = [each for each in pod["spec"]["volumes"] if each["name"] == mount["name"]]
    assert volume["image"] == {"reference": "registry.test/lego/openhands:2233", "pullPolicy": "IfNotPresent"}
    assert mount["readOnly"] is True


def test_the_relay_is_a_sidecar_that_the_task_waits_for_and_the_keeper_outlives_the_task() -> None:
    pod = a_pod()
    (relay,) = pod["spec"]["initContainers"]
    assert relay["restartPolicy"] == "Always" and "startupProbe" in relay
    assert [each["name"] for each in pod["spec"]["containers"]] == ["task", "keeper"]


def test_names_cannot_be_looked_up_and_the_network_is_closed_on_every_side() -> None:
    spec = a_pod()["spec"]
    assert spec["dnsPolicy"] == "None" and spec["dnsConfig"] == {"nameservers": ["127.0.0.1"]}
    policy = manifests.network_policy("lego", SESSION, GATEWAY)["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"] and policy["ingress"] == []
    assert policy["egress"] == [
        {"to": [{"ipBlock": {"cidr": "192.0.2.7/32"}}], "ports": [{"protocol": "TCP", "port": 40001}]}
    ]
    labels = a_pod()["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    six = manifests.network_policy("lego", SESSION, replace(GATEWAY, host="2001:db8::7", pods={"app": "trainer"}))
    assert six["spec"]["egress"][0]["to"] == [
        {"ipBlock": {"cidr": "2001:db8::7/128"}},
        {"podSelector": {"matchLabels": {"app": "trainer"}}},
    ]


def test_limits_are_those_of_the_specification() -> None:
    task = containers(a_pod())["task"]["resources"]
    assert task["limits"] == task["requests"] == {"cpu": "1.5", "memory": "2048Mi", "ephemeral-storage": "64Mi"}
    rooms = {
        name: {each["name"]: each for each in a_pod(shape)["spec"]["volumes"]}["room"] for name, shape in SHAPES.items()
    }
    assert rooms["mount"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "4096Mi"}
    assert rooms["node"]["emptyDir"] == {"sizeLimit": "4096Mi"}
    claim = rooms["volume"]["ephemeral"]["volumeClaimTemplate"]["spec"]
    assert claim["storageClassName"] == "fast" and claim["resources"]["requests"]["storage"] == "4096Mi"
    with pytest.raises(SandboxError, match=r"sandbox\.disk_mb"):
        a_pod(SHAPES["volume"], disk_mb=0)


def test_labels_find_a_session_again_and_annotations_tell_more() -> None:
    metadata = a_pod()["metadata"]
    assert SESSION.labels.items() <= metadata["labels"].items()
    assert metadata["annotations"] == {
        "lego-rl.dev/owner": "openhands_gspo/ab",
        "lego-rl.dev/sandbox": "e0-astroid-1616-s3-a0",
        "lego-rl.dev/expires": "1800000000",
    }
    for text in ("a" * 200, "Ünï/côde~", "-", ""):
        assert 0 < len(manifests.label(text)) <= 63 and manifests.label(text).strip("-_.") == manifests.label(text)
        name = manifests.object_name(text, "0123456789")
        assert len(name) <= 63 and name == name.lower() and name.isascii()
    assert manifests.label("x" * 60 + "1") != manifests.label("x" * 60 + "2")


def test_folders_that_may_be_written_are_none_within_another() -> None:
    assert manifests.writable(SHAPE, "/tmp/work") == ("/home/agent", "/run/lego", "/tmp")
    with pytest.raises(SandboxError, match="read-only"):
        manifests.writable(SHAPE, "/")


def test_an_images_reference_is_the_name_of_its_folder() -> None:
    assert (
        reference("registry.test/lego", Path("/cache/images/task-base-0011aa")) == "registry.test/lego/task-base:0011aa"
    )


def test_what_reaches_a_pod_is_whole(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    contents, files = code(tmp_path, 10001)
    assert set(contents) == set(files) and {files[key] for key in files} >= set(MODULES)
    assert contents["passwd"].splitlines()[-1] == "agent:x:10001:10001::/home/agent:/bin/sh"
    assert contents["group"] == "agent:x:10001:\n"
    assert sum(map(len, contents.values())) < 1 << 20, "a ConfigMap holds no more"
    (tmp_path / "etc/group").symlink_to("/etc/group")
    with pytest.raises(SandboxError, match="is a link"):
        code(tmp_path, 10001)
