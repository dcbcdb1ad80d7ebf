"""What is stored is what was sampled, bit for bit, and holds no secret."""

import dataclasses
import gzip
import json

import numpy as np
import pytest

from slca.credit.algorithms import algorithm
from slca.report.episodes import (
    collect,
    episode_file,
    latest,
    load_episodes,
    piece_table,
    save_episodes,
    save_step,
    token_texts,
)
from slca.rewards.annotate import annotate
from slca.types import ABSENT, SUMMARY, TOOL
from tests.report.synthetic import batch


def test_everything_comes_back_bit_for_bit(tmp_path):
    episodes, rollouts, credits, words, segments = batch(groups=2, hostile=True)
    series = {"trainer_logprob": [e.logprob.astype(np.float64) + 1 / 3 for e in episodes]}
    path = episode_file(tmp_path, 10)
    save_episodes(path, episodes, rollouts, credits, words.decode, segments=segments, series=series, step=10)
    assert path.name == "step_000010.jsonl.gz" and [p.name for p in path.parent.iterdir()] == [path.name]
    stored = load_episodes(path)
    assert stored.step == 10 and stored.segments == segments
    for before, after in zip(episodes, stored.episodes):
        for name in ("tokens", "writer", "turn", "logprob"):
            was, now = getattr(before, name), getattr(after, name)
            assert was.dtype == now.dtype and np.array_equal(was, now)
        assert (before.task, before.turns, before.observations) == (after.task, after.turns, after.observations)
        assert (before.end, before.messages, before.user_turn) == (after.end, after.messages, after.user_turn)
    for was, now in (
        (credits, stored.credits),
        (rollouts.rewards, stored.rollouts.rewards),
        (rollouts.labels, stored.rollouts.labels),
    ):
        assert was.keys() == now.keys()
        assert all(np.array_equal(was[name], now[name], equal_nan=True) for name in was)
    assert np.array_equal(stored.series["trainer_logprob"][3], series["trainer_logprob"][3])
    assert "".join(stored.pieces[0]) == words.decode(episodes[0].tokens.tolist())
    assert latest(tmp_path) == path and latest(tmp_path / "empty") is None


def test_the_same_episodes_give_the_same_bytes(tmp_path):
    episodes, rollouts, credits, words, segments = batch(groups=1)
    a, b = (save_episodes(tmp_path / n, episodes, rollouts, credits, words.decode, segments=segments) for n in ("a.gz", "b.gz"))
    assert a.read_bytes() == b.read_bytes()


def test_a_secret_is_masked_in_texts_and_in_the_tokens_that_spell_it(tmp_path):
    episodes, rollouts, credits, words, segments = batch(groups=1)
    secret = "degrees in Tromsø"  # three tokens of its answer
    path = save_episodes(tmp_path / "e.gz", episodes, rollouts, credits, words.decode, segments=segments, hidden=(secret,))
    assert secret not in json.dumps([json.loads(x) for x in gzip.open(path, "rt")], ensure_ascii=False)
    stored = load_episodes(path)
    assert "It is 12[redacted]." in "".join(stored.pieces[0])
    changed = np.flatnonzero(stored.episodes[0].tokens != episodes[0].tokens)
    assert words.decode(episodes[0].tokens[changed].tolist()).strip() == secret
    assert (stored.episodes[0].tokens[changed] == -1).all() and len(stored.pieces[0]) == len(episodes[0].tokens)


def test_pieces_keep_the_space_that_decoders_strip():
    texts = {1: " It", 2: " is", 3: "12"}
    table = piece_table(texts, lambda ids: "".join(texts[i] for i in ids).lstrip())
    assert table == {1: " It", 2: " is", 3: "12"}


def test_a_character_of_several_tokens_is_whole_at_its_last():
    raw = {1: b"Troms", 2: b"\xc3", 3: b"\xb8", 4: b"\xff", 5: b"!"}

    def decode(ids):
        return b"".join(raw[i] for i in ids).decode("utf-8", "replace")

    table = piece_table(raw, decode)
    assert token_texts([1, 2, 3, 5], table, decode) == ["Troms", "", "ø", "!"]
    assert token_texts([1, 4, 5, 2], table, decode) == ["Troms", "\ufffd", "!", "\ufffd"]


def test_parts_of_another_length_are_refused():
    episodes, rollouts, credits, words, segments = batch(groups=1)
    with pytest.raises(ValueError, match="slca has 3 rows for 4 episodes"):
        collect(episodes, rollouts, {"slca": credits["slca"][:3]}, words.decode, segments=segments)


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-40], lambda b: b"plain text", lambda b: gzip.compress(b'{"format": 99, "count": 0}\n')]
)
def test_a_damaged_file_is_named(tmp_path, damage):
    episodes, rollouts, credits, words, segments = batch(groups=1)
    path = save_episodes(tmp_path / "e.gz", episodes, rollouts, credits, words.decode, segments=segments)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=r"e\.gz"):
        load_episodes(path)


def test_a_stored_batch_shows_the_segment_lock(tmp_path, config):
    """Other summary rewards: tool advantages are bit-identical under slca and change under grpo (contract 6)."""
    episodes, _, _, words, _ = batch(groups=2)
    rollouts = annotate(episodes, config)
    credits = {name: algorithm(name, config.credit).credit(rollouts) for name in ("slca", "grpo")}
    path = save_episodes(tmp_path / "e.gz", episodes, rollouts, credits, words.decode)
    stored = load_episodes(path)
    tool = stored.rollouts.kind == TOOL
    summary = stored.rollouts.rewards["summary"]
    other = np.linspace(0, 1, len(summary)) ** 2
    changed = dataclasses.replace(
        stored.rollouts,
        rewards={**stored.rollouts.rewards, "summary": other, "total": stored.rollouts.rewards["total"] - summary + other},
    )
    for name, locked in (("slca", True), ("grpo", False)):
        record = algorithm(name, config.credit)
        assert np.array_equal(record.credit(stored.rollouts), stored.credits[name])  # the file holds every digit
        assert np.array_equal(record.credit(changed)[tool], stored.credits[name][tool]) == locked


@pytest.mark.parametrize(("segmenter", "kind"), [("content", TOOL), ("position", SUMMARY)])
def test_a_training_step_is_stored_with_the_segments_that_it_was_trained_by(tmp_path, config, segmenter, kind):
    """A rollout cut off on its only call: a tool segment by content, the summary by position. File, rows and credits agree."""
    config.credit.segmenter = segmenter
    episodes, _, _, words, _ = batch(groups=2)
    rollouts = annotate(episodes, config)
    credit = algorithm("toolpo", config.credit).credit(rollouts)
    path = save_step(tmp_path, 3, episodes, rollouts, {"toolpo": credit}, words.decode, config)
    stored = load_episodes(path)
    assert path == episode_file(tmp_path, 3) and stored.step == 3
    assert [s.kind for s in stored.segments[3]] == [kind]
    for row, segments in zip(stored.rollouts.kind, stored.segments, strict=True):
        assert row[row != ABSENT].tolist() == [s.kind for s in segments]
    assert list(stored.credits) == ["toolpo", "slca", "grpo", "rltr"] and np.array_equal(stored.credits["toolpo"], credit)
