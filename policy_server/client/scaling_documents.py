"""Measurements of containers as text, for the shell."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict
from importlib import resources
from typing import Any

from policy_server.client.scaling import ContainerRecommendation, ScalingDocumentError


def read_document(text: str) -> Any:
    """What JSON or YAML says.

    Raises:
        ScalingDocumentError: it is neither.
    """
    try:
        return json.loads(text)
    except ValueError:
        pass
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ScalingDocumentError(f"neither JSON nor YAML: {error}") from None


def example_document() -> str:
    """A commented example in YAML."""
    return (resources.files("policy_server.client") / "scaling_example.yaml").read_text(encoding="utf-8")


def document_of(recommended: Iterable[ContainerRecommendation]) -> dict[str, Any]:
    """What JSON can hold of recommendations: null where there is none."""
    return {"containers": [_without_nan(asdict(row)) for row in recommended]}


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(entry) for key, entry in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value
