"""The rule-based summary reward: graded where an answer is imperfect, nothing for the known ways to cheat (field-bugs A9)."""

import json
import time

import pytest

from slca.rewards.summary import rule_reward
from slca.types import Observation

QUESTION = "How is the weather in Oslo?"
RESULT = json.dumps({"city": "Oslo", "temperature": 17.4, "sky": "light rain", "stations": ["Blindern", "Vinderen", "Fornebu"]})
FACTS = ["17.4", "light rain"]


def grade(text, question=QUESTION, observations=(RESULT,), facts=FACTS):
    return rule_reward(text, question, list(observations), list(facts))


def score(text, **kw):
    return grade(text, **kw)["summary"]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("It is 17.4 degrees in Oslo with light rain.", 1.0),
        ("Oslo: 17.40 degrees, light rain", 1.0),  # the same number
        ("it is 17.4 and light rain in oslo", 1.0),
        ("In Oslo it is 17.4 degrees.", 0.5),  # one fact of two
        ("It is 17.4 degrees in Bergen with light rain.", 0.5),  # an invented name among two checked items
        ("It is 17.4 degrees with light rain, wind 9 m/s.", 0.5),  # an invented number
        ("It is 21 degrees in Oslo.", 0.0),
        ("Vinderen and Fornebu have light rain at 17.4C.", 1.0),
        ("The 3 stations agree on 17.4 and light rain.", 1.0),  # the size of a list is a fact of the result
    ],
)
def test_grades(text, expected):
    assert score(text) == pytest.approx(expected)


def test_rounding_is_faithful_but_not_the_fact():
    found = grade("About 17 degrees in Oslo, with light rain.")
    assert found["faithful"] == 1.0 and found["complete"] == 0.5
    assert grade("About 18 degrees in Oslo, with light rain.")["faithful"] == 0.5


def test_every_error_costs_something():
    best = score("It is 17.4 degrees in Oslo with light rain.")
    assert best > score("It is 17.4 degrees in Oslo with light rain. Wind is 12 and humidity 80.") > 0
    assert best > score("It is 17.4 degrees in Oslo with light rain " + "as far as I can see " * 20) > 0
    assert best > score("It is 17.4 in Oslo.") > 0


@pytest.mark.parametrize(
    "text, why",
    [
        ("", "empty"),
        ("   \n ", "empty"),
        ("17.4", "empty"),
        ("Oslo", "empty"),
        (QUESTION, "copied"),
        ("how is the weather in oslo", "copied"),
        ("<tool_call>{}</tool_call> 17.4 light rain", "claimed"),
        ("<tool_response>17.4 light rain</tool_response>", "claimed"),
    ],
)
def test_nothing_for_no_answer(text, why):
    found = grade(text)
    assert found["summary"] == 0.0 and found[why] == 1.0


@pytest.mark.parametrize(
    "text",
    [
        "I called the weather tool and it is sunny.",
        "According to the API it is sunny.",
        "The tool returned light rain.",
        "I've booked the flight for you.",
        "I have successfully sent the message.",
        "Based on the search results, it rains.",
    ],
)
def test_calls_that_were_never_made_must_not_be_claimed(text):
    for facts in ([], FACTS):
        assert score(text, observations=(), facts=facts) == 0.0
    failed = Observation('{"error": "unknown tool"}', status="unknown_tool")
    assert grade(text, observations=(failed,))["claimed"] == 1.0
    assert grade(text)["claimed"] == 0.0


@pytest.mark.parametrize(
    "text, question",
    [
        ("Which city do you mean?", "How is the weather?"),
        ("None of my tools can do that.", "Paint my house."),
        ("I cannot book flights, sorry.", "Book me a flight to Rome."),
        ("Sorry, I have no tool that could help with that.", "Write a poem about Rome."),
        ("What date should I use for the trip to Rome?", "Book me a flight to Rome."),
    ],
)
def test_asking_back_and_declining_are_right_without_facts(text, question):
    assert score(text, question=question, observations=(), facts=()) == 1.0


def test_inventing_is_not_right_without_facts():
    assert score("It is 17.4 degrees in Oslo today.", question="How is the weather?", observations=(), facts=()) == 0.0
    assert score("sorry " * 30, observations=(), facts=()) < 0.1


def test_parallel_answers_may_share_a_pattern():
    results = ('{"time": "23:45"}', '{"time": "07:00"}')
    question = "tell me the time in Vilnius and what time is it in Pluglos?"
    assert (
        score(
            "It is 23:45 in Vilnius. It is 07:00 in Pluglos.", question=question, observations=results, facts=["23:45", "07:00"]
        )
        == 1.0
    )


def test_every_demonstration_of_the_generator_scores_full_marks(config):
    from slca.rewards.scores import scores
    from slca.tasks.synthesize import tasks
    from tests.rewards.episodes import demonstrated

    for split in ("train", "heldout_tasks", "heldout_tools"):
        for task in tasks(1, split, 140):
            found = scores(demonstrated(task), config)
            assert found["process"] == found["summary"] == found["solved"] == 1.0, (task.kind, task.demo)


def test_an_empty_fact_never_counts():
    assert score("It rains somewhere in the world.", facts=["", " ", "17.4"]) == 0.0


def test_facts_stand_at_word_boundaries():
    assert score("It is 117.4 degrees.", facts=["17.4"]) == 0.0
    assert grade("The article says so.", observations=('{"x": "art"}',), facts=["art"])["complete"] == 0.0
    assert grade("It is art, they say.", observations=('{"x": "art"}',), facts=["art"])["complete"] == 1.0
    assert grade("It costs 1,200 euros.", observations=('{"price": 1200}',), facts=["1200"])["summary"] == 1.0


def test_restating_the_question_is_no_answer():
    assert score("The weather you asked about is that of Oslo.", facts=["Oslo", "17.4"]) == 0.0
    assert score("In Oslo it is 17.4 now.", facts=["Oslo", "17.4"]) == 1.0


def test_a_wrong_call_may_still_be_summarised_well():
    """The answer is held against what the tools returned; what the call was worth is the process reward's business."""
    other = '{"city": "Bergen", "temperature": 9.5, "sky": "fog"}'
    assert score("In Bergen it is 9.5 degrees with fog.", observations=(other,)) == 1.0
    assert score("In Bergen it is 9.5 degrees.", observations=(other,)) == 1.0
    assert score("In Bergen it is 17.4 degrees with light rain.", observations=(other,)) < 0.5
    assert score("It is what it is, my friend.", observations=(other,)) == 0.0


def test_errors_hold_nothing_to_report():
    failed = Observation('{"error": "city is not known", "code": 404}', status="tool_error")
    assert score("The code is 404 here.", observations=(failed,)) == 0.0


def test_a_dump_of_the_result_pays_half():
    assert score(RESULT) == pytest.approx(0.5)


def test_json_escapes_do_not_hide_names():
    assert (
        score("In Tromsø it is 3 degrees.", question="?", observations=(json.dumps({"city": "Tromsø", "t": 3}),), facts=["3"])
        == 1.0
    )


def test_any_text_is_graded_quickly():
    for text in ("A" * 30_000, "9" * 30_000, "1," * 15_000, "Ab " * 10_000, "a@" * 10_000, "\x00\ud800 <|x|>", "'" * 9999):
        start = time.perf_counter()
        found = grade(text)
        assert 0.0 <= found["summary"] <= 1.0
        assert time.perf_counter() - start < 1.0


@pytest.mark.parametrize("digits", ["123456789012345", "1234567890123456", "12345678901234567890123", "9" * 400])
def test_a_long_number_is_faithful_when_every_digit_is(digits):
    """From 16 digits on a float no longer tells neighbours apart; from 309 on it is infinite."""
    result, question = json.dumps({"order": digits}), "What is the number of my order?"
    found = grade(f"Your order number is {digits} today.", question, [result], [digits])
    assert found["faithful"] == found["complete"] == found["summary"] == 1.0
    other = digits[:-1] + str(int(digits[-1]) - 1)
    found = grade(f"Your order number is {other} today.", question, [result], [digits])
    assert found["complete"] == found["summary"] == 0.0 and found["faithful"] < 1.0


@pytest.mark.parametrize(
    "said, right", [("17.4", 1), ("17", 1), ("17.44", 1), ("17.436", 1), ("17.5", 0), ("18", 0), ("17.43", 0)]
)
def test_a_rounded_number_is_faithful(said, right):
    found = grade(f"It is {said} degrees now.", "How warm is it?", ['{"temperature": 17.436}'], [])
    assert found["faithful"] == right


def test_a_whole_number_is_not_rounded():
    assert grade("There were 1200 visitors.", "How many came?", ['{"visitors": 1234}'], [])["faithful"] == 0.0
