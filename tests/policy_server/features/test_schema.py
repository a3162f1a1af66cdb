from dataclasses import replace
from typing import Any

import pytest

from policy_server.features.schema import SCHEMA, FeatureSchema

GROUPS = ("node", "access_point", "link", "replica", "request")


def test_hash_is_the_published_one() -> None:
    """Model bundles record this hash. If the change of the schema is meant, retrain, and put the new hash here."""
    assert SCHEMA.hash == "69017db967124ccaafcc312cf94d19bb47fcdcda33026d858baa0333c101e91d"


@pytest.mark.parametrize("group", GROUPS)
def test_names_are_unique(group: str) -> None:
    names = getattr(SCHEMA, group)
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("group", GROUPS)
def test_hash_depends_on_names_and_their_order(group: str) -> None:
    names = getattr(SCHEMA, group)
    for changed in (names[::-1], names[:-1], (*names[:-1], "other")):
        columns: dict[str, Any] = {group: changed}
        assert replace(SCHEMA, **columns).hash != SCHEMA.hash


def test_hash_depends_on_the_revision() -> None:
    assert replace(SCHEMA, revision=SCHEMA.revision + 1).hash != SCHEMA.hash


def test_a_feature_that_changes_its_group_changes_the_hash() -> None:
    first = FeatureSchema(node=("a", "b"), access_point=("c",), link=(), replica=(), request=())
    second = FeatureSchema(node=("a",), access_point=("b", "c"), link=(), replica=(), request=())
    assert first.hash != second.hash
