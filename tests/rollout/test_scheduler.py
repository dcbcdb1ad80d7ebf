"""The scheduler over a scripted sampler: any order of joins, the same rows."""

import itertools
import random

import jax
import numpy as np
import pytest

from slca.rollout.sampler import row_keys
from slca.rollout.scheduler import Scheduler
from tests.rollout.fakes import ScriptedSampler, Template, Tokenizer, draw

encode, STOP = Tokenizer().encode, 1


def script(row, key):
    """5 to 24 letters and a stop, drawn from the row and its key."""
    rng = random.Random(f"{row}{key}")
    return [*encode("".join(rng.choices("abcdef", k=rng.randint(5, 24)))), STOP]


def prompt(text):
    return Template().prompt([{"role": "user", "content": text}], [])


def suffix(text):
    return Template().suffix([], [{"role": "tool", "content": text}])


def make(slots, **options):
    sampler = ScriptedSampler(script, slots=slots, **options)
    return sampler, Scheduler(sampler, None, seed=1, step=2, temperature=1.0, stop_ids=(STOP,))


def serve(slots, names, *, turns=3, budget=50, order=None, delay=lambda name: 0, **options):
    """Run every (prompt, sample) of `names` for `turns` turns; suffixes come `delay` steps late. Returns rows' tokens."""
    sampler, scheduler = make(slots, **options)
    said = {name: [] for name in names}
    for name in order or names:
        scheduler.submit(prompt(name[0]), prompt_key=len(name[0]), sample=name[1], budget=budget, tag=name)
    late = []
    for now in itertools.count():
        for row in scheduler.step() if scheduler.busy else []:
            said[row.tag].append((list(row.tokens), list(row.logprob)))
            if len(said[row.tag]) == turns:
                scheduler.cancel(row)
            else:
                late.append((now + delay(row.tag), row))
        for entry in [entry for entry in late if entry[0] <= now]:
            late.remove(entry)
            scheduler.append(entry[1], suffix(f"turn {entry[1].turn}"), budget)
        if not late and not scheduler.busy:
            return said, sampler, scheduler


NAMES = [(text, sample) for text in ("one", "twenty-two", "3") for sample in range(4)]


def test_contract_11_scheduling_never_changes_a_row():
    expected, _, _ = serve(12, NAMES)
    assert len({str(said) for said in expected.values()}) == 12  # P13: the samples of a group differ
    rng = random.Random(0)
    for slots, steps, shared in ((1, 5, 0), (3, 1, 0), (5, 7, 0), (64, 32, 0), (3, 5, 3), (6, 7, 2), (16, 5, 4)):
        order = rng.sample(NAMES, len(NAMES))
        delays = {name: rng.randint(0, 3) for name in NAMES}
        said, _, _ = serve(slots, NAMES, order=order, delay=delays.__getitem__, decode_steps=steps, shared_slots=shared)
        assert said == expected


def test_turns_are_what_the_script_says():
    said, _, _ = serve(2, [("x", 3)], budget=100)
    row = prompt("x")
    for turn, (tokens, logprob) in enumerate(said[("x", 3)]):
        row += suffix(f"turn {turn - 1}") if turn else []
        key = np.asarray(jax.random.key_data(row_keys(1, 2, *np.array([[1], [3], [turn]], np.int32))))[0]
        assert tokens == script(row, int(key[0]) ^ int(key[1]))
        assert logprob == pytest.approx([draw(script, row + tokens[:i], key)[1] for i in range(len(tokens))], abs=1e-6)
        row += tokens


@pytest.mark.parametrize(("slots", "shared"), [(1, 0), (3, 0), (12, 0), (3, 3), (6, 3), (12, 2), (4, 1)])
def test_a_prompt_is_prefilled_once_however_its_group_is_split(slots, shared):
    _, sampler, scheduler = serve(slots, NAMES, shared_slots=shared)
    assert sampler.prefilled == [prompt("one"), prompt("twenty-two"), prompt("3")]
    assert scheduler.stats["prompts_prefilled"] == 3 and scheduler.stats["rows_inserted"] == 12
    assert scheduler._prompts == {}  # caches go with the last row that needs them


@pytest.mark.parametrize("shared", [0, 2])
def test_tokens_are_computed_once(shared):
    said, _, scheduler = serve(4, NAMES, shared_slots=shared)
    assert scheduler.stats["tokens_decoded"] == sum(len(tokens) for turns in said.values() for tokens, _ in turns)
    assert scheduler.stats["tokens_appended"] == 12 * (len(suffix("turn 0")) + len(suffix("turn 1")))
    assert scheduler.stats["tokens_prefilled"] == sum(len(prompt(text)) for text in ("one", "twenty-two", "3"))
    assert scheduler.stats["tokens_decoded"] <= scheduler.stats["slot_steps"]
    again = 0  # what an engine computes that prefills each row at each turn
    for (text, _), turns in said.items():
        lengths = [len(tokens) for tokens, _ in turns]
        at = len(prompt(text))
        again += at
        for turn in range(2):
            again += at + lengths[turn] + len(suffix(f"turn {turn}"))
            at += lengths[turn] + len(suffix(f"turn {turn}"))
    computed = scheduler.stats["tokens_prefilled"] + scheduler.stats["tokens_appended"]
    assert computed + scheduler.stats["tokens_reused"] == again


def test_budget_ends_a_turn_without_a_stop_token():
    said, _, _ = serve(4, NAMES, turns=1, budget=4)
    assert all(len(tokens) == 4 and STOP not in tokens for ((tokens, _),) in said.values())
    assert {name: tokens[:4] for name, ((tokens, _),) in serve(4, NAMES, turns=1)[0].items()} == {
        name: tokens for name, ((tokens, _),) in said.items()
    }


@pytest.mark.parametrize("shared", [0, 2])
def test_cancel_in_the_queue_in_a_slot_and_after_a_turn(shared):
    sampler, scheduler = make(2, shared_slots=shared)
    rows = [scheduler.submit(prompt("p"), prompt_key=0, sample=s, budget=50, tag=s) for s in range(5)]
    scheduler.step()
    scheduler.cancel(rows[4])  # queued
    scheduler.cancel(rows[0])  # in a slot
    over = []
    while scheduler.busy:
        for row in scheduler.step():
            over.append(row.tag)
            scheduler.cancel(row)
    assert sorted(over) == [1, 2, 3] and scheduler.step() == []
    assert sampler.prefilled == [prompt("p")]


def test_a_waiting_row_keeps_its_slot_and_others_go_on():
    _, scheduler = make(2)
    rows = [scheduler.submit(prompt("p"), prompt_key=0, sample=s, budget=50) for s in range(3)]
    over = []
    while not over:
        over = scheduler.step()
    waiting, slot = over[0], over[0].slot
    while scheduler.busy:
        for row in scheduler.step():
            scheduler.cancel(row)
    assert waiting.slot == slot and [row.slot for row in rows if row is not waiting] == [-1, -1]
    scheduler.append(waiting, suffix("late"), 50)
    while scheduler.busy:
        over = scheduler.step()
    assert over == [waiting] and waiting.turn == 1


def test_a_slot_beside_a_waiting_row_takes_its_prompt_alone():
    """One place of two: while a row of the first prompt waits for its tool, rows of another cannot start, and nobody spins."""
    sampler, scheduler = make(2, shared_slots=2)
    rows = [scheduler.submit(prompt(text), prompt_key=0, sample=s, budget=50, tag=text) for text, s in (("p", 0), ("q", 0))]
    over = []
    while not over:
        over = scheduler.step()
    assert over == rows[:1] and not scheduler.busy and scheduler.step() == []
    late = scheduler.submit(prompt("p"), prompt_key=0, sample=1, budget=50, tag="p")
    assert scheduler.busy
    while scheduler.busy:
        for row in scheduler.step():
            scheduler.cancel(row)
    assert late.slot == -1 and late.tokens and sampler.prefilled == [prompt("p")]
    scheduler.append(over[0], suffix("late"), 50)
    while scheduler.busy:
        for row in scheduler.step():
            scheduler.cancel(row)
    assert rows[1].tokens and sampler.prefilled == [prompt("p"), prompt("q")]
    assert scheduler.stats["prompts_prefilled"] == 2 and scheduler.stats["rows_inserted"] == 3
