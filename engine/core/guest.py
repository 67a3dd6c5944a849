"""Where a harness's files lie in its sandbox, and what a configuration's texts can have put in: shared by the adapters
and by the rules that read a configuration before any adapter is made."""

RUNTIME = "/opt/agent"
"""Where the runtime is mounted in every sandbox."""
FOLDER = "/run/lego"
"""Folder for launcher, settings and report; outside the repository and its tools' reach."""
REPORT = f"{FOLDER}/report.json"
PROMPT = f"{FOLDER}/instruction"
"""The standard input of a program that is started as its own command."""
FORGET = f"{FOLDER}/forget"
"""What every bash reads before it starts."""
STATE = f"{FOLDER}/state"
"""Folder for a program's settings and sessions: outside the repository and the home of the agent's commands."""
TAKEN = (PROMPT, FORGET, REPORT)
"""Files of the engine's own."""

KEY = "api_key"
PLACEHOLDERS = ("runtime", "state", "workdir", "task", "base_url", "model", "max_turns", "machine")
"""Of every text of a `CommandHarness`; its environment has `KEY` too."""
PACKAGE_PLACEHOLDERS = ("version", "machine")
DEMONSTRATION_PLACEHOLDERS = ("workdir", "path", "buggy", "repair")
