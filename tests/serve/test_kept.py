"""Rows kept between the turns of a conversation: nothing is computed twice, nothing is said otherwise, no slot is lost."""

import asyncio
import random

from slca.serve.engine import Request
from slca.serve.kept import Kept
from slca.serve.slots import SlotEngine
from tests.rollout.fakes import Template
from tests.serve.test_slots import STOP, Sampler, read, until

EVERY = 1.0  # a prompt is never shorter than what it adds: reuse wherever there is anything to reuse


def conversation(number, turns):
    """What the user says in turn after turn."""
    return [f"c{number} says {'x' * (number % 5)} {turn}" for turn in range(turns)]


async def talk(engine, said, *, seed=0, pause=None, sample=0):
    """The answers of one conversation; each prompt is the one before, what was sampled, and a suffix."""
    ids, answers = Template().prompt([{"role": "user", "content": said[0]}], []), []
    for text in [*said[1:], None]:
        if pause:
            await asyncio.sleep(pause())
        sampled, finish = await read(engine.submit(Request(tuple(ids), 100, seed=seed, sample=sample)))
        assert finish == "stop" and sampled[-1] == STOP
        answers.append(sampled)
        if text is not None:
            ids = [*ids, *sampled, *Template().suffix([], [{"role": "user", "content": text}])]
    return answers


def run(go, *, reuse, **options):
    """The result of `go(engine)`, the engine's stats at its end and the sampler."""
    sampler = Sampler(**options)
    engine = SlotEngine(sampler, None, Template(), waiting=1000, warm=False, reuse=reuse)

    async def whole():
        try:
            result = await asyncio.wait_for(go(engine), 120)
            await until(lambda: engine.stats()["in_flight"] == 0)
            return result, engine.stats(), sampler
        finally:
            await asyncio.to_thread(engine.close)

    return asyncio.run(whole())


def test_a_conversation_goes_on_where_it_stopped():
    said = conversation(1, 4)
    expected, without, fresh = run(lambda engine: talk(engine, said), reuse=None, slots=2)
    answers, stats, sampler = run(lambda engine: talk(engine, said), reuse=EVERY, slots=2)
    assert answers == expected and len(sampler.prefilled) == 1 and len(fresh.prefilled) == 4
    assert stats["continued_total"] == 3 and without["continued_total"] == without["slots_kept"] == 0
    prompts = [len(prompt) for prompt in fresh.prefilled]
    suffixes = [len(Template().suffix([], [{"role": "user", "content": text}])) for text in said[1:]]
    assert stats["continued_tokens_total"] == sum(prompts[1:]) - sum(suffixes)
    assert stats["tokens_appended_total"] == sum(suffixes) and stats["tokens_prefilled_total"] == prompts[0]


def test_draws_are_those_of_a_new_row():
    """Another seed, sample and temperature in each turn: a kept row brings nothing of its earlier turns along."""

    async def go(engine):
        ids, answers = Template().prompt([{"role": "user", "content": "hi"}], []), []
        for turn in range(5):
            asked = Request(tuple(ids), 7 + turn, seed=turn * 31 % 5, sample=turn % 2, temperature=0.5 * turn)
            sampled, _ = await read(engine.submit(asked))
            answers.append(sampled)
            end = [] if sampled[-1] == STOP else [STOP]  # a row that its budget ended goes on as well
            ids = [*ids, *sampled, *end, *Template().suffix([], [{"role": "user", "content": "more"}])]
        return answers

    expected, _, _ = run(go, reuse=None)
    answers, stats, _ = run(go, reuse=EVERY)
    assert answers == expected and stats["continued_total"] == 4


def test_many_conversations_over_few_slots_are_never_swapped():
    plans = [(conversation(i, 1 + i % 6), i % 7) for i in range(40)]

    async def go(engine, seed):
        rng = random.Random(seed)
        return await asyncio.gather(*[talk(engine, s, seed=k, pause=lambda: rng.random() / 100) for s, k in plans])

    expected, _, _ = run(lambda engine: go(engine, 0), reuse=None, slots=5)
    for slots, seed in ((1, 1), (5, 2), (64, 3)):
        answers, stats, _ = run(lambda engine, seed=seed: go(engine, seed), reuse=EVERY, slots=slots)
        assert answers == expected and stats["slots_busy"] == 0 and stats["slots_kept"] <= slots
    assert stats["continued_total"] == sum(len(said) - 1 for said, _ in plans)  # as many slots as conversations: every one


def test_requests_come_before_kept_rows():
    async def go(engine):
        await asyncio.gather(*[talk(engine, conversation(i, 1)) for i in range(3)])
        await until(lambda: engine.stats()["slots_kept"] == 3)
        await asyncio.gather(*[talk(engine, conversation(i, 2)) for i in range(10, 20)])

    _, stats, _ = run(go, reuse=EVERY, slots=3)
    assert stats["slots_kept"] <= 3 and stats["rows_inserted_total"] >= 13


def test_n_choices_of_a_prompt_share_one_row_at_most():
    async def go(engine):
        said = conversation(1, 2)
        first = await talk(engine, said[:1])
        ids = Template().prompt([{"role": "user", "content": said[0]}], []) + first[0]
        ids += Template().suffix([], [{"role": "user", "content": said[1]}])
        return await asyncio.gather(*[read(engine.submit(Request(tuple(ids), 100, sample=i))) for i in range(6)])

    expected, _, _ = run(go, reuse=None, slots=8)
    answers, stats, _ = run(go, reuse=EVERY, slots=8)
    assert answers == expected and stats["continued_total"] == 1


def test_clients_that_leave_a_continued_row():
    async def go(engine):
        for _ in range(30):
            ids = Template().prompt([{"role": "user", "content": "hi"}], [])
            sampled, _ = await read(engine.submit(Request(tuple(ids), 100)))
            stream = engine.submit(Request((*ids, *sampled, *Template().suffix([], [{"role": "user", "content": "x"}])), 100))
            await asyncio.sleep(random.random() / 200)
            stream.cancel()
        await until(lambda: engine.stats()["in_flight"] == 0)
        return (await talk(engine, conversation(3, 3)))[-1]

    expected, _, _ = run(lambda engine: talk(engine, conversation(3, 3)), reuse=None)
    last, stats, _ = run(go, reuse=EVERY, slots=2)
    assert last == expected[-1] and stats["slots_busy"] == 0


def test_the_longest_beginning_and_only_where_it_pays():
    kept, row = Kept(4.0), [object() for _ in range(4)]
    for one, ids in zip(row, ([1, 2], [1, 2, 3, 4, 5, 6], [1, 9], [1, 2, 3, 4, 5, 6, 7, 8, 9])):
        kept.keep(one, ids)
    assert kept.take((1, 2)) is None and kept.take((2, 1)) is None  # nothing new to say; another conversation
    assert kept.take((1, 2, 3, 4)) is None  # two tokens of four: prefilled faster
    assert kept.take((1, 2, 3, 4, 5, 6, 7, 8)) == (row[1], [7, 8])
    assert kept.take((1, 2, 3, 4, 5, 6, 7, 8)) is None and len(kept) == 3
    assert kept.oldest() is row[0] and kept.oldest() is row[2]
    assert not Kept(None).keep(row[0], [1]) and Kept(None).take((1, 2)) is None
