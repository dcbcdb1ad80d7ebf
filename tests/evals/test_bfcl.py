"""The road to BFCL's official grader: what goes into its files, and (where it is installed) what it says of known answers."""

import json
import subprocess
import sys

import pytest

from slca.evals import bfcl
from slca.evals.bfcl_answers import DAMAGES, decoded, oracle, silent, true_turns, without_calls, written
from slca.evals.bfcl_categories import KNOWN
from slca.evals.bfcl_generate import MAX_STEPS, Worker, multi_turn, read, single_turn
from slca.evals.chat import Reply
from slca.evals.graders import BFCL, GraderError
from slca.types import ToolCall

CD = ToolCall("cd", {"folder": "a"})
FUNCTIONS = [{"name": "cd", "description": "", "parameters": {"type": "dict", "properties": {"folder": {"type": "string"}}}}]


def block(text):
    return f"<tool_call>\n{text}\n</tool_call>"


def entry(id="multi_turn_base_0", turns=1, truth=None):
    question = [[{"role": "user", "content": f"turn {i}"}] for i in range(turns)]
    calls = [[{"name": "cd", "arguments": {"folder": "a"}}]] * turns if truth is None else truth
    return {"id": id, "question": question, "function": FUNCTIONS, "declared": FUNCTIONS, "ground_truth": calls}


class Files:
    """Stands in for the worker: answers each call with its number in the conversation."""

    def __init__(self):
        self.calls = {}

    def open(self, entry):
        assert entry["id"] not in self.calls
        self.calls[entry["id"]] = []

    def call(self, key, calls):
        self.calls[key] += calls
        return [f"result {len(self.calls[key])}"] * len(calls)

    def close(self, key):
        self.calls[key].append("closed")


def test_the_official_form_is_written_and_read():
    calls = [CD, ToolCall("geo.find", {"x": [1, None, {"é": True}]})]
    assert decoded(written(calls)) == calls
    assert decoded(f"Well.\n{block('{broken')}\n{written([CD])}") == [CD]
    assert decoded(written([CD]).replace(">\n", ">").replace("\n</", "</")) == []  # its pattern wants the newlines
    assert decoded(block('["cd"]')) == decoded(block('{"name": 1, "arguments": {}}')) == []
    assert without_calls(f"a{written([CD])}b") == "ab"


def test_three_ways_to_read_a_reply():
    thought = f"<think>\nmaybe {written([CD])}\n</think>\n\n{written([CD])}"
    assert read(Reply(thought), "official", "hermes") == (written([CD]), [CD])
    one_line = '<tool_call>{"name": "cd", "arguments": {"folder": "a"}}</tool_call>'
    assert read(Reply(one_line), "official", "hermes") == (one_line, [])
    assert read(Reply(one_line), "strict", "hermes") == (
        written([CD]),
        [CD],
    )  # training reads it: the file gets the official form
    twice = block('{"name": "cd", "arguments": {"folder": "a", "folder": "b"}}')
    text, calls = read(Reply(twice), "strict", "hermes")
    assert not calls and not decoded(text)  # what training refuses must not be scored
    assert read(Reply(written([CD]), []), "official", "hermes") == ("", [])  # the server found no call
    assert read(Reply("", [CD]), "official", "hermes") == (written([CD]), [CD])


def test_multi_turn_conversations_run_in_step():
    entries, files, asked = [entry("multi_turn_base_0", 2), entry("multi_turn_base_1", 1)], Files(), []
    policy = oracle(entries)

    def chat(requests):
        asked.append([(request.key, request.turn, request.step) for request in requests])
        return policy(requests)

    first, second = multi_turn(entries, chat, files, "official", "hermes")
    assert first.result == [[written([CD]), "Done."], [written([CD]), "Done."]] and second.result == [[written([CD]), "Done."]]
    assert [len(round) for round in asked] == [2, 2, 1, 1] and asked[2] == [("multi_turn_base_0", 1, 0)]
    assert files.calls["multi_turn_base_0"] == [CD, CD, "closed"] and first.calls == 2 and not first.cut


def test_tool_results_and_withheld_functions_reach_the_next_request():
    withheld = {"missed_function": {"1": [{**FUNCTIONS[0], "name": "ls"}]}}
    seen = []

    def chat(requests):
        seen.extend(requests)
        return oracle([one])(requests)

    one = {**entry(turns=2), **withheld}
    multi_turn([one], chat, Files(), "official", "hermes")
    roles = [message["role"] for message in seen[-1].messages]
    assert roles == ["user", "assistant", "tool", "assistant", "user", "assistant", "tool"]
    assert seen[1].messages[-1]["content"] == "result 1" and seen[1].messages[-1]["tool_call_id"] == "call_0_0_0"
    assert [[tool["function"]["name"] for tool in request.tools] for request in seen] == [["cd"]] * 2 + [["cd", "ls"]] * 2


def test_a_conversation_ends_early_when_nothing_fits_or_nothing_ends_it():
    def never_done(requests):
        return [Reply(written([CD])) for _ in requests]

    (answer,) = multi_turn([entry(turns=2)], never_done, Files(), "official", "hermes")
    assert answer.cut and answer.result == [[written([CD])] * 21] and answer.calls == MAX_STEPS + 1 == 21
    (answer,) = multi_turn([entry()], lambda requests: [Reply(skipped=True)], Files(), "official", "hermes")
    assert answer.skipped and answer.result == []
    (answer,) = single_turn([entry("simple_python_0")], lambda requests: [Reply(skipped=True)], "official", "hermes")
    assert answer.skipped


@pytest.mark.parametrize("turns", [1, 2])
def test_a_last_turn_without_an_end_is_graded_as_the_official_runner_has_it(turns):
    """It stops after MAX_STEPS + 1 rounds of calls and keeps them: in the last turn the lengths match, and the grader looks."""

    def done_but_for_the_last(requests):
        return [Reply("Done." if request.turn < turns - 1 else written([CD])) for request in requests]

    (answer,) = multi_turn([entry(turns=turns)], done_but_for_the_last, Files(), "official", "hermes")
    assert answer.cut and answer.result == [["Done."]] * (turns - 1) + [[written([CD])] * (MAX_STEPS + 1)]


@pytest.mark.parametrize("why", ["no room", "a call that hangs"])
def test_a_last_turn_that_the_grader_must_not_see_stays_out(why):
    """A prompt that does not fit is no answer; the grader would run the call that hangs as well."""
    files = Files()

    def chat(requests):
        return [Reply(written([CD]), skipped=why == "no room" and request.step == 1) for request in requests]

    if why == "a call that hangs":
        files.call = lambda key, calls: None
    (answer,) = multi_turn([entry()], chat, files, "official", "hermes")
    assert answer.cut and answer.result == [] and not answer.skipped


def test_the_oracle_takes_accepted_values_and_damages_every_second_entry():
    options = {"a": [1, 2], "b": ["", 3], "c": [""], "d": [{"e": ["f"]}], "undeclared": [4, ""]}
    parameters = {"type": "dict", "properties": {key: {"type": "any"} for key in "abcd"}, "required": ["a", "c"]}
    one = {"id": "simple_python_0", "declared": [{"name": "f", "parameters": parameters}], "ground_truth": [{"f": options}]}
    assert true_turns(one) == [[ToolCall("f", {"a": 1, "b": 3, "c": "", "d": {"e": "f"}})]]
    entries = [entry("multi_turn_base_0"), entry("multi_turn_base_1")]
    expected = {
        "wrong_value": [ToolCall("cd", {"folder": "quite another value"})], "renamed": [ToolCall("cd_x", {"folder": "a"})],
        "dropped": [], "repeated": [CD, CD], "no_newlines": [], "prose": [CD],
    }  # fmt: skip
    assert expected.keys() == DAMAGES.keys()
    for kind, calls in expected.items():
        replies = [multi_turn([one], oracle(entries, kind), Files(), "official", "hermes")[0] for one in entries]
        assert [decoded(reply.result[0][0]) for reply in replies] == [[CD], calls], kind
    assert decoded(silent([None])[0].text) == []


DEEP = block('{"name": "cd", "arguments": {"folder": ' + "[" * 3000 + "]" * 3000 + "}}")
HOSTILE = [
    DEEP, block('{"name": "cd", "arguments": {"folder": ' + "[" * 200 + "]" * 200 + "}}"),
    block('{"name": "cd", "arguments": {"folder": ' + "1" * 5000 + "}}"), block('{"name": "cd", "arguments": {"folder": NaN}}'),
    block('{"name": "cd", "arguments": {"folder": "\\ud800"}}'), block('{"name": "cd", "arguments": {"\\ud800": "\\u0000"}}'),
    block('{"name": "\\ud800", "arguments": {}}'), block('{"name": "echo", "arguments": {"content": "\\ud83d"}}'), block("null"),
    block('{"name": "cd", "arguments": {"self": 1}}'), block('{"name": {"a": 1}, "arguments": {}}'), "<think>" * 50, "\x00\u2028\r", "",
]  # fmt: skip


def test_hostile_replies_are_read():
    for text in HOSTILE:
        for how in ("official", "strict"):
            shown, calls = read(Reply(text), how, "hermes")
            assert isinstance(shown, str) and isinstance(written(calls), str)
    assert decoded(HOSTILE[0]) == decoded(HOSTILE[1]) == []


def test_an_interrupted_run_answers_only_what_is_missing(tmp_path):
    entries = {name: [entry(f"{name}_{i}") for i in range(2)] for name in ("simple_python", "multiple")}
    for rows in entries.values():
        for row in rows:
            row["ground_truth"] = [{"cd": {"folder": ["a"]}}]
            row["declared"] = [{"name": "cd", "parameters": FUNCTIONS[0]["parameters"]}]
    asked = []

    def chat(requests):
        asked.append([request.key for request in requests])
        if len(asked) == 2:
            raise KeyboardInterrupt
        return [Reply(written([CD]), prompt_tokens=7) for _ in requests]

    with pytest.raises(KeyboardInterrupt):
        bfcl.answer_all(entries, chat, "official", "hermes", Files(), tmp_path)
    answers = bfcl.answer_all(entries, chat, "official", "hermes", Files(), tmp_path)
    assert asked == [["simple_python_0", "simple_python_1"]] + [["multiple_0", "multiple_1"]] * 2
    assert [(a.id, a.calls, a.prompt_tokens) for a in answers["simple_python"]] == [
        ("simple_python_0", 1, 7),
        ("simple_python_1", 1, 7),
    ]
    rows = (tmp_path / "result" / bfcl.OWN / "BFCL_v4_multiple_result.json").read_text().splitlines()
    assert [json.loads(row)["id"] for row in rows] == ["multiple_0", "multiple_1"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "one of --checkpoint"),
        (["--oracle", "--silent"], "one of --checkpoint"),
        (["--url=http://127.0.0.1:1/v1"], "--model"),
        (["--oracle", "--damage=half"], "wrong_value"),
        (["--oracle", "--slots=0"], "--slots=0"),
        (["--oracle", "--paper-subset", "--categories=multiple"], "exclude"),
    ],
)
def test_wrong_commands_are_refused_at_once(flags, words, capsys):
    with pytest.raises(SystemExit) as stop:
        bfcl.main(flags)
    assert stop.value.code == 2 and words in capsys.readouterr().err


def test_a_missing_grader_is_named_with_the_remedy(tmp_path, capsys):
    assert bfcl.main(["--oracle", f"--venv={tmp_path}"]) == 2
    assert "slca.evals.bfcl --setup" in capsys.readouterr().err
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    assert bfcl.main(["--oracle", f"--venv={tmp_path}"]) == 2
    assert "not bfcl-eval 2026.3.23" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--oracle", "--categories=nonsense"], "--categories: unknown nonsense; choose of single_turn"),
        (["--oracle", "--categories=,"], "--categories=,: names no category"),
        (["--checkpoint=x", "--categories=memory_kv"], "memory_kv need"),
    ],
)
def test_categories_that_there_are_not_are_said_before_the_grader_is_missed(flags, words, tmp_path, capsys):
    assert bfcl.main([*flags, f"--venv={tmp_path}", f"--out={tmp_path / 'out'}"]) == 2
    said = capsys.readouterr().err
    assert words in said and "--setup" not in said and said.count("\n") == 1 and not (tmp_path / "out").exists()


def test_categories_by_name_and_group():
    known = {"single_turn": ["multiple", "parallel"], "multi_turn": ["multi_turn_base"], "agentic": ["memory_kv"]}

    def chosen(*flags):
        return bfcl.categories(bfcl.arguments().parse_args(list(flags)), known)

    assert chosen("--oracle", "--categories=parallel,single_turn") == ["parallel", "multiple"]
    assert len(chosen("--oracle", "--paper-subset")) == 13
    with pytest.raises(ValueError, match="unknown simple"):
        chosen("--oracle", "--categories=simple")
    with pytest.raises(ValueError, match="memory_kv need"):
        chosen("--checkpoint=x", "--categories=memory_kv")
    assert chosen("--oracle", "--categories=memory_kv") == ["memory_kv"]


def test_the_package_decodes_only_templates_that_give_tags_their_own_lines():
    from slca.chat import tokenizer
    from slca.chat.template import Template

    assert not bfcl._decodable(Template(tokenizer.load("tiny")))  # it writes calls on one line
    spaced = tokenizer.load("tiny")
    spaced.chat_template = spaced.chat_template.replace("<tool_call>", "<tool_call>\n").replace(
        "</tool_call>", "\n</tool_call>"
    )
    assert bfcl._decodable(Template(spaced))


# With the grader


@pytest.fixture(scope="module")
def python():
    try:
        return BFCL.python()
    except GraderError as missing:
        pytest.skip(str(missing))


def test_the_categories_are_those_of_the_package(python, tmp_path):
    with Worker(python, tmp_path) as worker:
        assert worker.categories() == {name: list(members) for name, members in KNOWN.items()}


def test_the_grader_gives_the_oracle_full_marks_and_damaged_answers_half(python, tmp_path, capsys):
    flags = [
        "--oracle",
        "--damage=renamed",
        "--limit=6",
        "--categories=simple_python,parallel,irrelevance,multi_turn_miss_func",
    ]
    assert bfcl.main([*flags, f"--out={tmp_path}"]) == 0
    scores = {score["category"]: score for score in json.loads((tmp_path / "scores.json").read_text())["scores"]}
    for name in ("simple_python", "parallel", "multi_turn_miss_func"):
        row = scores[name]
        assert (row["n"], row["correct"], row["floor"], row["ceiling"]) == (6, 3, 0.0, 1.0), name
    assert scores["irrelevance"]["correct"] == 6 and scores["irrelevance"]["floor"] == 1.0
    assert "Overall" not in capsys.readouterr().out and not (tmp_path / "score" / "data_overall.csv").exists()


def test_the_worker_runs_named_calls_and_never_text(python, tmp_path):
    with Worker(python, tmp_path) as worker:
        one = worker.entries("multi_turn_base")[0]
        worker.open(one)
        assert worker.call(one["id"], [ToolCall("pwd", {})]) != worker.call(one["id"], [ToolCall("cd", {"folder": "document"})])
        for name in ("__import__('os').getcwd", "_load_scenario", "__init__", "eval"):
            (answer,) = worker.call(one["id"], [ToolCall(name, {})])
            assert answer.startswith("Error during execution"), name
        other = {**one, "id": "another rollout of it"}
        worker.open(other)
        assert worker.call(other["id"], [ToolCall("pwd", {})]) == worker.call(other["id"], [ToolCall("pwd", {})])
        assert "document" not in worker.call(other["id"], [ToolCall("pwd", {})])[0]  # a fresh instance


def test_the_grader_does_not_evaluate_what_a_model_wrote(python, tmp_path):
    """A call that names Python rather than a tool goes through the official executor without a trace."""
    mark = tmp_path / "was here"
    texts = [
        written([ToolCall(f"open({str(mark)!r}, 'w')", {})]),
        written([ToolCall("ls", {f"a), open({str(mark)!r}, 'w'": 1})]),
    ]
    with Worker(python, tmp_path) as worker:
        one = worker.entries("multi_turn_base")[0]
    rows = [{"id": one["id"], "result": [texts] * len(one["question"])}]
    for model in (bfcl.OWN, bfcl.CEILING, bfcl.FLOOR):
        file = tmp_path / "result" / model / "BFCL_v4_multi_turn_base_result.json"
        file.parent.mkdir(parents=True)
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert bfcl.grade(python, tmp_path, ["multi_turn_base"])[bfcl.OWN, "multi_turn_base"] == (0, 1)
    assert not mark.exists()


def test_the_grader_takes_hostile_replies_for_wrong_ones(python, tmp_path):
    """The package fails to write half surrogates to its score file, and with that the whole evaluation."""
    with Worker(python, tmp_path) as worker:
        for name in ("simple_python", "multi_turn_base"):
            entries = worker.entries(name)[: len(HOSTILE)]
            replies = dict(zip((entry["id"] for entry in entries), HOSTILE))
            chat = lambda requests, replies=replies: [Reply("" if r.step else replies[r.key]) for r in requests]  # noqa: E731
            answers = bfcl._answers(entries, chat, worker, "official", "hermes")
            for model in (bfcl.OWN, bfcl.CEILING, bfcl.FLOOR):
                bfcl._write(tmp_path, model, name, answers)
    graded = bfcl.grade(python, tmp_path, ["simple_python", "multi_turn_base"])
    assert set(graded.values()) == {(0, len(HOSTILE))}


def test_the_grader_accepts_a_last_turn_that_did_not_end(python, tmp_path):
    """The right calls, then reads without an end: right where that was the last turn, wrong before it."""
    with Worker(python, tmp_path) as worker:
        entries = [e for e in worker.entries("multi_turn_base") if "GorillaFileSystem" in e["involved_classes"]][:2]
        early = entries[1]["id"]
        true = oracle(entries)

        def chat(requests):
            return [
                Reply(written([ToolCall("ls", {})]))
                if request.step and request.turn == (0 if request.key == early else last[request.key])
                else true([request])[0]
                for request in requests
            ]

        last = {e["id"]: len(e["question"]) - 1 for e in entries}
        answers = multi_turn(entries, chat, worker, "official", "hermes")
        for model in (bfcl.OWN, bfcl.CEILING, bfcl.FLOOR):
            bfcl._write(tmp_path, model, "multi_turn_base", answers)
    assert [len(a.result) for a in answers] == [last[entries[0]["id"]] + 1, 1] and all(a.cut for a in answers)
    assert bfcl.grade(python, tmp_path, ["multi_turn_base"])[bfcl.OWN, "multi_turn_base"] == (1, 2)


def test_a_call_that_hangs_costs_one_conversation(python, tmp_path, monkeypatch):
    monkeypatch.setattr("slca.evals.bfcl_generate.CALL_SECONDS", 2.0)
    with Worker(python, tmp_path) as worker:
        entries = worker.entries("multi_turn_base")
        one = entries[0]
        maths = next(entry for entry in entries if "MathAPI" in entry["involved_classes"])
        for opened in (one, maths):
            worker.open(opened)
        worker.call(one["id"], [ToolCall("cd", {"folder": "document"})])
        here = worker.call(one["id"], [ToolCall("pwd", {})])
        assert worker.call(maths["id"], [ToolCall("power", {"base": 7, "exponent": 10**9})]) is None
        assert worker.call(one["id"], [ToolCall("pwd", {})]) == here


def test_help_is_quick_and_names_exit_codes():
    done = subprocess.run([sys.executable, "-m", "slca.evals.bfcl", "--help"], capture_output=True, text=True, check=True)
    assert "Exit codes" in done.stdout and "--paper-subset" in done.stdout
