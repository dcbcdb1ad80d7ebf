"""The viewer's data is exact and cannot break out of the page; in a browser its switches, filters and keys do what they say."""

import json
import re
import shutil
import subprocess

import numpy as np
import pytest

from slca.report import viewer
from slca.report.episodes import collect
from slca.types import Rollouts
from tests.report.synthetic import HOSTILE, batch, segments_of

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def stored(**options):
    episodes, rollouts, credits, words, segments = batch(**options)
    return collect(episodes, rollouts, credits, words.decode, segments=segments, step=7)


def data_of(page):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1])


def tokens_of(data, e):
    return data["groups"][e["g"]]["prompt"][: e["skip"]] + e["body"]


def test_the_page_holds_every_token_writer_segment_and_advantage(tmp_path):
    episodes, rollouts, credits, words, segments = batch(groups=2, hostile=True)
    path = viewer.write(tmp_path / "v.html", episodes, rollouts, credits, words.decode, segments=segments)
    data = data_of(path.read_text())
    assert data["algorithms"] == ["slca", "grpo"] and len(data["episodes"]) == 8
    for n, (episode, e) in enumerate(zip(episodes, data["episodes"])):
        items = tokens_of(data, e)
        assert [data["ids"][i] for i in items] == episode.tokens.tolist()
        assert "".join(data["texts"][i] for i in items) == words.decode(episode.tokens.tolist())
        assert [w for w, _, count in e["runs"] for _ in range(count)] == episode.writer.tolist()
        assert e["segments"] == [[s.kind, s.start, s.stop, s.turn] for s in segments_of(episode)]
        for name, values in credits.items():
            np.testing.assert_allclose(e["credit"][name], values[n][: len(segments[n])], rtol=1e-3)
        np.testing.assert_allclose(e["logprob"], episode.logprob[episode.writer == 1], rtol=1e-3)
    assert data["episodes"][3]["rewards"]["summary"] is None  # unscored stays apart from 0
    assert data["groups"][0]["gold"] == [[["weather.today", {"city": "Tromsø", "units": "metric"}]]]


def test_hostile_text_stays_data(tmp_path):
    page = viewer.page("<script>title", viewer.section(stored(groups=1, hostile=True)))
    own = ("<script>(?!alert)", '<script type="application/json" id="data">')
    assert page.count("<script") == 2 == sum(len(re.findall(pattern, page)) for pattern in own)
    assert page.count("</script>") == 2 and "<img" not in page and "<!-- &" not in page and "<script>title" not in page
    assert HOSTILE.strip() in data_of(page)["groups"][0]["question"]
    assert "default-src 'none'" in page and "innerHTML" not in page


@pytest.mark.parametrize("text", ["</script><b>", "<!--<script>", "\u2028\u2029", "]]>", "a\ud800b", "\\u003c"])
def test_embedded_json_keeps_its_meaning_and_closes_nothing(text):
    safe = viewer.embed({"x": text})
    assert not re.search("[<>&\u2028\u2029]", safe)
    assert json.loads(safe.encode("utf-8"))["x"] == text.replace("\ud800", "?")


def test_two_hundred_episodes_stay_below_five_megabytes():
    page = viewer.page("big", viewer.section(stored(groups=25, size=8)))
    assert len(data_of(page)["episodes"]) == 200 and len(page.encode()) < 5_000_000


def test_what_does_not_fit_is_left_out_by_group_and_said():
    everything = stored(groups=20, size=4)
    html = viewer.section(everything, limit=len(viewer.embed(viewer.payload(everything, range(80)))) // 4)
    data = data_of(html)
    assert 8 <= len(data["episodes"]) < 80 and f"{len(data['episodes'])} of 80 episodes" in html
    assert all(sum(e["g"] == g for e in data["episodes"]) == 4 for g in range(len(data["groups"])))


def test_one_group_too_large_is_cut_and_no_episode_at_all_is_a_page():
    html = viewer.section(stored(groups=1, size=8), limit=6000)
    assert 1 <= len(data_of(html)["episodes"]) < 8
    empty = Rollouts(np.zeros(0, int), np.zeros((0, 0), int), {})
    assert "0 of 0 episodes" in viewer.section(collect([], empty, {"slca": np.zeros((0, 0))}, str, segments=[]))


DRIVE = """<script>
window.addEventListener("error", (e) => errors.push(e.message));
document.addEventListener("securitypolicyviolation", (e) => errors.push(e.violatedDirective));
const out = {}, $ = (q) => document.querySelector(q), all = (q) => [...document.querySelectorAll(q)];
const key = (k) => document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key: k, bubbles: true, cancelable: true }));
const set = (id, v) => { const n = $(id); if (n.type === "checkbox") n.checked = v; else n.value = v; n.dispatchEvent(new Event("input")); };
const current = () => Number($(".row[aria-current]").dataset.n);
out.tokens = all("#chat .tokens .t").length;
out.text = $("#chat .block.environment .tokens").textContent;
out.elements = all("#chat img, #chat script, #list img, #facts img").length;
key("j"); key("j"); out.after_j = current(); key("k"); out.after_k = current();
key("ArrowDown"); out.first_segment = $("#tip").textContent; out.at = Number($(".t.at").dataset.t);
key("ArrowRight"); out.next = Number($(".t.at").dataset.t); key("ArrowUp"); out.back = Number($(".t.at").dataset.t);
key("Escape"); out.hidden = $("#tip").hidden;
out.colour = $("#chat .policy .t").style.background; set("#algorithm", "grpo"); out.other = $("#chat .policy .t").style.background;
set("#mode", "segment"); out.kinds = all("#chat .tokens .t.solid, #chat .tokens .t.dashed").length;
set("#mode", "log-prob"); out.legend = $("#chat .legend-line").textContent; key("c"); out.cycled = $("#mode").value;
key("/"); out.focused = document.activeElement.id;
set("#query", "porto"); out.porto = all(".row").length; set("#query", "");
set("#end", "max_turns"); out.unanswered = all(".row").length; set("#end", "");
set("#channel", "process"); set("#low", "0.8"); out.high = all(".row").length; set("#low", "");
set("#conflict", true); out.conflicts = all(".row").length; $(".row").click(); out.warned = $("#facts").textContent; set("#conflict", false);
set("#query", "no such text"); out.none = $("#count").textContent; set("#query", ""); out.again = $("#count").textContent;
out.facts = $("#facts").textContent;
out.errors = errors;
const pre = document.createElement("pre"); pre.id = "out"; pre.textContent = JSON.stringify(out); document.body.append(pre);
</script></body>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: the viewer is not driven in a browser")
def test_in_a_browser(tmp_path):
    episodes, rollouts, credits, words, segments = batch(groups=2, hostile=True)
    path = viewer.write(tmp_path / "v.html", episodes, rollouts, credits, words.decode, segments=segments)
    early = "<script>const errors = []; const log = console.error; console.error = (...a) => { errors.push(a.join()); log(...a); };</script>"
    path.write_text(path.read_text().replace("<body>", "<body>" + early).replace("</body>", DRIVE))
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        f"--user-data-dir={tmp_path / 'profile'}",
    ]
    done = subprocess.run([CHROMIUM, *flags, "--dump-dom", path.as_uri()], capture_output=True, text=True, timeout=60)
    found = re.search(r'<pre id="out">(.*?)</pre>', done.stdout, re.S)
    assert found, done.stderr[-2000:]
    out = json.loads(found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    assert out["errors"] == [] and out["elements"] == 0 and HOSTILE.strip() in out["text"]
    assert out["tokens"] == len(episodes[0].tokens) and (out["after_j"], out["after_k"]) == (2, 1)
    first = segments[1][0]
    assert (out["at"], out["next"], out["back"], out["hidden"]) == (first.start, first.start + 1, first.start, True)
    assert f"id{episodes[1].tokens[first.start]}" in out["first_segment"]
    for name in ("slca", "grpo"):  # the advantage of one token under both algorithms, side by side
        assert f"{name}{credits[name][1, 0]:+.2f}" in out["first_segment"]
    assert f"{episodes[1].logprob[first.start]:.3f}"[:5] in out["first_segment"]
    assert out["colour"] != out["other"]
    assert out["kinds"] == sum(s.stop - s.start for s in segments[1])
    assert "nats" in out["legend"] and out["cycled"] == "advantage" and out["focused"] == "query"
    assert out["porto"] == 4 and out["unanswered"] == 2 and (out["none"], out["again"]) == ("0 of 8", "8 of 8")
    assert out["high"] == int((rollouts.rewards["process"] >= 0.8).sum())
    assert out["conflicts"] == int(((credits["slca"] * credits["grpo"]) < 0).any(1).sum()) > 0
    assert "weather.today" in out["facts"] and "signs differ" in out["warned"]
