"""The cache: one producer a key, bounded, never stuck, never sharing our own failures later."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from slca.sgls.cache import Cache
from slca.sgls.store import Row, Store
from slca.types import Observation, ToolCall

CALL = ToolCall("tool", {})


def once(cache, key, make, wait=5.0):
    return cache.once(key, CALL, make, wait)


def test_a_hit_is_the_first_answer():
    cache = Cache()
    first = Observation("a", provenance={"source": "scripted"})
    assert once(cache, "k", lambda: first) == (first, False)
    assert once(cache, "k", lambda: pytest.fail("asked twice")) == (first, True)
    assert once(cache, "other", lambda: Observation("b")) == (Observation("b"), False)


def test_concurrent_callers_share_one_producer():
    cache, made = Cache(), []

    def make():
        made.append(1)
        time.sleep(0.1)
        return Observation("slow")

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: once(cache, "k", make), range(8)))
    assert len(made) == 1
    assert {observation.text for observation, _ in results} == {"slow"}
    assert sorted(known for _, known in results) == [False] + [True] * 7


def test_failures_are_shared_with_those_who_wait_and_then_forgotten():
    cache, tries = Cache(), []

    def make():
        tries.append(1)
        return Observation("", "sim_failed")

    once(cache, "k", make)
    once(cache, "k", make)
    assert len(tries) == 2


def test_a_waiting_caller_has_its_own_deadline():
    cache, started, release = Cache(), threading.Event(), threading.Event()

    def make():
        started.set()
        release.wait(5)
        return Observation("late")

    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(once, cache, "k", make)
        started.wait(5)
        with pytest.raises(TimeoutError):
            once(cache, "k", make, wait=0.05)
        release.set()
        assert slow.result()[0].text == "late"


def test_a_producer_that_raises_leaves_no_lock_behind():
    cache = Cache()
    with pytest.raises(ZeroDivisionError):
        once(cache, "k", lambda: 1 // 0)
    assert once(cache, "k", lambda: Observation("fine"))[0].text == "fine"


def test_the_least_recently_used_leave():
    cache = Cache(limit=2)
    for key in "ab":
        once(cache, key, lambda: Observation("x"))
    once(cache, "a", lambda: Observation("y"))
    once(cache, "c", lambda: Observation("x"))
    assert cache.counts["evicted"] == 1
    assert once(cache, "a", lambda: Observation("y"))[0].text == "x"
    assert once(cache, "b", lambda: Observation("y"))[0].text == "y"


def test_the_store_is_behind_the_memory(tmp_path):
    store = Store(tmp_path / "s.db")
    once(Cache(store), "k", lambda: Observation("kept", "tool_error", {"tokens": 3}, {"source": "openai"}))
    again = once(Cache(store), "k", lambda: pytest.fail("asked twice"))
    assert again == (Observation("kept", "tool_error", {}, {"source": "openai"}), True)
    store.close()


def test_another_process_that_was_first_wins(tmp_path):
    store = Store(tmp_path / "s.db")

    def make():
        store.put(Row("k", "tool", "{}", "theirs"))
        return Observation("ours")

    cache = Cache(store)
    assert once(cache, "k", make) == (Observation("theirs"), True)
    assert once(cache, "k", make)[0].text == "theirs"
    store.close()


def test_a_broken_store_is_counted_and_done_without(tmp_path):
    store = Store(tmp_path / "s.db")
    with store._connection() as connection:
        connection.execute("DROP TABLE results")
    cache = Cache(store)
    assert once(cache, "k", lambda: Observation("fine")) == (Observation("fine"), False)
    assert cache.counts["store_errors"] == 2
    store.close()
