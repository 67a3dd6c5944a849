"""What has become of a pod, told from its status: pure functions from the API's objects to states and reasons.

A pod whose task's container has ended may still give its files out (`over`); one that is `lost` gives nothing. What
keeps a pod from starting is told as `starting` with its reason while it may pass (no room yet, a registry that
stutters), and as `lost` once it cannot.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from engine.sandbox.remote.fate import Fate

_FINAL = frozenset(
    {
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
        "CrashLoopBackOff",
        "PostStartHookError",
    }
)
_PULLING = frozenset({"ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "SignatureValidationFailed"})
_HOPELESS = ("not found", "manifest unknown", "unauthorized", "denied", "forbidden", "no match for platform")
_WAYS_OUT = {
    "DeadlineExceeded": "it was over its time; if its owner did not hang, raise sandbox.grace_s",
    "Evicted": "the node was short of memory or disk",
    "OOMKilled": "raise the task's memory_mb",
}


def tell(pod: Mapping[str, Any] | None) -> Fate:
    """The fate of a pod; None: it is not there any more."""
    if pod is None:
        return Fate(state="lost", reason="its pod was deleted")
    status: Mapping[str, Any] = pod.get("status") or {}
    task, keeper = _container(status, "task"), _container(status, "keeper")
    ended = (task.get("state") or {}).get("terminated")
    lost = _why_lost(pod, status, keeper)
    if lost:
        return Fate(state="lost", reason=lost, oom=(ended or {}).get("reason") == "OOMKilled")
    if ended:
        oom, code = ended.get("reason") == "OOMKilled", int(ended.get("exitCode", 0))
        reason = _line(ended.get("reason"), ended.get("message"), _WAYS_OUT.get(ended.get("reason", ""), ""))
        return Fate(state="over", reason=reason, oom=oom, exit_code=code)
    if all("running" in (each.get("state") or {}) for each in (task, keeper)):
        return Fate(state="ready", reason="")
    return Fate(state="starting", reason=_why_waiting(status))


def _why_lost(pod: Mapping[str, Any], status: Mapping[str, Any], keeper: Mapping[str, Any]) -> str:
    disrupted = _condition(status, "DisruptionTarget")
    if disrupted.get("status") == "True":
        return _line(disrupted.get("reason"), disrupted.get("message"))
    if status.get("phase") in ("Failed", "Succeeded", "Unknown"):
        reason = status.get("reason") or f"the pod {status['phase'].lower()}"
        return _line(reason, status.get("message"), _WAYS_OUT.get(reason, "")) or "the pod ended"
    if pod.get("metadata", {}).get("deletionTimestamp"):
        return "its pod is being deleted"
    if status.get("reason") == "NodeLost" or _condition(status, "Ready").get("reason") == "NodeNotReady":
        return _line("NodeLost", status.get("message"), "its node does not answer")
    if (keeper.get("state") or {}).get("terminated"):
        ended = keeper["state"]["terminated"]
        return _line("the keeper ended", ended.get("reason"), ended.get("message"))
    return next(_hopeless(status), "")


def _hopeless(status: Mapping[str, Any]) -> Iterator[str]:
    """What keeps it from starting for good."""
    for each in _all(status):
        waiting = (each.get("state") or {}).get("waiting") or {}
        reason, message = waiting.get("reason", ""), str(waiting.get("message", ""))
        if reason in _FINAL:
            said = ((each.get("lastState") or {}).get("terminated") or {}).get("message", "")
            yield _line(f"container {each['name']}: {reason}", said or message)
        elif reason in _PULLING and any(word in message.lower() for word in _HOPELESS):
            way_out = "push it to sandbox.registry, or see sandbox.image_pull_secrets"
            yield _line(f"container {each['name']}: {reason}", message, way_out)


def _why_waiting(status: Mapping[str, Any]) -> str:
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") == "False":
        return _line(scheduled.get("reason"), scheduled.get("message"))
    for each in _all(status):
        waiting = (each.get("state") or {}).get("waiting") or {}
        said = ((each.get("lastState") or {}).get("terminated") or {}).get("message", "")
        if waiting.get("reason") not in (None, "PodInitializing", "ContainerCreating") or said:
            return _line(f"container {each['name']}: {waiting.get('reason', 'is starting again')}", said,
                         waiting.get("message"))  # fmt: skip
    return ""


def _all(status: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def _container(status: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return next((each for each in status.get("containerStatuses") or () if each["name"] == name), {})


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    return next((each for each in status.get("conditions") or () if each.get("type") == kind), {})


def _line(*parts: Any) -> str:
    return ": ".join(" ".join(str(part).split())[:400] for part in parts if part)
