"""The agent: loop, tools, context and self-summary.

The harness that trains is the harness that ships."""

from etude.harness.apply import ApplyConflict
from etude.harness.chat_policy import ChatPolicy, Endpoint
from etude.harness.folder import FolderTooLarge
from etude.harness.here import FolderWorkspace
from etude.harness.loop import Observer, run_agent
from etude.harness.messages import openai_messages, whole_chain
from etude.harness.outcome import Budgets, Outcome, Prices
from etude.harness.permissions import Answer, Denied, Permissions, PermissionsError, Rule, Wish
from etude.harness.plan import budgets_of, format_of, profile_of, session_schemas, tool_limits
from etude.harness.policy import (
    ContextFull,
    Conversation,
    Message,
    Policy,
    PolicyError,
    Role,
    ToolCall,
    Turn,
)
from etude.harness.profile import Profile, load_profile
from etude.harness.recording import RecordingPolicy
from etude.harness.runner import BoxRunner, ExecMemo, folder_workspace, lazy_workspace
from etude.harness.schema import SchemaError, ToolSchema, builtin_schema
from etude.harness.scripted import ScriptedPolicy
from etude.harness.session import ChatSession, write_sample
from etude.harness.stream import Piece
from etude.harness.token_policy import TokenPolicy, TokenSampling
from etude.harness.toolbox import Output, Tool, Toolbox, ToolLimits, ToolProblem, ToolResult
from etude.harness.workspace import (
    WORKDIR,
    BoxWorkspace,
    NoShell,
    OutsideWorkspace,
    OverlayWorkspace,
    Workspace,
)

__all__ = [
    "WORKDIR",
    "Answer",
    "ApplyConflict",
    "BoxRunner",
    "BoxWorkspace",
    "Budgets",
    "ChatPolicy",
    "ChatSession",
    "ContextFull",
    "Conversation",
    "Denied",
    "Endpoint",
    "ExecMemo",
    "FolderTooLarge",
    "FolderWorkspace",
    "Message",
    "NoShell",
    "Observer",
    "Outcome",
    "Output",
    "OutsideWorkspace",
    "OverlayWorkspace",
    "Permissions",
    "PermissionsError",
    "Piece",
    "Policy",
    "PolicyError",
    "Prices",
    "Profile",
    "RecordingPolicy",
    "Role",
    "Rule",
    "SchemaError",
    "ScriptedPolicy",
    "TokenPolicy",
    "TokenSampling",
    "Tool",
    "ToolCall",
    "ToolLimits",
    "ToolProblem",
    "ToolResult",
    "ToolSchema",
    "Toolbox",
    "Turn",
    "Wish",
    "Workspace",
    "budgets_of",
    "builtin_schema",
    "folder_workspace",
    "format_of",
    "lazy_workspace",
    "load_profile",
    "openai_messages",
    "profile_of",
    "run_agent",
    "session_schemas",
    "tool_limits",
    "whole_chain",
    "write_sample",
]
