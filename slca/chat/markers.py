"""The strings that structure a turn, in every supported format."""

from __future__ import annotations

import re

CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"
THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
PYTHON_TAG = "<|python_tag|>"

# What only the environment may write: results and turn headers. A policy that writes one forges the environment.
ENVIRONMENT_MARKERS = (
    "<tool_response>",
    "</tool_response>",
    "<|im_start|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<start_of_turn>",
)


def any_of(*words: str) -> re.Pattern[str]:
    """A pattern for any of the words, literally."""
    return re.compile("|".join(map(re.escape, words)))
