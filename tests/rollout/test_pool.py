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


class Slowly:
    """A queue whose putting threads stop, before or after, until the gate opens: other threads get their turn there."""

    def __init__(self, inner, gate, before):
        self.inner, self.gate, self.before = inner, gate, before
        self.get, self.get_nowait = inner.get, inner.get_nowait

    def put(self, item):
        self.gate.wait(30 if self.before else 0)
        self.inner.put(item)
        self.gate.wait(30)


def test_a_worker_whose_result_is_taken_before_it_goes_on_is_not_lost():
    pool, gate, before = Pool(1, 2.0), threading.Event(), set(threading.enumerate())
    pool._done = Slowly(pool._done, gate, before=False)
    pool.submit("first", lambda: 1)
    assert [job.result for job in pool.ready(wait=True)] == [1]
    gate.set()  # the owner has marked the job as over by now
    for i in range(3):
        pool.submit(i, lambda: "done")
        assert drain(pool) == {i: "done"}
    assert len(set(threading.enumerate()) - before) == 1
    pool.shutdown()


def test_a_call_given_up_while_its_result_is_handed_over_leaves_an_idle_worker():
    pool, gate, before = Pool(1, 0.2), threading.Event(), set(threading.enumerate())
    pool._done = Slowly(pool._done, gate, before=True)
    pool.submit("late", lambda: 1)
    assert isinstance(drain(pool)["late"], TimeoutError)
    gate.set()
    pool.timeout = 20.0
    for i in range(5):
        pool.submit(i, lambda: "done")
        assert drain(pool) == {i: "done"}
    settle(before, 2)  # it and its replacement, no more
    until = time.monotonic() + 5
    while pool._idle < 2 and time.monotonic() < until:
        assert pool.ready() == []
    assert pool._idle == 2
    pool.shutdown()
    settle(before, 0)


class Late:
    """A queue whose readers come only once the gate is open."""

    def __init__(self, inner, gate):
        self.inner, self.gate, self.put = inner, gate, inner.put

    def get(self):
        self.gate.wait(30)
        return self.inner.get()


def test_a_call_given_up_before_a_thread_came_to_it_is_not_made():
    pool, gate, before, made = Pool(1, 0.1), threading.Event(), set(threading.enumerate()), []
    pool._inbox = Late(pool._inbox, gate)
    pool.submit("late", lambda: made.append("late"))
    assert isinstance(drain(pool)["late"], TimeoutError)
    gate.set()
    pool.timeout = 20.0
    pool.submit("next", lambda: made.append("next"))
    drain(pool)
    settle(before, 1)
    assert made == ["next"]
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
