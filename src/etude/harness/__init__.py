"""The agent harness: loop, tools, context and self-summary. Training and users run the same harness."""

from etude.harness.context.profile import Profile, load_profile
from etude.harness.editing.apply import ApplyConflict
from etude.harness.from_recipe import budgets_of, format_of, profile_of, session_schemas
from etude.harness.loop import Observer, run_agent
from etude.harness.outcome import Budgets, Outcome, Prices
from etude.harness.permissions import Answer, Denied, Permissions, PermissionsError, RequestedAction, Rule
from etude.harness.policies.chat import ChatPolicy, Endpoint
from etude.harness.policies.chat_stream import Piece
from etude.harness.policies.recording import RecordingPolicy
from etude.harness.policies.scripted import ScriptedPolicy
from etude.harness.policies.token import TokenPolicy, TokenSampling
from etude.harness.policy import ContextFull, Policy, PolicyError
from etude.harness.schema import SchemaError, ToolSchema, builtin_schema
from etude.harness.session import ChatSession, write_sample
from etude.harness.toolbox import Toolbox, ToolResult
from etude.harness.tools.context import Output, ToolLimits, ToolProblem
from etude.harness.workspaces.box_runner import ExecMemo, folder_workspace, lazy_workspace
from etude.harness.workspaces.folder_files import FolderTooLarge
from etude.harness.workspaces.user_folder import FolderWorkspace
from etude.harness.workspaces.workspace import (
    WORKDIR,
    NoShell,
    OutsideWorkspace,
    OverlayWorkspace,
    Workspace,
)
from etude.trace.conversation.messages import Conversation, Message, Role, ToolCall, Turn

__all__ = [
    "WORKDIR",
    "Answer",
    "ApplyConflict",
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
    "RequestedAction",
    "Role",
    "Rule",
    "SchemaError",
    "ScriptedPolicy",
    "TokenPolicy",
    "TokenSampling",
    "ToolCall",
    "ToolLimits",
    "ToolProblem",
    "ToolResult",
    "ToolSchema",
    "Toolbox",
    "Turn",
    "Workspace",
    "budgets_of",
    "builtin_schema",
    "folder_workspace",
    "format_of",
    "lazy_workspace",
    "load_profile",
    "profile_of",
    "run_agent",
    "session_schemas",
    "write_sample",
]
