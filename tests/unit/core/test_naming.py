from engine.core.naming import first


def test_the_first_are_named_and_the_rest_counted() -> None:
    assert first([], 2) == ""
    assert first(["a", "b"], 2) == "a, b"
    assert first(["a", "b", "c", "d"], 2, "; ") == "a; b and 2 more"
