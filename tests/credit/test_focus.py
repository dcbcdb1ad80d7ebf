"""Focus: the hand cases of SC-GRPO, GEAR, OAR and CREST."""

import numpy as np
import pytest

from slca.credit import focus

ROUND = dict(rtol=0, atol=6e-5)


def test_saturation_hand_case():
    mask = np.ones((1, 3), bool)
    np.testing.assert_allclose(focus.saturation(np.array([[0, 0.05, 0.2]]), mask)[0], [0, 0.2857, 0.6154], **ROUND)
    padded = focus.saturation(np.array([[0, 0.05, 0.2, 99.0, np.nan]]), np.array([[1, 1, 1, 0, 0]], bool))
    np.testing.assert_allclose(padded[0], [0, 0.2857, 0.6154, 0, 0], **ROUND)
    np.testing.assert_array_equal(focus.saturation(np.zeros((1, 3)), mask), 0)  # c_min guards 0 / 0


def test_a_kl_that_rounding_made_negative_is_none():
    """Where teacher and student agree, a float32 sum comes out around -1e-7; a negative focus ends a run."""
    mask = np.ones((1, 4), bool)
    found = focus.saturation(np.array([[-1e-7, -3e-5, 0.05, 0.2]]), mask)
    assert found[0, :2].tolist() == [0, 0] and (found[0, 2:] > 0).all()
    aux = {"teacher_kl": np.full((1, 4), -1e-7), "reference": np.array([0])}
    np.testing.assert_array_equal(focus.self_conditioned()(aux, mask), 0)


def test_rows_without_a_reference_keep_one():
    aux = {"teacher_kl": np.array([[0, 0.05, 0.2], [9, 9, 9]]), "reference": np.array([1, -1])}
    found = focus.self_conditioned()(aux, np.ones((2, 3), bool))
    np.testing.assert_allclose(found, [[0, 0.2857, 0.6154], [1, 1, 1]], **ROUND)


def test_references():
    group = np.repeat([0, 1, 2, 3], 4)
    correct = np.array([1, 1, 0, 0, 1, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, np.nan])
    for seed in range(20):
        found = focus.references(group, correct, seed)
        assert found[0] == 1 and found[1] == 0  # never itself
        assert set(found[2:4]) <= {0, 1}
        assert (found[4:12] == -1).all()  # one correct, all correct: plain GRPO
        assert sorted(found[12:15])[0] == -1 and len(set(found[12:15]) - {-1}) == 1  # one failed reference for the others
        assert found[15] == -1
        reference = next(x for x in found[12:15] if x >= 0)
        assert found[reference] == -1 and reference != 15
    np.testing.assert_array_equal(focus.references(group, correct, 3), focus.references(group, correct, 3))


def test_peer_scores():
    found = focus.peer_scores([np.array([0.2, 0.4, 0.9]), np.array([0.5, 0.7])], np.array([1, -1]))
    np.testing.assert_allclose(found, [0.3, np.nan])


def test_gear_hand_case():
    d = np.array([[0.02, 0.90, 0.05, 0.10, 0.03]])
    entropy = np.array([[0.1, 0.2, 0.1, 0.9, 0.1]])
    mask = np.ones((1, 5), bool)
    np.testing.assert_allclose(focus.anchored(d, entropy, mask), [[0.02, 0.90, 0.90, 0.10, 0.03]])
    found = focus.gear()({"teacher_kl": d, "entropy": entropy}, mask)
    np.testing.assert_allclose(found, [[0.3089, 1.6683, 1.6683, 0.9268, 0.4278]], **ROUND)
    np.testing.assert_allclose(found.sum(), 5)
    np.testing.assert_allclose(focus.gear()({"teacher_kl": d * 0 + 0.2, "entropy": entropy}, mask), 1)
    np.testing.assert_allclose(focus.gear()({"teacher_kl": d * 0, "entropy": entropy}, mask), 1)


def test_an_anchor_ends_with_the_turn():
    d = np.array([[0.9, 0.1, 0.1, 0.1]])
    found = focus.anchored(d, np.zeros((1, 4)), np.array([[1, 1, 0, 1]], bool))
    np.testing.assert_allclose(found, [[0.9, 0.9, 0.1, 0.1]])


def test_oar_reshape_hand_case():
    importance = np.array([0, np.e - 1, np.e**2 - 1])
    np.testing.assert_allclose(focus.reshape(importance, rescale=False), [0.1, 1.3333, 2], **ROUND)
    np.testing.assert_allclose(focus.reshape(importance), [0.0874, 1.1650, 1.7476], **ROUND)
    np.testing.assert_array_equal(focus.reshape(importance, quantile=0, beta=0), 1)
    np.testing.assert_array_equal(focus.reshape(np.full(3, 0.7)), 1)
    assert focus.reshape(np.array([])).shape == (0,)
    assert np.isfinite(focus.reshape(importance, quantile=1.0)).all()


def test_oar_leaves_the_answer_alone():
    aux = {"importance": np.array([[0, np.e - 1, np.e**2 - 1, np.nan, 0.5]])}
    found = focus.oar("saliency")(aux, np.array([[1, 1, 1, 1, 0]], bool))
    np.testing.assert_allclose(found, [[0.0874, 1.1650, 1.7476, 1, 1]], **ROUND)


def test_crest_hand_case():
    aux = {"gap": np.array([[0.2, -0.3, 1.0]]), "sign": np.ones((1, 3)), "surprisal": np.full((1, 3), 2.0)}
    np.testing.assert_allclose(focus.crest()(aux, np.ones((1, 3), bool)), [[1.0664, 1, 1.084]], **ROUND)


def test_a_missing_probe_is_named():
    with pytest.raises(KeyError, match="'entropy' is missing; the probe gave teacher_kl"):
        focus.gear()({"teacher_kl": np.zeros((1, 1))}, np.ones((1, 1), bool))
