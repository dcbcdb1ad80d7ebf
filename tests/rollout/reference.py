"""The slowest engine that is obviously right: one episode at a time, one list of (token, writer, turn, log-prob)."""

from __future__ import annotations

import zlib
from collections import Counter
from types import SimpleNamespace

import jax
import numpy as np

from slca.chat.parse import parse
from slca.rollout.sampler import row_keys
from slca.tasks.schema import ToolSet, call_hash
from slca.types import ENV, POLICY, PROMPT, Context
from tests.rollout.fakes import draw


def run(script, task, sample, template, simulate, config, *, seed, step, capacity):
    """One episode; a namespace with row, end and results."""
    r, out = config.rollout, SimpleNamespace(row=[], end=None, results=[])
    prompt = template.prompt(task.messages, task.tools)
    out.row = [(token, PROMPT, -1, 0.0) for token in prompt]
    out.end = _turns(out, script, task, sample, template, simulate, r, len(prompt), capacity, seed, step)
    return out


def _turns(out, script, task, sample, template, simulate, r, start, capacity, seed, step):
    seen, calls_made, malformed, timed_out, users, messages = Counter(), 0, 0, 0, 0, list(task.messages)
    context, tools, control = Context(group=task.id, sample=sample), ToolSet.load(task.tools), template.tokenizer.control
    for turn in range(r.max_turns):
        said, stopped, forged = [], False, False
        limit = min(r.max_turn_tokens, r.max_response_tokens - (len(out.row) - start), capacity - len(out.row))
        key = _key(seed, step, zlib.crc32(f"{task.id}#0".encode()) & 0x7FFFFFFF, sample, turn)
        while len(said) < limit and not stopped and not forged:
            token, logprob = draw(script, [entry[0] for entry in out.row] + [entry[0] for entry in said], key)
            said.append((token, POLICY, turn, logprob))
            stopped = token in template.stop_ids
            forged = token in {control[marker] for marker in template.environment_markers}
        ids = [entry[0] for entry in said]
        for n in range(1, len(ids) + 1):  # a marker in plain text: nothing after it counts
            if not forged and parse(template.tokenizer.decode(ids[:n])).forged:
                said, forged = said[:n], True
        out.row += said
        out.results.append([])
        if forged:
            return "forged"
        if not stopped:
            return "truncated"
        parsed = parse(template.tokenizer.decode(ids[:-1]))
        messages.append({"role": "assistant", "content": parsed.text})
        if not parsed.calls and not parsed.errors:
            if users == len(task.followups):
                return "answered"
            if turn + 1 == r.max_turns:
                return "max_turns"
            new = [{"role": "user", "content": task.followups[users]}]
            users += 1
        else:
            seen.update(map(call_hash, parsed.calls))
            malformed += not parsed.calls
            if calls_made + len(parsed.calls) > r.max_calls:
                return "max_calls"
            if parsed.calls and max(seen[call_hash(call)] for call in parsed.calls) > r.max_repeats:
                return "repeat_limit"
            if malformed > r.max_malformed:
                return "malformed_limit"
            if turn + 1 == r.max_turns:
                return "max_turns"
            calls_made += len(parsed.calls)
            try:
                results = [simulate(call, tools, context) for call in parsed.calls]
            except ZeroDivisionError:
                return "dead"
            out.results[-1] = results
            texts = []
            for block in parsed.blocks:
                texts += [results[parsed.calls.index(call)].text for call in block.calls]
                texts += [f"error: {error.kind}: {error.message}" for error in block.errors]
            texts += [f"error: {error.kind}: {error.message}" for error in parsed.errors if error.block < 0]
            new = [{"role": "tool", "content": text} for text in texts]
            if any(result.status == "sim_failed" for result in results):
                return "sim_failed"
            timed_out += any(result.status == "timeout" for result in results)
            if timed_out > 1:
                return "tool_timeout"
        suffix = template.suffix(messages, new)
        if min(capacity - len(out.row), r.max_response_tokens - (len(out.row) - start)) - len(suffix) < 4:
            return "context_full"
        out.row += [(token, ENV, -1, 0.0) for token in suffix]
        messages += new


def _key(seed, step, *parts):
    return np.asarray(jax.random.key_data(row_keys(seed, step, *np.array(parts, np.int32)[:, None])))[0]
