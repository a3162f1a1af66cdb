"""What the documentation tells newcomers to type, on other ports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from bench.envoy import configuration
from bench.envoy.configuration import Shipped
from bench.envoy.picker import PickerProcess
from tests.support.back_ends import running_back_ends
from tests.support.envoy import needs_envoy, running_envoy

STATE = configuration.FOLDER / "state.json"
REPORT = configuration.FOLDER / "report_state.py"


def endpoints(state: dict) -> list[str]:
    return [replica["endpoint"] for replica in state["full"]["topology"]["replicas"]]


def test_the_example_state_names_the_back_ends_of_the_shipped_configurations() -> None:
    named = endpoints(json.loads(STATE.read_text()))
    for shipped in Shipped:
        back_ends = configuration.cluster(configuration.shipped(shipped), configuration.BACK_ENDS)
        if "load_assignment" in back_ends:
            (locality,) = back_ends["load_assignment"]["endpoints"]
            addresses = [row["endpoint"]["address"]["socket_address"] for row in locality["lb_endpoints"]]
            assert [f"{row['address']}:{row['port_value']}" for row in addresses] == named


@needs_envoy
async def test_the_first_steps_lead_to_an_answer(tmp_path: Path) -> None:
    async with running_back_ends(2) as back_ends:
        addresses = [back_end.address for back_end in back_ends]
        state = STATE.read_text()
        for example, address in zip(endpoints(json.loads(state)), addresses, strict=True):
            state = state.replace(example, address)
        file = tmp_path / "state.json"
        file.write_text(state)
        with PickerProcess(arguments=["--envoy-service", "fixed:web"]) as picker:
            reported = subprocess.run(
                [sys.executable, str(REPORT), str(file), picker.address],
                capture_output=True,
                text=True,
                check=False,
            )
            assert reported.stdout == "the server holds version 1\n", reported.stderr
            async with running_envoy(picker.picker_address, addresses, Shipped.FAIL_CLOSED) as gateway:
                assert await gateway.served_by() in addresses
