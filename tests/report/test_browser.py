"""The viewer in a real browser: real keys and pointer, both widths, light and dark, no console error, no request but the file.

Needs chromium with its driver (Debian: apt-get install chromium chromium-driver) and the extra [browser]; skipped where absent.
"""

import json
import shutil
import time

import numpy as np
import pytest

from slca.report.episodes import episode_file, load_episodes, save_episodes
from slca.report.page import write_report
from slca.types import POLICY
from tests.report.synthetic import batch

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
MODES = ["advantage", "segment", "writer", "gap", "focus", "log-prob"]


@pytest.fixture(scope="module")
def browser():
    webdriver = pytest.importorskip("selenium.webdriver", reason="no selenium (extra [browser]): the viewer is not driven")
    if not (CHROMIUM and DRIVER):
        pytest.skip("no chromium with chromedriver: the viewer is not driven in a browser")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.execute_cdp_cmd("Network.enable", {})
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(report.html, what it was made of): two groups, hostile text, a gap and a focus for every token."""
    folder = tmp_path_factory.mktemp("run")
    episodes, rollouts, credits, words, segments = batch(groups=2, hostile=True)
    rng = np.random.default_rng(3)
    series = {
        "gap": [np.where(e.writer == POLICY, rng.normal(0, 0.02, len(e.tokens)), np.nan) for e in episodes],
        "focus": [np.where(e.writer == POLICY, rng.uniform(0.5, 1.5, len(e.tokens)), 1.0) for e in episodes],
    }
    file = episode_file(folder, 1)
    save_episodes(file, episodes, rollouts, credits, words.decode, segments=segments, step=1, series=series)
    return write_report(folder), load_episodes(file)


def open_page(browser, path, width=1280, scheme="light"):
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    media = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})
    browser.get_log("browser"), browser.get_log("performance")  # what belongs to the page before
    browser.get(path.as_uri())
    until(lambda: all_of(browser, ".row"))


def until(condition, seconds=20):
    """Wait for a condition, not for a time."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "the page did not get there"
        time.sleep(0.02)
    return found


def all_of(browser, selector):
    return browser.find_elements("css selector", selector)


def text(browser, selector):
    return browser.execute_script("return document.querySelector(arguments[0]).textContent", selector)


def choose(browser, control, value):
    script = "const n = document.getElementById(arguments[0]); n.value = arguments[1]; n.dispatchEvent(new Event('input'))"
    browser.execute_script(script, control, value)


def press(browser, *keys):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    actions = ActionChains(browser)
    for key in keys:
        actions.send_keys(getattr(Keys, key, key))
    actions.perform()


def current(browser):
    return int(browser.execute_script("return document.querySelector('.row[aria-current]').dataset.n"))


def check_quiet(browser):
    """No console error, and no request but for the file itself."""
    assert [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = {m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"}
    assert urls and all(url.startswith(("file:", "data:")) for url in urls), urls


def check_tokens(browser, stored, n=0):
    """Number of tokens, then id, text, log-prob, gap and every algorithm's advantage of one policy token, by pointer."""
    from selenium.webdriver.common.action_chains import ActionChains

    episode = stored.episodes[n]
    assert len(all_of(browser, "#chat .tokens .t")) == len(episode.tokens)
    part = stored.segments[n][0]
    t = part.start + 2
    node = all_of(browser, f'#chat .t[data-t="{t}"]')[0]
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", node)
    ActionChains(browser).move_to_element(node).perform()
    until(lambda: not browser.execute_script("return document.getElementById('tip').hidden"))
    tip = text(browser, "#tip")
    assert json.dumps(stored.pieces[n][t], ensure_ascii=False) in tip and f"id{episode.tokens[t]}" in tip
    assert f"log-prob{episode.logprob[t]:.4f} nats" in tip
    trained = next(iter(stored.credits))
    focus = stored.series["focus"][n][t] if "focus" in stored.series else 1.0
    for name, credit in stored.credits.items():
        value = credit[n, 0] * (focus if name == trained else 1.0)
        shown = f"{value:+.2f}" if round(value, 2) else "0.00"
        assert f"{name}{shown}" in tip, (name, value, tip)


def test_tokens_modes_and_filters(browser, made):
    path, stored = made
    open_page(browser, path)
    check_tokens(browser, stored)
    modes = [option.get_attribute("value") for option in all_of(browser, "#mode option")]
    assert modes == MODES
    seen = set()
    for mode in modes:
        choose(browser, "mode", mode)
        paints = browser.execute_script(
            "return [...document.querySelectorAll('#chat .tokens .t')].map((n) => n.style.background).join()"
        )
        seen.add(paints)
        assert "not stored" not in text(browser, "#chat .legend-line")
    assert len(seen) == len(modes)  # each mode paints another picture
    choose(browser, "end", "max_turns")
    assert len(all_of(browser, ".row")) == sum(e.end == "max_turns" for e in stored.episodes)
    choose(browser, "end", "")
    choose(browser, "channel", "process")
    choose(browser, "low", "0.8")
    assert len(all_of(browser, ".row")) == int((stored.rollouts.rewards["process"] >= 0.8).sum())
    choose(browser, "low", "")
    all_of(browser, "#conflict")[0].click()
    slca, grpo = stored.credits["slca"], stored.credits["grpo"]
    assert len(all_of(browser, ".row")) == int((slca * grpo < 0).any(1).sum()) > 0
    assert "signs differ" in text(browser, "#facts") and "weather.today" in text(browser, "#facts")
    check_quiet(browser)


def test_keys(browser, made):
    path, stored = made
    open_page(browser, path)
    all_of(browser, ".row")[0].click()
    press(browser, "j", "j", "k")
    assert current(browser) == 1
    press(browser, "ARROW_DOWN", "ARROW_RIGHT")
    at = int(browser.execute_script("return document.querySelector('.t.at').dataset.t"))
    assert at == stored.segments[1][0].start + 1
    press(browser, "c")
    assert browser.execute_script("return document.getElementById('mode').value") == "segment"
    press(browser, "/", *"porto")
    assert browser.execute_script("return document.activeElement.id") == "query"
    assert len(all_of(browser, ".row")) == 4
    check_quiet(browser)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_fits_both_widths_and_is_readable_in_both_schemes(browser, made, width, scheme):
    path, _ = made
    open_page(browser, path, width, scheme)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    visible = browser.execute_script("return getComputedStyle(document.getElementById('list')).display")
    assert (visible == "none") == (width == 390)
    if width == 390:
        all_of(browser, "#toggle")[0].click()
        all_of(browser, ".row")[2].click()
        assert current(browser) == 2
    for mode in MODES:
        choose(browser, "mode", mode)
        assert least_contrast(browser) >= 4.5, mode
    check_quiet(browser)


def least_contrast(browser):
    """Smallest WCAG contrast of a token's text against its own colour over the page's."""
    script = """
      const parse = (c) => (c.match(/[\\d.]+/g) ?? []).map(Number);
      const page = parse(getComputedStyle(document.body).backgroundColor);
      const light = ([r, g, b]) => [r, g, b].map((x) => x / 255).map((x) => (x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4))
        .reduce((sum, x, i) => sum + x * [0.2126, 0.7152, 0.0722][i], 0);
      return Math.min(...[...document.querySelectorAll("#chat .tokens .t:not(.blank)")].map((n) => {
        const style = getComputedStyle(n), [r, g, b, a = 1] = parse(style.backgroundColor);
        const back = [r, g, b].map((x, i) => x * a + page[i] * (1 - a));
        const [x, y] = [light(back), light(parse(style.color))];
        return (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05);
      }));"""
    return browser.execute_script(script)


@pytest.mark.nightly
def test_a_real_tiny_run(browser, tmp_path):
    """Written by a run of slca.main's loop cut down to a minute: what the page shows is what the run stored."""
    from configs import tiny
    from slca.train import run

    c = tiny.get_config()
    c.sft.update(steps=20)
    c.train.update(steps=2)
    c.eval.update(tasks=4)
    c.report.update(episodes_every=1)
    assert run(c, tmp_path) == 0
    open_page(browser, tmp_path / "report.html")
    stored = load_episodes(episode_file(tmp_path, 1))
    n = next(k for k, parts in enumerate(stored.segments) if parts and parts[0].stop - parts[0].start > 2)
    browser.execute_script("document.querySelectorAll('.row')[arguments[0]].click()", n)
    check_tokens(browser, stored, n)
    assert "gap" in stored.series and (tmp_path / "report.html").stat().st_size < 5_000_000
    check_quiet(browser)
