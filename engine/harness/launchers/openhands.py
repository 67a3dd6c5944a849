"""Runs one unmodified OpenHands agent inside a sandbox, through the SDK's public API alone; see `process`."""

from collections.abc import Sequence
from typing import Any

from . import process

IMPORT_ENVIRONMENT = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # no download of prices
    "LITELLM_MODE": "PRODUCTION",  # its default mode reads a `.env` file
    "OPENHANDS_SUPPRESS_BANNER": "1",
    "LOG_LEVEL": "WARNING",
    "ALLOW_SHORT_CONTEXT_WINDOWS": "true",  # the endpoint bounds the context; small windows are meant
}
ENCODINGS = ("big5", "euc_jp", "euc_kr", "gb2312", "shift_jis", "utf_16_be", "utf_16_le", "utf_32_be", "utf_32_le")
"""What the file editor tries on a file."""
IMPORTED = (
    *(f"encodings.{name}" for name in ENCODINGS),
    "litellm.llms.vertex_ai.vertex_ai_partner_models.anthropic.transformation",
    "litellm.proxy._experimental.mcp_server.utils",
    "litellm.responses.mcp.chat_completions_handler",
    "openhands.sdk",
    "openhands.sdk.context.condenser",
    "openhands.sdk.llm.exceptions",
    "openhands.sdk.llm.provider_connection_store",
    "openhands.tools.file_editor",
    "openhands.tools.task_tracker",
    "openhands.tools.terminal",
    *process.LITELLM,
)


class Progress:
    """Counts events by kind and keeps the last error that the conversation itself reported."""

    def __init__(self) -> None:
        self.events: dict[str, int] = {}
        self.code = ""
        self.detail = ""

    def __call__(self, event: Any) -> None:
        kind = type(event).__name__
        self.events[kind] = self.events.get(kind, 0) + 1
        if kind == "ConversationErrorEvent":
            self.code, self.detail = event.code, event.detail


def prepare(settings: dict[str, Any]) -> tuple[Any, Progress]:
    """Agent and conversation, and what its events are noted in."""
    from openhands.sdk import LLM, Agent, LocalConversation, Tool
    from openhands.sdk.context.condenser import LLMSummarizingCondenser
    from openhands.tools.file_editor import FileEditorTool
    from openhands.tools.task_tracker import TaskTrackerTool
    from openhands.tools.terminal import TerminalTool

    known = {tool.name for tool in (TerminalTool, FileEditorTool, TaskTrackerTool)}  # importing them registers them
    unknown = settings["tools"].keys() - known
    if unknown:
        raise ValueError(f"unknown tools {sorted(unknown)}; this SDK has {sorted(known)}")
    llm = LLM(**settings["llm"])
    condenser = None
    if settings["condenser"] is not None:
        condenser = LLMSummarizingCondenser(
            llm=llm.model_copy(update={"usage_id": "condenser"}), **settings["condenser"]
        )
    tools = [Tool(name=name, params=params) for name, params in settings["tools"].items()]
    agent = Agent(llm=llm, tools=tools, condenser=condenser, **settings["agent"])
    progress = Progress()
    conversation = LocalConversation(agent=agent, visualizer=None, callbacks=[progress], **settings["conversation"])
    return conversation, progress


def converse(conversation: tuple[Any, Progress], settings: dict[str, Any], report: dict[str, Any]) -> int:
    """Send the instruction and run until the SDK stops."""
    talk, progress = conversation
    try:
        talk.send_message(settings["instruction"])
        talk.run()
    finally:
        report |= {"status": talk.state.execution_status.value, "events": progress.events}
        if progress.code:
            report["error"] = f"{progress.code}: {progress.detail}"
    return exit_code_at(report["status"], progress.code)


def exit_code_at(status: str, code: str) -> int:
    """Which ending it is when `conversation.run` returned, from its final status and last error code."""
    if status == "finished":
        return process.EXIT_FINISHED
    if status == "stuck":
        return process.EXIT_NO_PROGRESS
    return process.EXIT_MAX_TURNS if code == "MaxIterationsReached" else process.EXIT_CRASHED


def exit_code_of(chain: Sequence[BaseException]) -> int | None:
    """The SDK's own exceptions about the endpoint."""
    from openhands.sdk.llm import exceptions as llm

    if any(isinstance(link, llm.LLMContextWindowExceedError) for link in chain):
        return process.EXIT_CONTEXT_OVERFLOW
    if any(isinstance(link, llm.LLMBadRequestError | llm.LLMMalformedConversationHistoryError) for link in chain):
        return process.EXIT_REFUSED
    return process.EXIT_UNSERVED if any(isinstance(link, llm.LLMError) for link in chain) else None
