"""A key that an environment variable holds appears in no file (field bug C5)."""

from slca.report.redact import MASK, redact, redact_tree, secrets

CANARY = "canary-9f8e7d6c"


def test_values_of_named_variables_are_found_and_short_ones_left(config):
    environ = {"SLCA_JUDGE_KEY": CANARY, "SLCA_SIMULATOR_KEY": "EMPTY", "HF_TOKEN": "hf_0123456789", "HOME": "/home/somebody"}
    assert secrets(config, environ) == (CANARY, "hf_0123456789")
    assert secrets(None, {}) == ()


def test_a_value_inside_another_is_masked_whole():
    environ = {"A": "12345678", "B": "1234567890"}
    hidden = secrets({"a_key_env": "A", "nested": {"b_key_env": "B"}}, environ)
    assert redact("x 1234567890 y 12345678", hidden) == f"x {MASK} y {MASK}"


def test_trees_are_masked_in_keys_and_values_and_numbers_stay():
    tree = {"headers": [{"Authorization": f"Bearer {CANARY}"}], CANARY: 1, "num_memory_tokens": 4, "none": None}
    masked = redact_tree(tree, (CANARY,))
    assert masked == {"headers": [{"Authorization": f"Bearer {MASK}"}], MASK: 1, "num_memory_tokens": 4, "none": None}


def test_credentials_in_urls_go_without_being_named():
    assert redact("GET https://bob:s3cret@host:8000/v1?a=b:c@d") == f"GET https://{MASK}@host:8000/v1?a=b:c@d"
    assert redact("http://host:8000/v1 mail a@b.c") == "http://host:8000/v1 mail a@b.c"
