"""Runs under the Python of bfcl-eval's virtual environment; imports nothing of slca.

    python bfcl_worker.py serve               # JSON lines: entries of a category, execution of parsed calls
    python bfcl_worker.py evaluate ARGUMENTS  # one registry entry a name of --model, then the package's own command line

`serve` executes calls by name with JSON arguments on instances of the official classes, a fresh set a rollout. The package's
own executor evaluates the model's text as Python and keeps its instances for ever under the name of the model (a group of
rollouts of one entry would share them).
"""

import ast
import copy
import importlib
import inspect
import json
import os
import sys

SAFE_NAME = "unknown_function"  # a name that no class has: the official executor answers with an error


def public_methods(instance):
    """Name -> bound method, as the official executor finds them."""
    return {name: method for name, method in inspect.getmembers(instance, inspect.ismethod) if not name.startswith("_")}


class World:
    """Instances of one rollout."""

    def __init__(self, entry):
        from bfcl_eval.constants.executable_backend_config import CLASS_FILE_PATH_MAPPING, STATELESS_CLASSES

        self.methods = {}
        for name in entry["involved_classes"]:
            instance = getattr(importlib.import_module(CLASS_FILE_PATH_MAPPING[name]), name)()
            if name not in STATELESS_CLASSES:
                config = copy.deepcopy(entry.get("initial_config", {}).get(name, {}))
                instance._load_scenario(config, long_context="long_context" in entry["id"])
            self.methods.update(public_methods(instance))

    def call(self, name, arguments):
        """The result as the official executor words it."""
        if name not in self.methods:
            return f"Error during execution: name '{name}' is not defined"
        try:
            result = self.methods[name](**arguments)
        except Exception as error:
            return f"Error during execution: {error}"
        if isinstance(result, str):
            return result
        if isinstance(result, dict):
            try:
                return json.dumps(result)
            except (TypeError, ValueError):
                return str(result)
        return str(result)

    def parsed(self, text):
        """{"name", "arguments"} of a ground-truth call such as `f('x', y=[1])`."""
        node = ast.parse(text, mode="eval").body
        given = [ast.literal_eval(argument) for argument in node.args]
        names = list(inspect.signature(self.methods[node.func.id]).parameters) if given else []
        arguments = dict(zip(names, given)) | {keyword.arg: ast.literal_eval(keyword.value) for keyword in node.keywords}
        return {"name": node.func.id, "arguments": arguments}


def entries(category):
    """The entries of a category as shown to a model (language hints included), each with its `ground_truth` (None = has
    none)."""
    from bfcl_eval.constants.default_prompts import DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC
    from bfcl_eval.utils import is_relevance_or_irrelevance, load_dataset_entry, load_ground_truth_entry

    shown = load_dataset_entry(category, include_prereq=False)
    declared = load_dataset_entry(category, include_prereq=False, include_language_specific_hint=False)
    truth = [{"ground_truth": None}] * len(shown)
    if not is_relevance_or_irrelevance(category):
        truth = load_ground_truth_entry(category)
    for entry, plain, answer in zip(shown, declared, truth):
        entry["declared"], entry["ground_truth"] = plain["function"], answer["ground_truth"]
        for turn in entry.get("missed_function", ()):  # the turn at which withheld functions come has no message of its own
            entry["question"][int(turn)] = [{"role": "user", "content": DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC}]
        if "initial_config" in entry and category.startswith("multi_turn"):
            world = World(entry)
            entry["ground_truth"] = [[world.parsed(call) for call in turn] for turn in entry["ground_truth"]]
    return shown


def serve():
    """Answer JSON lines on standard input until it closes; what the package prints goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    worlds = {}
    for line in sys.stdin:
        request = json.loads(line)
        kind, key = request["op"], request.get("key")
        try:
            if kind == "entries":
                value = entries(request["category"])
            elif kind == "categories":
                from bfcl_eval.constants import category_mapping as known

                value = {
                    "single_turn": known.SINGLE_TURN_CATEGORY,
                    "multi_turn": known.MULTI_TURN_CATEGORY,
                    "agentic": known.AGENTIC_CATEGORY,
                }
            elif kind == "open":
                worlds[key] = World(request["entry"])
                value = None
            elif kind == "call":
                value = [worlds[key].call(call["name"], call["arguments"]) for call in request["calls"]]
            elif kind == "close":
                worlds.pop(key, None)
                value = None
            else:
                raise ValueError(f"unknown op {kind!r}")
            answer = {"value": value}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def sound(value):
    """JSON data without half surrogates."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [sound(item) for item in value]
    if isinstance(value, dict):
        return {sound(key): sound(item) for key, item in value.items()}
    return value


def evaluate(arguments):
    """`bfcl evaluate` as it is, with a registry entry for each name of ours."""
    from bfcl_eval.__main__ import cli
    from bfcl_eval.constants.model_config import MODEL_CONFIG_MAPPING, ModelConfig
    from bfcl_eval.model_handler.local_inference.qwen_fc import QwenFCHandler
    from bfcl_eval.utils import load_file

    documents = importlib.import_module("bfcl_eval.constants.eval_config").MULTI_TURN_FUNC_DOC_PATH
    known = {document["name"] for file in documents.glob("*.json") for document in load_file(file)}

    class Handler(QwenFCHandler):
        """The official decoder of Hermes text."""

    def extract(text):
        """Half surrogates, which a model may write as escapes, become U+FFFD: the package fails to write them to its score file, and
        no right answer has one."""
        return sound(QwenFCHandler._extract_tool_calls(text))

    def decode_execute(self, result, has_tool_call_tag):
        """Before execution, names that no official class documents and keys that are no identifiers give way to a call that
        fails, as they would: the executor hands the text to Python's `eval`."""
        calls = self._extract_tool_calls(result)
        for call in calls:
            sound = isinstance(call.get("arguments"), dict) and all(key.isidentifier() for key in call["arguments"])
            if call.get("name") not in known or not sound:
                call.update(name=SAFE_NAME, arguments={})
        text = "".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>\n" for call in calls)
        return QwenFCHandler.decode_execute(self, text, has_tool_call_tag)

    Handler._extract_tool_calls = staticmethod(extract)
    Handler.decode_execute = decode_execute  # not in the class body: the package's metaclass wants a decorator of its own there
    for name in arguments[arguments.index("--model") + 1].split(","):
        MODEL_CONFIG_MAPPING[name] = ModelConfig(
            model_name=name, display_name=name, url="", org="", license="", model_handler=Handler, is_fc_model=True
        )
    cli(["evaluate", *arguments])


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve()
    else:
        evaluate(sys.argv[2:])
