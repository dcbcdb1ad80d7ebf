"""Deadlines, bounds and order of the pool of tool threads."""

import threading
import time

from slca.rollout.pool import Pool


def drain(pool):
    jobs = []
    while len(pool):
        jobs += pool.ready(wait=True)
    return {job.tag: job.result for job in jobs}


def settle(before, count):
    """Wait until `count` threads are there that were not there before."""
    until = time.monotonic() + 5
    while (now := len(set(threading.enumerate()) - before)) != count and time.monotonic() < until:
        time.sleep(0.01)
    assert now == count


def test_results_and_exceptions_come_back_under_their_tags():
    pool = Pool(2, 10.0)
    for i in range(5):
        pool.submit(i, lambda i=i: i * i)
    pool.submit("bad", lambda: 1 // 0)
    out = drain(pool)
    assert [out[i] for i in range(5)] == [0, 1, 4, 9, 16] and isinstance(out["bad"], ZeroDivisionError)
    assert pool.ready(wait=True) == []  # nothing left: nothing to wait for
    pool.shutdown()


def test_no_more_than_its_threads_run_at_once():
    lock, running, most = threading.Lock(), [], []

    def work():
        with lock:
            running.append(1)
            most.append(len(running))
        time.sleep(0.01)
        with lock:
            running.pop()

    pool = Pool(3, 10.0)
    for i in range(12):
        pool.submit(i, work)
    drain(pool)
    assert max(most) == 3
    pool.shutdown()


def test_an_overdue_call_is_answered_for_and_its_thread_replaced():
    forever, before = threading.Event(), set(threading.enumerate())
    pool = Pool(1, 0.1)
    pool.submit("hung", lambda: forever.wait(30))
    pool.submit("next", lambda: "done")  # the deadline counts from the start of a call, not from its submission
    out = drain(pool)
    assert isinstance(out["hung"], TimeoutError) and "0.1 s" in str(out["hung"]) and out["next"] == "done"
    assert len(set(threading.enumerate()) - before) == 2
    forever.set()  # the late result goes nowhere, and its thread leaves
    settle(before, 1)
    pool.submit("last", lambda: "fine")
    assert drain(pool) == {"last": "fine"}
    pool.shutdown()


def test_threads_leave_when_the_pool_is_shut_down():
    before = set(threading.enumerate())
    pool = Pool(4, 10.0)
    gate = threading.Barrier(4)
    for i in range(4):
        pool.submit(i, lambda: gate.wait(10) and None)
    drain(pool)
    settle(before, 4)
    pool.shutdown()
    settle(before, 0)


def test_ready_without_wait_never_sleeps():
    forever = threading.Event()
    pool = Pool(1, 30.0)
    pool.submit("slow", lambda: forever.wait(30))
    start = time.monotonic()
    assert pool.ready() == [] and time.monotonic() - start < 0.5 and len(pool) == 1
    forever.set()
    assert drain(pool) == {"slow": True}
    pool.shutdown()
