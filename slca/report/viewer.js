"use strict";
// Reads the JSON block #data and draws the viewer. Untrusted text is only ever set as a text node.
(() => {
  const $ = (id) => document.getElementById(id);
  const data = JSON.parse($("data").textContent);
  const WRITERS = ["prompt", "policy", "environment"];
  const STORED = Object.keys(data.episodes[0]?.series ?? {});
  const SERIES = ["gap", "focus", ...STORED.filter((name) => name !== "gap" && name !== "focus")];
  const MODES = ["advantage", "segment", "writer", ...SERIES, "log-prob"];
  const LONG = { gap: "log-prob gap" }; // trainer minus sampler, nats
  const CENTRE = { focus: 1 }; // a factor: 1 changes nothing
  const state = { shown: [], at: -1, token: -1, tokens: [] };

  function el(tag, attributes, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes ?? {})) {
      if (value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
    }
    node.append(...children.filter((child) => child !== null && child !== undefined));
    return node;
  }
  const number = (x, digits = 2) => (typeof x === "number" ? x.toFixed(digits).replace(/^-(0\.?0*)$/, "$1") : "–");
  const signed = (x) => (typeof x === "number" ? (x > 0 ? "+" : "") + number(x) : "–");
  const show = (value) => (typeof value === "string" ? JSON.stringify(value) : JSON.stringify(value) ?? "–");
  const mean = (values) => { const known = values.filter((v) => typeof v === "number"); return known.length ? known.reduce((a, b) => a + b, 0) / known.length : null; };
  const peak = (rows) => rows.reduce((most, row) => (row ?? []).reduce((m, v) => Math.max(m, Math.abs(v ?? 0)), most), 0) || 1;
  const algorithm = () => $("algorithm").value;
  const peaks = Object.fromEntries(data.algorithms.map((name) => [name, peak(data.episodes.map((e) => e.credit[name]))]));
  const offset = (name, x) => (typeof x === "number" ? x - (CENTRE[name] ?? 0) : null);
  // A gap below a hundredth of a nat is rounding: it stays pale, whatever the largest one is.
  const seriesPeaks = Object.fromEntries(SERIES.map((name) => [name, Math.max(0.01, peak(data.episodes.map((e) => (e.series[name] ?? []).map((x) => offset(name, x)))))]));
  const kindOf = (episode, k) => data.kinds[episode.segments[k][0]] ?? "segment";
  const label = (episode, k) => `${kindOf(episode, k)}, turn ${episode.segments[k][3] + 1}`;

  // A segment whose advantage points up under one algorithm and down under another.
  const conflicting = (episode, k) => {
    const signs = data.algorithms.map((name) => Math.sign(episode.credit[name][k] ?? 0));
    return signs.includes(1) && signs.includes(-1);
  };
  for (const episode of data.episodes) {
    const group = data.groups[episode.g];
    episode.conflict = episode.segments.some((_, k) => conflicting(episode, k));
    const texts = [...(episode.skip ? group.prompt : []), ...episode.body].map((i) => data.texts[i]);
    episode.hay = [group.id, group.kind, group.question, episode.end, texts.join("")].join("\n").toLowerCase();
  }

  // Colours: alpha of a hue variable, with an underline that says the same without colour.
  const tint = (hue, alpha) => `rgb(var(--${hue}) / ${Math.max(0, Math.min(alpha, 1)).toFixed(3)})`;
  const diverging = (x, most) => (x ? tint(x > 0 ? "plus" : "minus", 0.12 + 0.55 * Math.abs(x) / most) : "");
  const mark = (x) => (x > 0 ? "up" : x < 0 ? "down" : "");

  function paint(token, episode) {
    const mode = $("mode").value;
    if (mode === "writer") return [["", tint("plus", 0.3), tint("minus", 0.22)][token.writer], ["", "solid", "dotted"][token.writer]];
    if (mode === "segment") {
      if (token.segment < 0) return ["", ""];
      return episode.segments[token.segment][0] === 0 ? [tint("plus", 0.32), "solid"] : [tint("minus", 0.32), "dashed"];
    }
    if (mode === "advantage") {
      const x = advantage(episode, token, algorithm());
      return [diverging(x, peaks[algorithm()]), mark(x)];
    }
    if (token.writer !== 1) return ["", ""];
    if (mode === "log-prob") return [tint("depth", Math.min(1, -token.logprob / 5) * 0.75), ""];
    const x = offset(mode, token.series[mode]);
    return [diverging(x, seriesPeaks[mode]), Math.abs(x ?? 0) > 0.05 * seriesPeaks[mode] ? mark(x) : ""];
  }
  // The credit of the token's segment; the focus that was measured belongs to the algorithm that was trained.
  const factor = (token, name) => (name === data.algorithms[0] ? token.series.focus ?? 1 : 1);
  const advantage = (episode, token, name) => (token.segment < 0 || token.writer !== 1 ? 0 : episode.credit[name][token.segment] * factor(token, name));

  function expand(episode) {
    const ids = [...data.groups[episode.g].prompt.slice(0, episode.skip), ...episode.body];
    const tokens = [];
    let policy = 0;
    for (const [writer, turn, count] of episode.runs) {
      for (let i = 0; i < count; i++) {
        const t = tokens.length;
        const own = writer === 1 ? policy++ : -1;
        tokens.push({
          t, writer, turn, id: data.ids[ids[t]], text: data.texts[ids[t]],
          segment: episode.segments.findIndex(([, start, stop]) => t >= start && t < stop),
          logprob: own < 0 ? null : episode.logprob[own],
          series: Object.fromEntries(Object.entries(episode.series).map(([name, values]) => [name, own < 0 ? null : values[own]])),
        });
      }
    }
    return tokens;
  }

  // The list of groups.
  function chips(episode) {
    return el("span", { class: "chips" }, ...episode.segments.map((_, k) => {
      const x = episode.credit[algorithm()]?.[k];
      const chip = el("span", { class: "chip", title: label(episode, k) }, `${kindOf(episode, k)[0].toUpperCase()} ${signed(x)}`);
      chip.style.background = diverging(x, peaks[algorithm()]);
      return chip;
    }));
  }
  const MAIN = ["process", "tool", "summary", "total"].filter((name) => data.channels.includes(name));
  const HIERR = ["format", "name", "key", "value", "parallel"];
  const CHANNELS = [...MAIN, ...data.channels.filter((name) => !MAIN.includes(name))];
  const listed = MAIN.length ? MAIN : data.channels.slice(0, 3);

  function drawList() {
    const list = $("list");
    list.replaceChildren();
    let group = null;
    let box = null;
    for (const n of state.shown) {
      const episode = data.episodes[n];
      if (episode.g !== group) {
        group = episode.g;
        const members = data.episodes.filter((e) => e.g === group);
        const means = listed.map((c) => [c, mean(members.map((e) => e.rewards[c]).flat())]).filter(([, x]) => x !== null);
        const { question, kind, split } = data.groups[group];
        box = el("section", { class: "group" },
          el("h3", { title: question }, question.slice(0, 160)),
          el("p", {}, [kind, split, ...means.map(([c, x]) => `${c} ${number(x)}`)].join(" · ")));
        list.append(box);
      }
      box.append(el("button", { type: "button", class: "row", "data-n": n, "aria-current": n === state.at && "true" },
        el("span", { class: "name" }, `#${episode.s} ${episode.end}`, episode.scored ? null : el("em", {}, " unscored"), episode.conflict ? el("em", { title: "signs differ between algorithms" }, " ⚠") : null),
        el("span", { class: "scores" }, listed.map((c) => `${c} ${number(mean([episode.rewards[c]].flat()))}`).join("  ")), chips(episode)));
    }
    $("count").textContent = `${state.shown.length} of ${data.episodes.length}`;
    if (!state.shown.length) list.append(el("p", { class: "note" }, "No episode passes the filter."));
  }

  // The chat of one episode.
  function drawChat() {
    const episode = data.episodes[state.at];
    const chat = $("chat");
    chat.replaceChildren(legend());
    if (!episode) return;
    state.tokens = expand(episode);
    let t = 0;
    for (const [writer, turn, count] of episode.runs) {
      const k = state.tokens[t].segment;
      const parts = [WRITERS[writer] + (writer === 1 ? ` · turn ${turn + 1}` : "")];
      if (writer === 1 && k >= 0) parts.push(kindOf(episode, k), ...data.algorithms.map((name) => `${name} ${signed(episode.credit[name][k])}`));
      const warning = writer === 1 && k >= 0 && conflicting(episode, k) ? " · ⚠ signs differ" : "";
      const body = el("div", { class: "tokens" });
      for (; count && body.childElementCount < count; t++) body.append(span(state.tokens[t], episode));
      chat.append(el("article", { class: "block " + WRITERS[writer] }, el("h4", {}, parts.join(" · ") + warning), body));
    }
    chat.append(el("p", { class: "end" }, `end: ${episode.end} · ${state.tokens.length} tokens`));
  }

  function span(token, episode) {
    const node = el("span", { class: "t", "data-t": token.t });
    const blank = token.text.trim() === "";
    node.append(token.text.replace(/\n/g, "⏎\n") || (token.text === "" ? "·" : ""));
    if (blank) node.classList.add("blank");
    const [background, line] = paint(token, episode);
    if (background) node.style.background = background;
    if (line) node.classList.add(line);
    return node;
  }

  function legend() {
    const mode = $("mode").value;
    const swatch = (background, line, text) => { const s = el("span", { class: "t " + line }, text); s.style.background = background; return s; };
    const items = {
      advantage: () => [swatch(tint("plus", 0.6), "up", "raised"), swatch(tint("minus", 0.6), "down", "lowered"), ` ${algorithm()}, strongest ±${number(peaks[algorithm()])}`],
      segment: () => [swatch(tint("plus", 0.32), "solid", "tool"), swatch(tint("minus", 0.32), "dashed", "summary"), " rest: not trained"],
      writer: () => [swatch(tint("plus", 0.3), "solid", "policy"), swatch(tint("minus", 0.22), "dotted", "environment"), " plain: prompt"],
      "log-prob": () => [swatch(tint("depth", 0), "", "sure"), swatch(tint("depth", 0.4), "", "−2.7"), swatch(tint("depth", 0.75), "", "−5 nats or less")],
    }[mode] ?? (() => {
      if (!STORED.includes(mode)) return [mode === "focus" ? `${data.algorithms[0] ?? "this run"} weighs all tokens of a segment alike (focus 1)` : `${LONG[mode] ?? mode} was not stored with this run`];
      const centre = CENTRE[mode] ?? 0;
      const unit = mode === "gap" ? " nats: trainer minus sampler" : "";
      return [swatch(tint("plus", 0.6), "up", `above ${centre}`), swatch(tint("minus", 0.6), "down", `below ${centre}`), ` ${LONG[mode] ?? mode}, strongest ±${number(seriesPeaks[mode], 3)}${unit}`];
    });
    return el("p", { class: "legend-line" }, ...items().flatMap((item) => [item, " "]));
  }

  // The side panel.
  const table = (head, rows) => el("table", {}, el("thead", {}, el("tr", {}, ...head.map((h) => el("th", { scope: "col" }, h)))),
    el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map((cell, i) => el(i ? "td" : "th", i ? {} : { scope: "row" }, cell))))));
  function shaded(x, most) {
    const node = el("span", { class: "chip" }, signed(x));
    node.style.background = diverging(x, most);
    return node;
  }

  function drawFacts() {
    const facts = $("facts");
    facts.replaceChildren();
    const episode = data.episodes[state.at];
    if (!episode) return;
    const group = data.groups[episode.g];
    const value = (x) => (Array.isArray(x) ? x.map((v) => number(v, 3)).join(", ") : typeof x === "number" ? number(x, 3) : x === null ? "–" : show(x));
    const segment = ([, start, stop], k) => [
      label(episode, k) + (conflicting(episode, k) ? " ⚠ signs differ" : ""), String(stop - start), ...data.algorithms.map((name) => shaded(episode.credit[name][k], peaks[name])),
    ];
    const names = data.algorithms.map((name) => name.replaceAll("_", "_\u200b")); // long names may break there
    facts.append(el("h3", {}, "Advantage by segment"), el("div", { class: "wide" }, table(["segment", "tokens", ...names], episode.segments.map(segment))));
    const named = (entries) => table(["name", "value"], entries.map(([name, x]) => [name, value(x)]));
    const rewards = CHANNELS.map((name) => [name, episode.rewards[name]]);
    const parts = [...rewards.filter(([name]) => name.includes("/")), ...Object.entries(episode.labels)];
    const last = ([name]) => name.split("/").pop();
    const hierr = HIERR.map((name) => parts.find((entry) => last(entry) === name)).filter(Boolean);
    const rest = parts.filter((entry) => !hierr.includes(entry));
    facts.append(el("h3", {}, "Rewards"), named(rewards.filter(([name]) => !name.includes("/"))));
    if (hierr.length) facts.append(el("h3", {}, "HierR components"), table(hierr.map(last), [hierr.map(([, x]) => number(x))]));
    if (rest.length) facts.append(el("details", {}, el("summary", {}, `${rest.length} more scores and labels`), named(rest)));
    facts.append(el("h3", {}, "Calls beside gold"), calls(group.gold.flat(), episode.turns));
    facts.append(el("h3", {}, "Tool results"), results(episode));
    facts.append(el("h3", {}, "Task"), table(["", ""], [["id", group.id], ["end", episode.end], ["temperature", number(episode.temperature)], ["tools", group.tools.join(", ")], ["facts", group.facts.flat().join(" · ") || "–"]]));
  }

  const loose = (x) => (x !== null && typeof x === "object" ? JSON.stringify(x) : String(x).trim().toLowerCase());
  function calls(gold, turns) {
    const made = turns.flatMap((turn, k) => turn.calls.map((call) => ({ call, turn: k, used: false })));
    const cards = gold.map(([name, wanted]) => {
      const same = (m) => Object.keys(wanted).filter((key) => key in m.call[1] && loose(m.call[1][key]) === loose(wanted[key])).length;
      const match = made.filter((m) => !m.used && m.call[0] === name).sort((a, b) => same(b) - same(a))[0];
      if (match) match.used = true;
      return card(name, wanted, match);
    });
    const surplus = made.filter((m) => !m.used).map((m) => card(null, {}, m));
    const errors = turns.flatMap((turn, k) => turn.errors.map(([kind, message]) => el("p", { class: "problem" }, `turn ${k + 1}: ${kind}: ${message}`)));
    return el("div", {}, ...cards, ...surplus, ...errors, cards.length + surplus.length ? null : el("p", {}, "No call wanted, none made."));
  }
  function card(name, wanted, match) {
    const sent = match?.call[1] ?? {};
    const keys = [...new Set([...Object.keys(wanted), ...Object.keys(sent)])];
    const verdict = (key) => (!(key in wanted) ? "+ extra" : !(key in sent) ? "− missing" : loose(wanted[key]) === loose(sent[key]) ? "✓" : "≠");
    const title = name === null ? `+ ${match.call[0]} (turn ${match.turn + 1}): surplus` : match ? `✓ ${name} (turn ${match.turn + 1})` : `− ${name}: not called`;
    return el("div", { class: "call" }, el("b", {}, title), keys.length
      ? table(["argument", "gold", "called", ""], keys.map((key) => [key, key in wanted ? show(wanted[key]) : "–", key in sent ? show(sent[key]) : "–", name === null || !match ? "" : verdict(key)]))
      : null);
  }
  function results(episode) {
    const cards = episode.results.flatMap((turn, k) => turn.map(([status, text, provenance, cost]) => {
      const from = [`turn ${k + 1}`, status, provenance.source, typeof cost.seconds === "number" ? `${number(cost.seconds)} s` : null];
      return el("div", { class: "call" }, el("b", {}, from.filter(Boolean).join(" · ")), el("p", { class: "text" }, text));
    }));
    return el("div", {}, ...(cards.length ? cards : [el("p", {}, "none")]));
  }

  // The token under the pointer or the cursor.
  function point(t) {
    const tip = $("tip");
    $("chat").querySelector(".t.at")?.classList.remove("at");
    const token = state.tokens[t];
    state.token = token ? t : -1;
    tip.hidden = !token;
    if (!token) return;
    const episode = data.episodes[state.at];
    const node = $("chat").querySelector(`.t[data-t="${t}"]`);
    node.classList.add("at");
    const where = `${WRITERS[token.writer]}${token.writer === 1 ? `, turn ${token.turn + 1}` : ""}${token.segment >= 0 ? `, ${kindOf(episode, token.segment)}` : ""}`;
    const rows = [["position", String(t)], ["id", String(token.id)], ["writer", where]];
    if (token.logprob !== null) rows.push(["log-prob", `${number(token.logprob, 4)} nats (p ${number(Math.exp(token.logprob), 3)})`]);
    for (const [name, x] of Object.entries(token.series)) if (x !== null) rows.push([LONG[name] ?? name, number(x, 4)]);
    const advantages = data.algorithms.map((name) => [name, shaded(advantage(episode, token, name), peaks[name])]);
    tip.replaceChildren(el("code", {}, show(token.text)), table(["", ""], rows), table(["advantage", ""], advantages));
    const box = node.getBoundingClientRect();
    const home = $("viewer").getBoundingClientRect();
    tip.style.left = `${Math.max(0, Math.min(box.left - home.left, home.width - tip.offsetWidth - 8))}px`;
    const below = box.bottom + tip.offsetHeight + 10 < window.innerHeight;
    tip.style.top = `${below ? box.bottom - home.top + 6 : box.top - home.top - tip.offsetHeight - 6}px`;
  }

  // scrollIntoView would scroll the page as well, away from the plots above.
  function reveal(list, row) {
    if (!row) return;
    const [outer, inner] = [list.getBoundingClientRect(), row.getBoundingClientRect()];
    if (inner.top < outer.top) list.scrollTop += inner.top - outer.top;
    if (inner.bottom > outer.bottom) list.scrollTop += inner.bottom - outer.bottom;
  }

  function open(n, focus) {
    state.at = n;
    point(-1);
    drawList();
    drawChat();
    drawFacts();
    reveal($("list"), $("list").querySelector('[aria-current="true"]'));
    $("chat").scrollTop = 0;
    if (focus) $("chat").focus({ preventScroll: true });
  }

  function filter() {
    const words = $("query").value.toLowerCase().split(/\s+/).filter(Boolean);
    const [low, high] = ["low", "high"].map((id) => $(id).value).map((text) => (text === "" ? null : Number(text)));
    state.shown = data.episodes.map((_, n) => n).filter((n) => {
      const episode = data.episodes[n];
      const x = mean([episode.rewards[$("channel").value]].flat());
      return words.every((word) => episode.hay.includes(word)) && (!$("end").value || episode.end === $("end").value)
        && (low === null || (x !== null && x >= low)) && (high === null || (x !== null && x <= high)) && (!$("conflict").checked || episode.conflict);
    });
    if (state.shown.includes(state.at)) drawList();
    else open(state.shown[0] ?? -1);
  }

  const step = (by) => {
    const i = state.shown.indexOf(state.at) + by;
    if (i >= 0 && i < state.shown.length) open(state.shown[i], true);
  };
  function move(by) {
    point(Math.max(0, Math.min(state.tokens.length - 1, state.token + by)));
    $("chat").querySelector(".t.at")?.scrollIntoView({ block: "nearest" });
  }
  function jump(by) {
    const starts = data.episodes[state.at]?.segments.map(([, start]) => start) ?? [];
    const next = by > 0 ? starts.find((start) => start > state.token) : starts.filter((start) => start < state.token).pop();
    if (next !== undefined) { point(next); move(0); }
  }
  const cycle = () => { const mode = $("mode"); mode.selectedIndex = (mode.selectedIndex + 1) % mode.options.length; repaint(); };
  const repaint = () => { const t = state.token; drawList(); drawChat(); point(t); };
  const KEYS = { j: () => step(1), k: () => step(-1), c: cycle, "/": () => $("query").focus() };
  const ARROWS = { ArrowRight: () => move(1), ArrowLeft: () => move(-1), ArrowDown: () => jump(1), ArrowUp: () => jump(-1) };

  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest?.("input, select, textarea");
    if (event.key === "Escape") { point(-1); if (typing) $("chat").focus(); return; }
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    const inside = $("viewer").contains(document.activeElement); // elsewhere the arrows scroll the page
    const action = KEYS[event.key] ?? (inside ? ARROWS[event.key] : undefined);
    if (action) { event.preventDefault(); action(); }
  });
  const tokenOf = (event) => event.target.closest?.(".t[data-t]");
  $("chat").addEventListener("mouseover", (event) => { const node = tokenOf(event); if (node) point(Number(node.dataset.t)); });
  $("chat").addEventListener("mouseleave", () => point(-1));
  $("chat").addEventListener("click", (event) => { const node = tokenOf(event); point(node ? Number(node.dataset.t) : -1); });
  $("list").addEventListener("click", (event) => {
    const row = event.target.closest(".row");
    if (!row) return;
    $("viewer").classList.remove("listing");
    $("toggle").setAttribute("aria-expanded", "false");
    open(Number(row.dataset.n), true);
  });
  $("toggle").addEventListener("click", () => $("toggle").setAttribute("aria-expanded", String($("viewer").classList.toggle("listing"))));
  for (const id of ["query", "low", "high", "end", "channel", "conflict"]) $(id).addEventListener("input", filter);
  for (const id of ["mode", "algorithm"]) $(id).addEventListener("input", repaint);

  const options = (id, names) => $(id).append(...names.map((name) => el("option", { value: name }, name)));
  $("mode").append(...MODES.map((name) => el("option", { value: name }, LONG[name] ?? name)));
  options("algorithm", data.algorithms);
  options("end", [...new Set(data.episodes.map((e) => e.end))]);
  options("channel", CHANNELS);
  filter();
})();
