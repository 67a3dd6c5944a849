"""From a pod's status to what has become of it: what may pass, what is over, what is lost, and why."""

from typing import Any

import pytest

from engine.sandbox.kubernetes.fate import tell

RUNNING = {"running": {"startedAt": "2026-11-30T12:00:00Z"}}
KEEPER = {"name": "keeper", "state": RUNNING}


def pod(task: dict[str, Any] | None = None, keeper: dict[str, Any] = KEEPER, **status: Any) -> dict[str, Any]:
    statuses = [] if task is None else [{"name": "task", **task}, keeper]
    return {"metadata": {"name": "p"}, "status": {"phase": "Running", "containerStatuses": statuses, **status}}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"state": {"waiting": {"reason": reason, "message": message}}}


def ended(reason: str, code: int) -> dict[str, Any]:
    return {"state": {"terminated": {"reason": reason, "exitCode": code}}}


def test_a_pod_that_runs_is_ready_and_one_that_was_not_seen_is_starting() -> None:
    assert tell(pod({"state": RUNNING})).state == "ready"
    assert tell({}).state == "starting"
    assert tell(pod({"state": RUNNING}, {"name": "keeper", **waiting("ContainerCreating")})).state == "starting"


def test_the_tasks_container_may_end_and_the_pod_still_give_its_files() -> None:
    killed = tell(pod(ended("Error", 3)))
    assert (killed.state, killed.oom, killed.exit_code) == ("over", False, 3)
    memory = tell(pod(ended("OOMKilled", 137)))
    assert (memory.state, memory.oom) == ("over", True) and "memory_mb" in memory.reason


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ({"phase": "Failed", "reason": "Evicted", "message": "The node was low on memory."}, "Evicted: The node"),
        ({"phase": "Failed", "reason": "DeadlineExceeded", "message": "Pod was active too long"}, "sandbox.grace_s"),
        ({"phase": "Failed", "reason": "Terminated", "message": "in response to imminent node shutdown."},
         "imminent node shutdown"),
        ({"phase": "Unknown", "reason": "NodeLost"}, "NodeLost"),
        ({"conditions": [{"type": "Ready", "status": "False", "reason": "NodeNotReady"}]}, "its node does not answer"),
        ({"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
                          "message": "Eviction API: evicting"}]}, "EvictionByEvictionAPI: Eviction API"),
        ({"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]},
         "PreemptionByScheduler"),
    ],
)  # fmt: skip
def test_what_the_cluster_does_to_a_pod_is_loss_with_its_reason(status: dict[str, Any], reason: str) -> None:
    fate = tell(pod({"state": RUNNING}, **status))
    assert fate.state == "lost" and reason in fate.reason


def test_a_pod_that_is_deleted_is_lost() -> None:
    assert tell(None).state == "lost"
    leaving = pod({"state": RUNNING})
    leaving["metadata"]["deletionTimestamp"] = "2026-11-30T12:00:00Z"
    assert tell(leaving).reason == "its pod is being deleted"
    assert tell(pod({"state": RUNNING}, {"name": "keeper", **ended("Error", 137)})).reason.startswith(
        "the keeper ended"
    )


def test_running_out_of_memory_is_told_even_of_a_pod_that_is_lost() -> None:
    fate = tell(pod(ended("OOMKilled", 137), phase="Failed"))
    assert fate.state == "lost" and fate.oom


@pytest.mark.parametrize(
    ("task", "state"),
    [
        (waiting("ErrImagePull", "rpc error: connection reset by peer"), "starting"),
        (waiting("ImagePullBackOff", 'Back-off pulling image "x"'), "starting"),
        (waiting("ErrImagePull", "x:1: not found"), "lost"),
        (waiting("ImagePullBackOff", "401 Unauthorized"), "lost"),
        (waiting("InvalidImageName"), "lost"),
        (waiting("CreateContainerConfigError", 'configmap "code" not found'), "lost"),
        (waiting("ContainerCreating"), "starting"),
    ],
)
def test_what_may_pass_is_waited_for_and_what_cannot_is_not(task: dict[str, Any], state: str) -> None:
    fate = tell(pod(task, {"name": "keeper", **waiting("ContainerCreating")}, phase="Pending"))
    assert fate.state == state
    assert (fate.reason == "") is (task["state"]["waiting"]["reason"] == "ContainerCreating")


def test_no_room_is_waited_for_and_told() -> None:
    message = "0/5 nodes are available: 5 Insufficient memory."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    fate = tell(pod(None, phase="Pending", conditions=[condition]))
    assert (fate.state, fate.reason) == ("starting", f"Unschedulable: {message}")


def test_what_the_relay_said_as_it_ended_is_the_reason() -> None:
    relay = {"name": "relay", **waiting("CrashLoopBackOff", "back-off 10s"),
             "lastState": {"terminated": {"message": "the network is open"}}}  # fmt: skip
    fate = tell(pod(None, phase="Pending", initContainerStatuses=[relay]))
    assert fate.state == "lost" and fate.reason == "container relay: CrashLoopBackOff: the network is open"
