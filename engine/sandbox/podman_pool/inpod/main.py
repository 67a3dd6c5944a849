"""The roles of the processes in a sandbox's containers on a podman host: `pod.py ROLE …`.

    relay    process 1 of the relay's container (see relay)
    init     process 1 of the task's container: furnishes it, reaps, kills the rest when told to, and ends when the
             relay does, by which the engine's end ends the sandbox, even where nobody ever comes to reap
    run      one command in the task's container (see command)
    sweep    kills every other process of the task's container
    keep     one operation on its files (see keeper), or `keep ended`: how many processes `init` killed

All but the relay belong to root, who has no capability here but those that a change of user, a kill and another's files
need: the agent's user can neither signal nor trace them.
Invariant: nothing here imports or executes anything that lies in the task's root.
"""

import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from engine.sandbox import files
from engine.sandbox.remote.within import HOME, USER
from engine.sandbox.remote.within.processes import close_to_neighbours, others, reap_children, sweep

LIFE = "\0lego-rl-life"
"""Abstract socket of the relay in the network that both containers share; open while the relay lives."""
OWN = Path("/.lego")
"""Root's alone, but for what is mounted in it."""
READY, STAGE, ENDED = OWN / "ready", OWN / "stage", OWN / "ended"
_ROOT = Path("/")
_PATIENCE_S = 30.0


def main(arguments: Sequence[str]) -> None:
    role, rest = arguments[0], arguments[1:]
    if role == "relay":
        from engine.sandbox.podman_pool.inpod import relay

        relay.main(float(rest[0]))
    elif role == "init":
        init(json.loads(rest[0]))
    elif role == "run":
        from engine.sandbox.remote.within import command

        _until(READY)
        command.main()
    elif role == "sweep":
        sweep()
    elif role == "keep":
        _until(READY)
        keep(rest[0])
    else:
        sys.exit(f"unknown role {role}")


def keep(operation: str) -> None:
    from engine.sandbox.remote.within import keeper

    if operation == "ended":
        _until(ENDED)
        sys.stdout.write(ENDED.read_text())
        return
    uid = int(READY.read_text())
    keeper.main(operation, keeper.Place(room=_ROOT, stage=STAGE, owner=files.Owner(uid=uid, gid=uid)))


def init(request: dict[str, object]) -> None:
    """The kernel hands no signal to process 1 from within that it does not ask for; the one that it waits for comes
    from outside, because nobody in here may signal it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    close_to_neighbours()
    signals = {signal.SIGCHLD, signal.SIGUSR1}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as life:
        life.connect(LIFE)
        life.setblocking(False)
        if not READY.exists():
            furnish(int(str(request["uid"])), str(request["workdir"]))
        while _lives(life):
            got = signal.sigtimedwait(signals, 0.5)
            reap_children()
            if got is not None and got.si_signo == signal.SIGUSR1:
                end()


def furnish(uid: int, workdir: str) -> None:
    """Make its user and its folders. No agent has been here yet; links of the image itself are refused."""
    STAGE.mkdir(mode=0o700)
    for name, line in (("passwd", f"{USER}:x:{uid}:{uid}::{HOME}:/bin/sh\n"), ("group", f"{USER}:x:{uid}:\n")):
        path = Path("/etc", name)
        if path.is_symlink() or path.parent.is_symlink():
            sys.exit(f"/etc/{name} of the image is a link")
        path.write_text((path.read_text() if path.exists() else "") + line)
        path.chmod(0o644)
    for folder in (HOME, workdir):
        files.make_folder(_ROOT, folder, files.Owner(uid=uid, gid=uid))
    _appear(READY, str(uid))


def end() -> None:
    """Kill all others, and note how many there were."""
    count = len(others())
    while others():
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        reap_children()
    _appear(ENDED, str(count))


def _appear(path: Path, text: str) -> None:
    draft = path.with_suffix(".draft")
    draft.write_text(text)
    draft.rename(path)


def _until(path: Path) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not path.exists():
        if time.monotonic() > deadline:
            sys.exit(f"{path} does not appear")
        time.sleep(0.005)


def _lives(life: socket.socket) -> bool:
    try:
        return life.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False
