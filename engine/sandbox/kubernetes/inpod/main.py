"""The roles that a pod's processes play: `pod.py ROLE …`.

    init     process 1 of the task's container: waits, reaps, and ends when the keeper says so
    run      one command in the task's container (see command)
    sweep    kills every other process of the task's container
    wait     process 1 of the keeper
    keep     one operation on files, in the keeper (see keeper)
    relay    the relay (see relay)
    deliver  copies images to where they can be executed

Invariant: nothing here imports or executes anything that lies in the room or in the task's image.
"""

import os
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from engine.sandbox import files
from engine.sandbox.remote.within.processes import close_to_neighbours, others, reap_children, sweep

SIGNAL = Path("/.lego/signal")
"""Written by keeper and relay, read by the task's container."""
_COUNTED = 100
"""The exit code of process 1 tells how many processes it took along, up to this."""


def main(arguments: Sequence[str]) -> None:
    role, rest = arguments[0], arguments[1:]
    if role == "init":
        init(SIGNAL / "end")
    elif role == "wait":
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
        while True:
            signal.pause()
    elif role == "run":
        from engine.sandbox.remote.within import command

        command.main()
    elif role == "sweep":
        sweep()
    elif role == "keep":
        from engine.sandbox.remote.within import keeper

        if rest[0] == "end":
            (SIGNAL / "end").touch()
        else:
            owner = files.Owner(uid=os.getuid(), gid=os.getgid())
            keeper.main(rest[0], keeper.Place(room=Path("/room"), stage=Path("/stage"), owner=owner))
    elif role == "relay":
        from engine.sandbox.kubernetes.inpod import relay

        relay.main(SIGNAL / "ready")
    elif role == "deliver":
        for image in sorted(Path("/images").iterdir()):
            deliver(image, Path("/delivered") / image.name)
    else:
        sys.exit(f"unknown role {role}")


def deliver(image: Path, target: Path) -> None:
    """Copy an image as its owner without capabilities; what that may not read, the agent's user may not either."""
    try:
        shutil.copytree(image, target, symlinks=True)
    except shutil.Error as error:
        left = [f"{source}: {why}" for source, _, why in error.args[0] if "Permission denied" not in str(why)]
        if left:
            sys.exit(f"{len(left)} files of an image cannot be copied, the first is {left[0]}")


def init(end: Path) -> None:
    """The kernel hands no signal to process 1 from within that it does not ask for, so it asks for none: Python's own
    handler of interrupts goes. With process 1 all others of the container end at once."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    close_to_neighbours()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while not end.exists():
        signal.sigtimedwait({signal.SIGCHLD}, 0.05)
        reap_children()
    os._exit(min(len(others()), _COUNTED))
