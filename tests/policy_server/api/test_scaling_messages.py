"""Whatever a message holds, it is refused with a reason or answered soundly."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given, settings
from hypothesis import strategies as st

from policy_server.api.errors import InvalidArgumentError
from policy_server.api.scaling_messages import ScalingLimits, message_from_answer, question_from_message
from policy_server.api.scaling_questions import ScalingAnswer
from policy_server.policies.scaling import RULE_SCALING_NAMES, rule_scaling
from policy_server.policies.scaling.guard import GuardedScaling
from policy_server.policies.scaling.onnx import onnx_scaling
from policy_server.policies.scaling.resize import QosClass, ResizeStatus
from policy_server.policies.scaling.safety import ScalingReason
from policy_server.proto.policy.v1 import scaling_service_pb2
from policy_server.proto.policy.v1.scaling_service_pb2 import ScaleRequest, ScaleResponse
from tests.support.models import loaded_scaling_bundle

LIMITS = ScalingLimits()
POLICIES = [
    *(GuardedScaling(rule_scaling(name)) for name in RULE_SCALING_NAMES),
    GuardedScaling(onnx_scaling(loaded_scaling_bundle())),
]


def answered(request: ScaleRequest, policy: GuardedScaling) -> ScaleResponse:
    question = question_from_message(request, LIMITS)
    answer = ScalingAnswer(policy.decide(question.task), question.sample_age_seconds)
    return ScaleResponse.FromString(message_from_answer(answer).SerializeToString())


def random_request(random: np.random.Generator, *, tame: bool) -> ScaleRequest:
    """Columns of any values; of the right lengths and ranges where ``tame``."""
    count, intervals = int(random.integers(0, 6)), int(random.integers(0, 5))
    request = ScaleRequest()
    lengths = {
        "nodes": int(random.integers(1, 3)),
        "applications": int(random.integers(1, 3)),
        "containers": count,
        "history": count * intervals,
        "last_resizes": count,
    }
    for part, length in lengths.items():
        message = getattr(request, part)
        for field in message.DESCRIPTOR.fields:
            if not field.is_repeated:
                continue
            needed = part in ("nodes", "applications") or field.name in ("id", "node", "application")
            if not needed and not tame and random.random() < 0.3:
                continue
            wanted = length if tame or random.random() < 0.95 else length + 1
            getattr(message, field.name).extend(
                _value(field, row, random, lengths, tame) for row in range(wanted)
            )
    request.history.intervals = intervals
    return request


def _value(
    field: FieldDescriptor, row: int, random: np.random.Generator, lengths: dict[str, int], tame: bool
) -> Any:
    if field.type == FieldDescriptor.TYPE_STRING:
        return f"name-{row}"
    if field.name == "qos_class":
        return QosClass.UNSPECIFIED
    if field.enum_type is not None:
        return int(random.integers(len(field.enum_type.values)))
    if field.name in ("node", "application"):
        return int(random.integers(lengths[f"{field.name}s"] + (0 if tame else random.random() < 0.05)))
    if field.type == FieldDescriptor.TYPE_UINT32:
        return int(random.random() < 0.1)
    if not tame and random.random() < 0.03:
        return float(random.choice([math.inf, -1.0, 1e30, -math.inf]))
    if "latency_objective" not in field.name and random.random() < 0.1:
        return math.inf if field.containing_type.name == "ScalingNodes" else math.nan
    if field.name == "throttled_fraction":
        return random.random()
    if field.name.startswith(("smallest", "largest")):
        quantum = 1.0 if field.name.endswith("millicores") else 2.0**20
        return quantum * (1.0 if field.name.startswith("smallest") else float(random.integers(1, 4000)))
    scale = 2.0**28 if field.name.endswith("bytes") else 500.0 if field.name.endswith("millicores") else 0.1
    zero = field.containing_type.name == "ScalingHistory" and random.random() < 0.1
    return 0.0 if zero else float(scale * np.exp(random.uniform(-6, 6)))


@given(st.integers(0, 2**32), st.sampled_from(POLICIES))
@settings(max_examples=200)
def test_sound_messages_are_answered_soundly(seed: int, policy: GuardedScaling) -> None:
    request = random_request(np.random.default_rng(seed), tame=True)
    response = answered(request, policy)
    count = len(request.containers.id)
    for field in ScaleResponse.DESCRIPTOR.fields:
        if field.name != "provenances":
            assert len(getattr(response, field.name)) == count
    for row in range(count):
        assert response.provenance[row] < len(response.provenances)
        assert response.apply[row] == (response.hold_reason[row] == 0)
        for resource, unit in (("cpu", "millicores"), ("memory", "bytes")):
            target, lower, upper = (
                getattr(response, f"{resource}_{bound}_{unit}")[row]
                for bound in ("target", "lower_bound", "upper_bound")
            )
            assert math.isnan(target) or lower <= target <= upper
            assert getattr(response, f"{resource}_reason")[row] in list(ScalingReason)
            for kind in ("request", "limit"):
                before = getattr(request.containers, f"{resource}_{kind}_{unit}")[row]
                after = getattr(response, f"{resource}_{kind}_{unit}")[row]
                assert kind == "request" or math.isnan(after) or after > 0
                assert math.isnan(before) == math.isnan(after) or _is_guaranteed_by_its_limits(request, row)


def _is_guaranteed_by_its_limits(request: ScaleRequest, row: int) -> bool:
    """A pod that specifies limits alone has equal requests, whether they were told or not."""
    requests = request.containers.cpu_request_millicores[row], request.containers.memory_request_bytes[row]
    return any(map(math.isnan, requests))


@given(st.integers(0, 2**32), st.sampled_from(POLICIES))
@settings(max_examples=200)
def test_any_message_is_answered_or_refused_with_a_reason(seed: int, policy: GuardedScaling) -> None:
    request = random_request(np.random.default_rng(seed), tame=False)
    with suppress(InvalidArgumentError):
        assert len(answered(request, policy).apply) == len(request.containers.id)


@pytest.mark.parametrize(
    ("kind", "prefix", "names"),
    [
        ("QosClass", "QOS_CLASS_", QosClass),
        ("ResizeStatus", "RESIZE_STATUS_", ResizeStatus),
        ("ScalingReason", "SCALING_REASON_", ScalingReason),
    ],
)
def test_numbers_are_those_of_the_proto_file(kind: str, prefix: str, names: Any) -> None:
    described = scaling_service_pb2.DESCRIPTOR.enum_types_by_name[kind]
    known = {value.number: value.name.removeprefix(prefix) for value in described.values}
    expected = {int(name): name.name for name in names}
    assert known == {**expected, 0: "UNSPECIFIED"}
