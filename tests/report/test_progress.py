"""A log file gets one plain line a step; a terminal gets bars; the estimate leaves the compiling step out."""

import io

from slca.report.progress import Progress, duration


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_one_plain_line_a_step_with_the_time_that_is_left():
    stream, clock = io.StringIO(), Clock()
    with Progress(stream, clock=clock) as progress:
        progress.stage("rl", total=10, done=0)
        with progress.phase("rollout", total=4) as advance:
            advance(4, tokens_per_second=900)
        for step, now in enumerate((100.0, 102.0, 106.0)):  # 100 s of compilation, then 2 s and 4 s
            clock.now = now
            progress.step(step, {"rollout/reward/tool": 0.25, "train/kl/old": 0.5, "train/loss": -0.5, "not/shown": 1.0})
    assert stream.getvalue().splitlines() == [
        "rl 1/10  tool 0.25  loss -0.5  kl_old 0.5  100.0 s  ETA 15 min 00 s",
        "rl 2/10  tool 0.25  loss -0.5  kl_old 0.5  2.0 s  ETA 16 s",
        "rl 3/10  tool 0.25  loss -0.5  kl_old 0.5  4.0 s  ETA 21 s",
    ]


def test_a_new_stage_forgets_the_times_of_the_last_and_counts_from_where_it_resumes():
    stream, clock = io.StringIO(), Clock()
    progress = Progress(stream, clock=clock)
    progress.stage("sft", total=2)
    clock.now = 50.0
    progress.step(0, {"sft/loss": 2.0})
    progress.stage("rl", total=100, done=98)
    clock.now = 53.0
    progress.step(98, {})
    assert stream.getvalue().splitlines() == ["sft 1/2  loss 2  50.0 s  ETA 50 s", "rl 99/100  3.0 s  ETA 3 s"]


def test_a_long_phase_breaks_the_silence():
    stream, clock = io.StringIO(), Clock()
    progress = Progress(stream, clock=clock)
    with progress.phase("evaluation", total=8) as advance:
        for now in (10.0, 19.0, 20.0, 30.0, 41.0):
            clock.now = now
            advance()
            progress.pulse()
    progress.pulse()
    assert stream.getvalue().splitlines() == ["  evaluation 3/8, 20 s", "  evaluation 5/8, 41 s"]


def test_a_step_that_is_not_told_still_counts():
    stream, clock = io.StringIO(), Clock()
    progress = Progress(stream, clock=clock)
    progress.stage("sft", total=3)
    for step, now in enumerate((10.0, 12.0, 15.0)):
        clock.now = now
        progress.step(step, {}, say=step == 2)
    assert stream.getvalue() == "sft 3/3  3.0 s  ETA 0 s\n"


def test_quiet_says_nothing():
    stream = io.StringIO()
    with Progress(stream, quiet=True) as progress, progress.phase("load") as advance:
        advance()
        progress.step(0, {})
        progress.note("hello")
    assert stream.getvalue() == ""


def test_a_terminal_shows_bars_facts_and_text_that_is_not_markup():
    stream = Terminal()
    with Progress(stream) as progress:
        progress.stage("rl", total=3)
        with progress.phase("rollout", total=16) as advance:
            advance(8, tokens_per_second=950.0, tool_waits=2)
            progress._bars.refresh()
        progress.step(0, {"train/loss": 0.5})
        progress.note("[bold]as written[/bold]")
    text = stream.getvalue()
    assert "rollout" in text and "8/16" in text and "tokens/second 950" in text and "tool waits 2" in text
    assert "loss 0.5" in text and "[bold]as written[/bold]" in text


def test_durations_have_two_units():
    assert [duration(s) for s in (0.4, 59.6, 185, 7_800, 97_200)] == [
        "0 s",
        "1 min 00 s",
        "3 min 05 s",
        "2 h 10 min",
        "1 d 3 h",
    ]
