"""Tools and the choice among them, as Converse's `toolConfig`."""

from collections.abc import Mapping
from typing import Any, Final

from headgate.providers.params import refused
from headgate.providers.parts import function_of, tools_of

# Converse refuses earlier tool calls without any tool, and it knows no "none": one that does nothing stands in.
_PLACEHOLDER: Final = {
    "toolSpec": {
        "name": "no_tools_now",
        "description": "There are no tools any more. Never call this; answer in words.",
        "inputSchema": {"json": {"type": "object", "properties": {}}},
    }
}


def tool_config(params: Mapping[str, Any], *, used_before: bool) -> dict[str, Any] | None:
    """`used_before`: the messages hold tool calls or results."""
    specs = [_spec(tool, f"tools[{index}]") for index, tool in enumerate(tools_of(params))]
    choice = params.get("tool_choice")
    picked = _picked(choice)
    if picked and not specs:
        raise refused("tool_choice", "asks for a tool, but there are no tools")
    if not specs or choice == "none":
        return {"tools": [_PLACEHOLDER]} if used_before else None
    return {"tools": specs, "toolChoice": picked} if picked else {"tools": specs}


def _spec(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    function = function_of(tool, where)
    if function is None:
        raise refused(where, "is no function, and bedrock takes no other tools")
    spec: dict[str, Any] = {"name": function.name, "inputSchema": {"json": function.parameters}}
    if function.description:
        spec["description"] = function.description
    if function.strict:
        spec["strict"] = True
    return {"toolSpec": spec}


def _picked(choice: object) -> dict[str, Any] | None:
    """None where the model decides by itself: that is what Converse does when nothing is said."""
    match choice:
        case None | "auto" | "none":
            return None
        case "required":
            return {"any": {}}
        case {"type": "function", "function": {"name": str(name)}}:
            return {"tool": {"name": name}}
    raise refused("tool_choice", "must be auto, none, required or a function by its name")
