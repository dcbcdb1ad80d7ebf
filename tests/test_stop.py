"""A run asked to stop: once it is noted, twice it ends at once, and afterwards signals do what they did before."""

import os
import signal
import threading

import pytest

from slca.stop import Stop


@pytest.fixture
def caught():
    """Signals that reach handlers of the calling script."""
    seen = []
    before = {n: signal.signal(n, lambda number, frame: seen.append(number)) for n in (signal.SIGTERM, signal.SIGINT)}
    yield seen
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_asks_and_the_second_ends(caught, number):
    with Stop() as stop:
        assert not stop.asked
        os.kill(os.getpid(), number)
        assert stop.asked
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert caught == []


@pytest.mark.parametrize("fault", [None, ValueError])
def test_afterwards_the_script_has_its_own_handlers_again(caught, fault):
    """Also when the run raises: the first Ctrl-C after it is the script's."""
    try:
        with Stop():
            if fault:
                raise fault
    except ValueError:
        pass
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(os.getpid(), number)
    assert caught == [signal.SIGTERM, signal.SIGINT]


def test_in_another_thread_it_changes_nothing(caught):
    def work():
        with Stop() as stop:
            asked.append(stop.asked)

    asked, before = [], signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert asked == [False] and signal.getsignal(signal.SIGINT) is before
