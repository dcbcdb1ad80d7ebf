"""Which prompt goes to which place: by hand, and by random play against what must always hold."""

import random
from collections import Counter

import numpy as np
import pytest

from slca.rollout.places import Places, Plan, plan
from tests.rollout.fakes import ScriptedSampler


def free(*places):
    """[P, w] from strings: `.` is a free slot."""
    return np.array([[slot == "." for slot in place] for place in places])


def test_each_prompt_gets_a_place_before_one_gets_two():
    found = plan([None] * 3, free("..", "..", ".."), {7: 3, 8: 1, 9: 5})
    assert found == Plan({0: 7, 1: 8, 2: 9}, [], [(7, 0), (7, 1), (8, 2), (9, 4), (9, 5)])


def test_a_place_takes_rows_of_its_own_prompt_alone():
    found = plan([7, 8], free("x.", "x."), {7: 2, 9: 4})
    assert found == Plan({}, [], [(7, 1)])  # 8 has no row left: its free slot waits until its last row has ended
    assert plan([7, 8], free("x.", ".."), {7: 2, 9: 1}) == Plan({1: 9}, [], [(7, 1), (9, 2)])


def test_a_prompt_still_in_an_idle_place_is_not_loaded_again():
    assert plan([7, None], free("..", ".."), {7: 1}) == Plan({}, [], [(7, 0)])


def test_places_left_over_go_to_the_longest_queue():
    """A prompt loaded in this round comes from its prefill, one that sits already from its place."""
    assert plan([None] * 3, free("..", "..", ".."), {7: 3, 8: 6}) == Plan(
        {0: 7, 1: 8, 2: 8}, [], [(7, 0), (7, 1), (8, 2), (8, 3), (8, 4), (8, 5)]
    )
    assert plan([7, 8, None], free("xx", "xx", ".."), {7: 1, 8: 2}) == Plan({}, [(1, 2)], [(8, 4), (8, 5)])


def test_copies_stay_on_their_shard():
    """Places 0, 1 on one shard, 2, 3 on the other: what sits on the first cannot be copied to the second."""
    assert plan([7, None, None, None], free("xx", "..", "..", ".."), {7: 9}, shards=2) == Plan({}, [(0, 1)], [(7, 2), (7, 3)])
    found = plan([None] * 4, free("..", "..", "..", ".."), {7: 9}, shards=2)
    assert set(found.loads) == {0, 1, 2, 3} and len(found.seats) == 8  # from the prefill any place can be filled
    assert plan([None] * 4, free("..", "..", "..", ".."), {7: 1, 8: 1}, shards=2).loads == {0: 7, 2: 8}  # shards in turn


@pytest.mark.parametrize("shards", [1, 2])
def test_random_play(shards):
    """Every row is seated once, on its prompt; nobody is disturbed; no slot idles that could take a row."""
    for seed in range(40):
        rng = random.Random(seed)
        width, count = rng.randint(1, 4), shards * rng.randint(1, 3)
        prompts = [(n, *[1] * rng.randint(0, 3)) for n in range(rng.randint(1, 7))]
        sampler = ScriptedSampler(None, slots=count * width, shared_slots=width)
        sampler.shards = shards
        places, state, running, seated = Places(sampler), sampler.init(), {}, Counter()
        todo = [(prompt, sample) for prompt in prompts for sample in range(rng.randint(1, 6))]
        added = Counter(todo)
        while todo or len(places) or running:
            for _ in range(len(todo) if seed % 2 else min(len(todo), rng.randint(0, 5))):
                item = todo.pop(rng.randrange(len(todo)))
                places.add(item[0], item)
            empty = np.array([slot not in running for slot in range(sampler.slots)])
            can = places.open(empty)
            state, new = places.fill(None, state, empty)
            assert can == bool(new)
            for item, slot in new:
                assert slot not in running
                running[slot] = item
                seated[item] += 1
            for slot, item in running.items():
                assert tuple(state.prompts[slot // width]) == item[0]
            if len(places):  # rows wait: no place is idle but on a shard where none of their prompts sits
                idle = [place for place in range(count) if all(place * width + i not in running for i in range(width))]
                near = {place * shards // count for place in range(count) if places._holds[place] in places._waiting}
                assert not any(place * shards // count in near for place in idle)
            for slot in rng.sample(sorted(running), rng.randint(0, len(running))):
                del running[slot]
        assert seated == added and places.open(np.ones(sampler.slots, bool)) is False
        if seed % 2:  # all rows were there from the start: each prompt was prefilled once
            assert sorted(map(tuple, sampler.prefilled)) == sorted(prompts)


def test_rows_can_leave_the_queue():
    sampler = ScriptedSampler(None, slots=2, shared_slots=2)
    places = Places(sampler)
    for item in "abc":
        places.add((1, 2), item)
    places.discard("b")
    places.discard("z")
    _, seated = places.fill(None, sampler.init(), np.ones(2, bool))
    assert seated == [("a", 0), ("c", 1)] and len(places) == 0
    assert places.prefilled == {"prompts": 1, "tokens": 2} and sampler.prefilled == [[1, 2]]
