"""The slot engine over a scripted sampler: every answer to its own client, slots freed, queue bounded, failures answered."""

import asyncio
import random
import threading
import time

import pytest

from slca.serve.engine import Failed, Full, Late, Request
from slca.serve.slots import SlotEngine
from tests.rollout.fakes import ScriptedSampler, Template, Tokenizer

encode, STOP = Tokenizer().encode, 1


def script(row, key):
    """Letters drawn from the row and its key, then a stop."""
    rng = random.Random(f"{row}{key}")
    return [*encode("".join(rng.choices("abcdef", k=rng.randint(1, 40)))), STOP]


class Sampler(ScriptedSampler):
    """With what an engine asks of a sampler; `gate` stops the device where a test wants it, `broken` makes it fail."""

    constrained = False

    def __init__(self, **options):
        super().__init__(script, **options)
        self.gate, self.broken, self.inserted = threading.Event(), None, []
        self.gate.set()

    def compiles(self):
        return 0

    def decode(self, *arguments, **named):
        self.gate.wait()
        if self.broken:
            raise self.broken
        return super().decode(*arguments, **named)


def engine(slots=4, waiting=100, **options):
    sampler = Sampler(slots=slots, **options)
    return sampler, SlotEngine(sampler, None, Template(), waiting=waiting, warm=False)


def request(text="question", **fields):
    return Request(tuple(Template().prompt([{"role": "user", "content": text}], [])), 100, **fields)


async def read(stream):
    pieces = [piece async for piece in _until_end(stream)]
    assert all(len(piece.ids) == len(piece.logprobs) for piece in pieces)
    return [i for piece in pieces for i in piece.ids], pieces[-1].finish


async def _until_end(stream):
    async for piece in stream:
        yield piece
        if piece.finish:
            return


def closing(run):
    """Run a coroutine function over a fresh engine and close it."""

    def wrapped(*arguments, **options):
        sampler, slots = engine(**options)

        async def whole():
            try:
                return await asyncio.wait_for(run(sampler, slots, *arguments), 60)
            finally:
                sampler.gate.set()
                await asyncio.to_thread(slots.close)

        return asyncio.run(whole())

    return wrapped


async def until(condition):
    while not condition():
        await asyncio.sleep(0.001)


def answers(requests, **options):
    @closing
    async def go(sampler, slots):
        return await asyncio.gather(*[read(slots.submit(request)) for request in requests])

    return go(**options)


def test_contract_11_an_answer_depends_on_its_request_alone():
    requests = [request(f"q{i % 7}", seed=i % 5, sample=i % 3) for i in range(60)]
    alone = [answers([asked], slots=1)[0] for asked in requests[:10]]
    together = answers(requests, slots=4)
    assert together[:10] == alone and answers(requests[::-1], slots=7, decode_steps=3)[::-1] == together
    assert len({tuple(ids) for ids, _ in together}) > 20 and all(
        finish == "stop" and ids[-1] == STOP for ids, finish in together
    )


def test_the_budget_ends_a_row():
    long = next(r for r in (request(seed=s) for s in range(50)) if len(answers([r])[0][0]) > 8)
    short = Request(long.prompt, 5, seed=long.seed)
    assert answers([short])[0] == (answers([long])[0][0][:5], "length")


def test_a_client_that_is_gone_frees_its_slot():
    @closing
    async def go(sampler, slots):
        sampler.gate.clear()
        held = [slots.submit(request(f"held {i}")) for i in range(2)]
        waiting = slots.submit(request("waits"))
        queued = slots.submit(request("gone before it has a slot"))
        for stream in (*held, queued):
            stream.cancel()
            stream.cancel()
        sampler.gate.set()
        ids, finish = await read(waiting)
        await until(lambda: slots.stats()["in_flight"] == 0)
        assert finish == "stop" and ids == (await read(slots.submit(request("waits"))))[0]
        await until(lambda: slots.stats()["in_flight"] == 0)
        return slots.stats()

    stats = go(slots=2)
    assert stats["slots_busy"] == 0 and stats["cancelled_total"] >= 1 and stats["requests_total"] == 5


def test_a_full_queue_refuses_and_takes_again():
    @closing
    async def go(sampler, slots):
        sampler.gate.clear()
        taken = [slots.submit(request(f"{i}")) for i in range(5)]
        with pytest.raises(Full) as refused:
            slots.submit(request("one too many"))
        assert refused.value.retry_after >= 1
        sampler.gate.set()
        await asyncio.gather(*map(read, taken))
        await until(lambda: slots.stats()["in_flight"] == 0)
        assert (await read(slots.submit(request("again"))))[1] == "stop"
        return slots.stats()["refused_total"]

    assert go(slots=2, waiting=3) == 1


def test_a_late_request_is_told_and_dropped():
    @closing
    async def go(sampler, slots):
        sampler.gate.clear()
        late = slots.submit(request("late", deadline=time.monotonic() - 1))
        other = slots.submit(request("other"))
        sampler.gate.set()
        with pytest.raises(Late):
            await read(late)
        assert (await read(other))[1] == "stop"
        return slots.stats()

    assert go()["late_total"] == 1


def test_a_failure_answers_everyone_and_shows():
    @closing
    async def go(sampler, slots):
        sampler.gate.clear()
        streams = [slots.submit(request(f"{i}")) for i in range(8)]
        sampler.broken = RuntimeError("secret detail")
        sampler.gate.set()
        ends = await asyncio.gather(*map(read, streams), return_exceptions=True)
        assert all(isinstance(end, Failed) for end in ends)
        assert slots.health() == "failed: RuntimeError"
        with pytest.raises(Failed):
            slots.submit(request())
        return slots.stats()["in_flight"]

    assert go(slots=2) == 0


def test_closing_answers_what_is_in_flight():
    async def go():
        sampler, slots = engine(slots=1)
        await until(lambda: slots.health() == "")
        sampler.gate.clear()
        streams = [slots.submit(request(f"{i}")) for i in range(3)]
        closer = asyncio.ensure_future(asyncio.to_thread(slots.close))
        await until(lambda: slots.health() == "closed")
        sampler.gate.set()
        ends = await asyncio.gather(*map(read, streams), return_exceptions=True)
        await closer
        assert isinstance(ends[-1], Failed) and not slots._thread.is_alive()
        with pytest.raises(Failed):
            slots.submit(request())

    asyncio.run(asyncio.wait_for(go(), 60))


def test_a_dead_event_loop_does_not_hurt_the_others():
    sampler, slots = engine(slots=1)
    sampler.gate.clear()

    async def leave():
        slots.submit(request("nobody waits for this"))

    async def stay():
        stream = slots.submit(request("somebody does"))
        sampler.gate.set()
        return await read(stream)

    asyncio.run(leave())
    assert asyncio.run(asyncio.wait_for(stay(), 60))[1] == "stop" and slots.health() == ""
    slots.close()


def test_prompts_that_do_not_fit_are_refused_at_once():
    @closing
    async def go(sampler, slots):
        for prompt in ((), (5,) * 64, (5,) * 1000):
            with pytest.raises(ValueError, match="fit"):
                slots.submit(Request(prompt, 5))
        return slots.stats()["requests_total"]

    assert go(cache_length=64) == 0
