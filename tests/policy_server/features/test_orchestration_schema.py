"""What orchestration models are tied to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from policy_server.features.orchestration_schema import ORCHESTRATION_SCHEMA
from policy_server.features.schema import SCHEMA

GROUPS = ("node", "access_point", "link", "replica", "demand", "pair")


def test_hash_is_the_published_one() -> None:
    """Model bundles record this hash. If the change of the schema is meant, retrain, and put the new hash here."""
    assert ORCHESTRATION_SCHEMA.hash == "794e95c8a74ac15e788efa77bb22b208ff6e04437c15f2bf105d35e5e9644da3"


@pytest.mark.parametrize("group", GROUPS)
def test_names_are_unique(group: str) -> None:
    names = getattr(ORCHESTRATION_SCHEMA, group)
    assert len(set(names)) == len(names)


def test_a_pair_has_no_name_of_its_demand() -> None:
    assert not set(ORCHESTRATION_SCHEMA.pair) & set(ORCHESTRATION_SCHEMA.demand)


@pytest.mark.parametrize("group", GROUPS)
def test_hash_depends_on_names_and_their_order(group: str) -> None:
    names = getattr(ORCHESTRATION_SCHEMA, group)
    for changed in (names[::-1], names[:-1], (*names[:-1], "other")):
        columns: dict[str, Any] = {group: changed}
        assert replace(ORCHESTRATION_SCHEMA, **columns).hash != ORCHESTRATION_SCHEMA.hash


def test_kinds_of_policies_do_not_share_a_hash() -> None:
    assert ORCHESTRATION_SCHEMA.hash != SCHEMA.hash
