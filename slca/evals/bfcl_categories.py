"""Names of BFCL's categories, so that a wrong one is said before the grader is installed."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

# What the paper reports (arXiv 2609.29050, evaluation): its tables leave out irrelevance, relevance and long context.
PAPER = (
    "simple_python", "multiple", "parallel", "parallel_multiple", "simple_java", "simple_javascript", "live_simple",
    "live_multiple", "live_parallel", "live_parallel_multiple", "multi_turn_base", "multi_turn_miss_func", "multi_turn_miss_param",
)  # fmt: skip
DEFAULT = ("simple_python", "multiple", "parallel", "parallel_multiple", "irrelevance")
# Those of the pinned version of the package, which has the last word.
KNOWN = {
    "single_turn": (
        "simple_python", "simple_java", "simple_javascript", "multiple", "parallel", "parallel_multiple", "irrelevance", "live_simple",
        "live_multiple", "live_parallel", "live_parallel_multiple", "live_irrelevance", "live_relevance",
    ),
    "multi_turn": ("multi_turn_base", "multi_turn_miss_func", "multi_turn_miss_param", "multi_turn_long_context"),
    "agentic": ("memory_kv", "memory_vector", "memory_rec_sum", "web_search_base", "web_search_no_snippet"),
}  # fmt: skip


def categories(options: argparse.Namespace, known: Mapping[str, Sequence[str]]) -> list[str]:
    """Category names, groups expanded. Raises ValueError for an unknown one, and for agentic ones that only an oracle can
    answer."""
    if options.paper_subset:
        return list(PAPER)
    asked = [name.strip() for name in options.categories.split(",") if name.strip()]
    if options.categories and not asked:
        raise ValueError(f"--categories={options.categories}: names no category; choose of {', '.join(KNOWN)} or their members")
    asked = asked or list(DEFAULT)
    names = list(dict.fromkeys(part for name in asked for part in known.get(name, [name])))
    every = [name for group in known.values() for name in group]
    if unknown := [name for name in names if name not in every]:
        raise ValueError(f"--categories: unknown {', '.join(unknown)}; choose of {', '.join((*known, *every))}")
    agentic = [name for name in names if name in known["agentic"]]
    if agentic and not (options.oracle or options.silent):
        raise ValueError(
            f"--categories: {', '.join(agentic)} need a paid search API, a hub's embedding model or memories of earlier chats; "
            "not run here (--oracle and --silent are graded)"
        )
    return names
