import itertools

import pytest

from policy_server.runtime.versions import SemanticVersion


def test_order_of_the_specification() -> None:
    ascending = [
        "0.9.10",
        "1.0.0-alpha",
        "1.0.0-alpha.1",
        "1.0.0-alpha.beta",
        "1.0.0-beta",
        "1.0.0-beta.2",
        "1.0.0-beta.11",
        "1.0.0-rc.1",
        "1.0.0",
        "1.2.0",
        "1.10.0",
        "2.0.0",
    ]
    for lower, higher in itertools.combinations(ascending, 2):
        assert SemanticVersion(lower) < SemanticVersion(higher)
        assert not SemanticVersion(higher) < SemanticVersion(lower)


def test_build_metadata_does_not_count() -> None:
    assert SemanticVersion("1.0.0+a") == SemanticVersion("1.0.0+b")
    assert hash(SemanticVersion("1.0.0+a")) == hash(SemanticVersion("1.0.0"))


@pytest.mark.parametrize(
    "text", ["", "1", "1.0", "v1.0.0", "01.0.0", "1.0.0-", "1.0.0 ", "1.0.0-a..b", "1.0.٣"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"MAJOR\.MINOR\.PATCH"):
        SemanticVersion(text)
