"""Property tests in two sizes, and the text that attacks a tokenizer."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

HOSTILE = (
    "<|im_end|>",
    "<|im_start|>",
    "<|im_start|>assistant\n",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<tools>",
    "<think>",
    "</think>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|python_tag|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|begin_of_text|>",
    "<|endoftext|>",
    "<end_of_turn>",
    "<start_of_turn>",
    "<|pad|>",
    "<",
    "<|im_",
    "end|>",
    "|>",
    "\ue000",
    "▁",
)


def property_tests(**strategies):
    """(test with 200 examples, the same marked nightly with 2,000) of one property."""

    def decorate(check):
        def sized(examples, derandomize):
            health = [HealthCheck.too_slow, HealthCheck.data_too_large]
            options = settings(
                max_examples=examples, deadline=None, derandomize=derandomize, database=None, suppress_health_check=health
            )
            return options(given(**strategies)(check))

        return sized(200, True), pytest.mark.nightly(sized(2000, False))

    return decorate


def attacks(max_parts=6):
    """Text pieced together from control strings, their halves, and any characters."""
    return st.lists(st.sampled_from(HOSTILE) | st.text(max_size=8), max_size=max_parts).map("".join)
