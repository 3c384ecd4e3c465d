"""What an agent is, in a file: instructions, greeting, voice, tools. `from bargein.agent import Agent`."""

from .call import Call
from .definition import Agent, AgentError, Mcp, ToolError

__all__ = ["Agent", "AgentError", "Call", "Mcp", "ToolError"]
