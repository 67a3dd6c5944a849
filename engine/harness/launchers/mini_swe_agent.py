"""Runs one unmodified mini-swe-agent inside a sandbox, through its public Python interface alone; see `process`.

The agent is the package's `DefaultAgent`, the one that runs unattended, with the package's own configuration file for
`mini` (or its text-based variant) and its `LocalEnvironment`.
"""

from collections.abc import Sequence
from typing import Any

from . import process

IMPORT_ENVIRONMENT = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # no download of prices
    "LITELLM_MODE": "PRODUCTION",  # its default mode reads a `.env` file
    "MSWEA_SILENT_STARTUP": "1",
    "MSWEA_GLOBAL_CONFIG_DIR": "/run/lego/mini-swe-agent",  # made at import; by default in the agent's home
}
IMPORTED = (
    "encodings.unicode_escape",
    "litellm.integrations.generic_api.generic_api_callback",
    "litellm.litellm_core_utils.logging_callback_manager",
    "litellm.llms.github_copilot.authenticator",
    "litellm.llms.github_copilot.github_host",
    "litellm.llms.github_copilot.per_user_auth",
    "litellm.proxy.mcp_server.stdio_gate",
    "litellm.proxy.spend_tracking.savings",
    "minisweagent.agents.default",
    "minisweagent.config",
    "minisweagent.environments.local",
    "minisweagent.models.litellm_model",
    "minisweagent.models.litellm_textbased_model",
    "minisweagent.utils.serialize",
    *process.LITELLM,
)
ENDINGS = {
    "Submitted": process.EXIT_FINISHED,
    "LimitsExceeded": process.EXIT_MAX_TURNS,
    "RepeatedFormatError": process.EXIT_NO_PROGRESS,
}
"""The package's exit statuses that are endings; any other is a fault."""


def prepare(settings: dict[str, Any]) -> Any:
    """Model, environment and agent from the package's configuration file, with the trial's values over it."""
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.config import builtin_config_dir, get_config_from_spec
    from minisweagent.environments import get_environment
    from minisweagent.models import get_model
    from minisweagent.utils.serialize import recursive_merge

    # by its whole path: a bare name is looked for in the repository first
    packaged = get_config_from_spec(builtin_config_dir / settings["config"])
    config = recursive_merge(packaged, settings["changes"])
    del config["agent"]["mode"]  # of the interactive agent
    model = get_model(config=config["model"])
    # Its own retries (10 of up to a minute) repeat refusals too; the HTTP client below it tells them apart.
    model.abort_exceptions = [Exception]
    return DefaultAgent(model, get_environment(config["environment"], default_type="local"), **config["agent"])


def converse(conversation: Any, settings: dict[str, Any], report: dict[str, Any]) -> int:
    """Run until the agent submits or a limit of the package ends it."""
    try:
        report["status"] = conversation.run(settings["instruction"]).get("exit_status", "")
    finally:
        report["calls"] = conversation.n_calls
    code = ENDINGS.get(report["status"], process.EXIT_CRASHED)
    if code != process.EXIT_FINISHED:
        report["error"] = f"{report['status'] or 'no exit status'} after {conversation.n_calls} calls"
    return code


def exit_code_of(chain: Sequence[BaseException]) -> int | None:
    """What litellm's exceptions, which the package passes on, say of a request."""
    from litellm import exceptions as llm

    if any(isinstance(link, llm.ContextWindowExceededError) for link in chain):
        return process.EXIT_CONTEXT_OVERFLOW
    return process.EXIT_REFUSED if any(isinstance(link, llm.BadRequestError) for link in chain) else None
