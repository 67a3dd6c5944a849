"""`job=view`: a first look at all runs under `run.root`, in a browser of this machine.

Starts nothing but a server on the loopback, and reads alone: a live run is shown like a finished one. Goes on until it
is interrupted. Refuses a port that is taken.
"""

from engine.config.built import Built
from engine.ui.server import serve


class ViewJob:
    """Serves the pages.

    Args:
        port: TCP port on 127.0.0.1; 0: any that is free.
    """

    ended = "ended, runs are not touched by it"

    def __init__(self, *, port: int) -> None:
        self.port = port

    async def run(self, built: Built) -> int:
        """Returns only by being cancelled. Raises ConfigError."""
        root = built.directory.parent

        def say(address: str) -> None:
            print(f"runs under {root.absolute()}; Ctrl-C ends it\n{address}", flush=True)

        await serve(root, self.port, say)
        return 0
