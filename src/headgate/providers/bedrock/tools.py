"""Tools and the choice among them, turned into Converse's `toolConfig`."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from headgate.providers.bedrock.faults import rejected

# Converse refuses earlier tool calls without any tool, and it knows no "none": one that does nothing stands in.
_PLACEHOLDER: Final = {
    "toolSpec": {
        "name": "no_tools_now",
        "description": "There are no tools any more. Never call this; answer in words.",
        "inputSchema": {"json": {"type": "object", "properties": {}}},
    }
}


def tool_config(tools: Any, choice: Any, *, used_before: bool) -> dict[str, Any] | None:
    """`used_before`: the messages hold tool calls or results."""
    specs = _specs(tools)
    picked = _choice(choice)
    if not specs and picked:
        raise rejected("tool_choice", "asks for a tool, but there are no tools")
    if not specs or choice == "none":
        return {"tools": [_PLACEHOLDER]} if used_before else None
    return {"tools": specs, "toolChoice": picked} if picked else {"tools": specs}


def _specs(tools: Any) -> list[dict[str, Any]]:
    if tools is None:
        return []
    if isinstance(tools, str) or not isinstance(tools, Sequence):
        raise rejected("tools", "must be a list")
    return [_spec(f"tools[{index}]", tool) for index, tool in enumerate(tools)]


def _spec(path: str, tool: Any) -> dict[str, Any]:
    match tool:
        case {"type": "function", "function": {"name": str(name)} as function}:
            return {"toolSpec": {"name": name, **_details(function)}}
    raise rejected(path, "must be of type function, with a name; Bedrock takes no others")


def _details(function: Mapping[str, Any]) -> dict[str, Any]:
    schema = function.get("parameters")
    details: dict[str, Any] = {"inputSchema": {"json": schema or {"type": "object", "properties": {}}}}
    if function.get("description"):
        details["description"] = function["description"]
    if function.get("strict"):
        details["strict"] = True
    return details


def _choice(choice: Any) -> dict[str, Any] | None:
    """None where the model decides by itself: that is what Converse does when nothing is said."""
    match choice:
        case None | "auto" | "none":
            return None
        case "required":
            return {"any": {}}
        case {"type": "function", "function": {"name": str(name)}}:
            return {"tool": {"name": name}}
    raise rejected("tool_choice", "must be auto, none, required or the name of one function")
