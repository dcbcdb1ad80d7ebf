"""Whole episodes of a scripted policy over the engine: a sick simulator costs its own rollouts only; real tools work end to end."""

import json
import sys

import pytest

from slca.rollout.engine import rollout
from slca.sgls.backends import OpenAI
from slca.sgls.endpoint import Endpoint
from slca.sgls.simulator import Simulator
from slca.types import Task
from tests.rollout.fakes import ScriptedSampler, Template, Tokenizer
from tests.sgls.server import Server
from tests.sgls.tools import SPECS

encode, STOP = Tokenizer().encode, 1


def caller(calls):
    """A policy that makes one of `calls` (which one: by its key), then answers."""

    def script(row, key):
        if "tool\n" in Tokenizer().decode(row):
            return [*encode("It is done."), STOP]
        return [*encode(f"<tool_call>{json.dumps(calls[key % len(calls)])}</tool_call>"), STOP]

    return script


def play(config, script, simulator, tools, tasks=1):
    config.rollout.update(
        {"group": 6, "max_turns": 3, "max_turn_tokens": 200, "max_response_tokens": 900, "max_prompt_tokens": 100}
    )
    asked = [Task(f"task-{i}", [{"role": "user", "content": "go"}], tools, [[]]) for i in range(tasks)]
    return rollout(None, asked, ScriptedSampler(script), Template(), simulator, config, seed=1, step=0)


def weather(city):
    return {"name": "get_weather", "arguments": {"city": city}}


def test_f15_a_simulator_that_fails_three_times_leaves_that_rollout_unscored(config):
    def server(body):
        return "not the schema" if "Sick" in body["messages"][1]["content"] else '{"city": "Oslo", "temp_c": 4}'

    with Server([server]) as one:
        endpoint = Endpoint(one.url, "m", timeout=5.0)
        simulator = Simulator(OpenAI(endpoint, temperature=0.6, max_tokens=50))
        episodes = play(config, caller([weather("Sick"), weather("Oslo")]), simulator, SPECS, tasks=4)
        simulator.close()
    ends = [episode.end for episode in episodes]
    assert set(ends) == {"sim_failed", "answered"} and len(episodes) == 24
    for episode in episodes:
        sick = episode.turns[0].calls[0].arguments["city"] == "Sick"
        assert episode.scored is not sick and (episode.end == "sim_failed") is sick
        if not sick:
            assert episode.observations[0][0].status == "ok" and len(episode.turns) == 2
    # A group asks once for each call, three times where the reply is refused.
    sick = {e.task.id for e in episodes if not e.scored}
    well = {e.task.id for e in episodes if e.scored}
    assert len(one.requests) <= 3 * sum(not e.scored for e in episodes) + len(well) and len(one.requests) >= 3 * len(
        sick
    ) + len(well)


def test_a_group_meets_one_scripted_world(config):
    episodes = play(config, caller([weather("Oslo"), weather("Rome")]), Simulator.from_config(config.sgls), SPECS, tasks=3)
    worlds = {}
    for episode in episodes:
        (call,), ((observation,), _) = episode.turns[0].calls, episode.observations
        worlds.setdefault((episode.task.id, call.arguments["city"]), set()).add(observation.text)
    assert {e.end for e in episodes} == {"answered"} and len(worlds) == 6
    assert all(len(texts) == 1 for texts in worlds.values())


@pytest.mark.nightly
def test_a_published_mcp_server_in_episodes(config):
    pytest.importorskip("mcp_server_time", reason="PyPI mcp-server-time is not installed")
    from slca.sgls.remote import ToolServer

    call = {"name": "get_current_time", "arguments": {"timezone": "Europe/Oslo"}}
    with ToolServer([sys.executable, "-m", "mcp_server_time"]) as server:
        episodes = play(config, caller([call]), server, server.toolset.specs)
    assert {episode.end for episode in episodes} == {"answered"}
    assert all('"timezone": "Europe/Oslo"' in episode.messages[2]["content"] for episode in episodes)
