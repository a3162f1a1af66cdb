import gc
import hashlib
import json
import math
import shutil
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from policy_server.cluster.ledger import Ledger
from policy_server.policies.dispatch import DispatchPolicy, DispatchView
from policy_server.policies.guard import DecisionSource, FallbackReason, GuardObserver
from policy_server.policies.heuristics import HEURISTIC_DISPATCH_NAMES, heuristic_dispatch
from policy_server.policies.orchestration.rules import HEURISTIC_ORCHESTRATION_NAMES
from policy_server.runtime import registry as registry_module
from policy_server.runtime.bundle import BundleError, shipped_bundles_root
from policy_server.runtime.graph_contract import ENCODER, HEAD
from policy_server.runtime.orchestration_registry import OrchestrationRegistry
from policy_server.runtime.registry import PolicyRegistry, UnknownPolicyError
from policy_server.runtime.session import ModelSession
from tests.support.models import (
    encoder_model,
    head_model,
    write_example_bundle,
    write_orchestration_bundle,
)
from tests.support.systems import example_queries, example_snapshot, example_topology


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_example_bundle(tmp_path, version="1.0.0")
    return tmp_path


@pytest.fixture
def registry(root: Path) -> PolicyRegistry:
    return PolicyRegistry(root, active="kais")


def replace_head(path: Path, model: bytes) -> None:
    """Replaces the head and its record, goldens and signature left as they were."""
    (path / "head.onnx").write_bytes(model)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"]["head.onnx"] = {"size_bytes": len(model), "sha256": hashlib.sha256(model).hexdigest()}
    (path / "manifest.json").write_text(json.dumps(manifest))


def truncate(path: Path) -> None:
    data = (path / "encoder.onnx").read_bytes()
    (path / "encoder.onnx").write_bytes(data[:-1])


class TestNames:
    def test_every_heuristic_and_every_bundle_has_one(self, registry: PolicyRegistry) -> None:
        assert registry.names == ("kais", *HEURISTIC_DISPATCH_NAMES)
        for name in registry.names:
            policy = registry.get(name)
            assert policy.name == name
            assert policy.policy.learned == (name == "kais")

    @pytest.mark.parametrize("name", [None, ""])
    def test_no_name_means_the_active_policy(self, registry: PolicyRegistry, name: str | None) -> None:
        assert registry.get(name) is registry.get("kais")
        registry.set_active("round-robin")
        assert registry.active == "round-robin"
        assert registry.get(name) is registry.get("round-robin")

    def test_unknown_names_are_refused_with_the_known_ones(self, registry: PolicyRegistry) -> None:
        for use in (registry.get, registry.set_active):
            with pytest.raises(
                UnknownPolicyError, match="'magic' is unknown; choose one of kais, random"
            ) as e:
                use("magic")
            for name in registry.names:
                assert name in str(e.value)
        assert registry.active == "kais"

    def test_asking_twice_gives_the_same_guard(self, registry: PolicyRegistry) -> None:
        assert registry.get("least-loaded") is registry.get("least-loaded")

    def test_threads_that_ask_first_together_get_the_same_guard(
        self, registry: PolicyRegistry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        together = threading.Barrier(2)

        def made_together(name: str) -> DispatchPolicy:
            together.wait()
            return heuristic_dispatch(name)

        monkeypatch.setattr(registry_module, "heuristic_dispatch", made_together)
        with ThreadPoolExecutor(2) as threads:
            first, second = threads.map(registry.get, ["prequal", "prequal"])
        assert first is second

    @pytest.mark.parametrize(
        ("active", "fallback"), [("magic", "round-robin"), ("kais", "kais"), ("kais", "x")]
    )
    def test_settings_must_name_what_exists(self, root: Path, active: str, fallback: str) -> None:
        with pytest.raises(UnknownPolicyError):
            PolicyRegistry(root, active=active, fallback=fallback)

    def test_root_must_exist(self, tmp_path: Path) -> None:
        with pytest.raises(BundleError, match="no such directory"):
            PolicyRegistry(tmp_path / "none", active="random")

    def test_without_a_root_the_shipped_bundles_are_served(self) -> None:
        registry = PolicyRegistry(active="earliest-completion")
        for bundle in registry.bundles.values():
            assert bundle.path.is_relative_to(shipped_bundles_root())

    def test_fallback_is_the_one_asked_for(self, root: Path) -> None:
        registry = PolicyRegistry(root, active="kais", fallback="least-loaded")
        assert registry.get("kais").fallback.name == registry.get("random").fallback.name == "least-loaded"


class TestReload:
    def test_serves_the_latest_version(self, root: Path, registry: PolicyRegistry) -> None:
        old = registry.get()
        write_example_bundle(root, version="1.10.0", seed=1)
        write_example_bundle(root, version="1.9.0", seed=2)
        report = registry.reload()
        assert [bundle.manifest.version for bundle in report.loaded] == ["1.10.0"]
        assert (report.kept, report.missing, report.failures) == ((), (), ())
        assert registry.get().version == registry.bundles["kais"].manifest.version == "1.10.0"
        assert old.version == "1.0.0"

    def test_finds_new_policies(self, root: Path, registry: PolicyRegistry) -> None:
        write_example_bundle(root, "other", "0.1.0")
        registry.reload()
        assert registry.get("other").version == "0.1.0"
        assert registry.names[:2] == ("kais", "other")

    def test_keeps_what_has_not_changed(self, registry: PolicyRegistry) -> None:
        guard = registry.get()
        report = registry.reload()
        assert (report.loaded, report.missing, report.failures) == ((), (), ())
        assert report.kept == (registry.bundles["kais"],)
        assert registry.get() is guard

    @pytest.mark.parametrize(
        ("break_bundle", "what"),
        [
            (truncate, "bytes instead of"),
            (lambda path: replace_head(path, encoder_model()), "signature differs"),
            (lambda path: replace_head(path, head_model(faults=math.nan)), "output score: NaN"),
            (lambda path: (path / "manifest.json").unlink(), "manifest.json: not readable"),
        ],
    )
    def test_a_refused_version_leaves_the_old_one_serving(
        self, root: Path, registry: PolicyRegistry, break_bundle: Callable[[Path], None], what: str
    ) -> None:
        guard = registry.get()
        break_bundle(write_example_bundle(root, version="2.0.0", seed=1))
        for _ in range(2):
            report = registry.reload()
            assert report is registry.last_reload
            assert [str(failure) for failure in report.failures if what in str(failure)]
            assert len(report.failures) == 1
            assert report.loaded == ()
            assert registry.get() is guard

    def test_at_start_an_older_version_stands_in_for_a_refused_one(self, root: Path) -> None:
        truncate(write_example_bundle(root, version="2.0.0"))
        registry = PolicyRegistry(root, active="kais")
        assert registry.get().version == "1.0.0"
        assert len(registry.last_reload.failures) == 1

    def test_removing_the_latest_version_rolls_back(self, root: Path, registry: PolicyRegistry) -> None:
        path = write_example_bundle(root, version="2.0.0", seed=1)
        registry.reload()
        shutil.rmtree(path)
        registry.reload()
        assert registry.get().version == "1.0.0"

    def test_a_version_that_changed_is_refused(self, root: Path, registry: PolicyRegistry) -> None:
        guard = registry.get()
        shutil.rmtree(root / "kais")
        write_example_bundle(root, version="1.0.0", seed=1)
        report = registry.reload()
        assert "publish a change under a higher version" in str(report.failures[0])
        assert registry.get() is guard

    @pytest.mark.parametrize("gone", ["kais", "."])
    def test_a_policy_whose_bundles_are_gone_serves_on(
        self, root: Path, registry: PolicyRegistry, gone: str
    ) -> None:
        guard = registry.get()
        shutil.rmtree(root / gone)
        report = registry.reload()
        assert report.kept == (registry.bundles["kais"],)
        assert "gone; restore it" in str(report.failures[-1])
        assert registry.get() is guard

    def test_a_bundle_named_like_a_heuristic_is_refused(self, root: Path, registry: PolicyRegistry) -> None:
        write_example_bundle(root, "random", "1.0.0")
        report = registry.reload()
        assert "named like a heuristic" in str(report.failures[0])
        assert not registry.get("random").policy.learned
        assert registry.names.count("random") == 1

    def test_failures_are_logged(
        self, root: Path, registry: PolicyRegistry, caplog: pytest.LogCaptureFixture
    ) -> None:
        truncate(write_example_bundle(root, version="2.0.0"))
        registry.reload()
        assert "encoder.onnx" in caplog.text


class TestMissingModel:
    @pytest.fixture
    def registry(self, root: Path) -> PolicyRegistry:
        truncate(root / "kais" / "1.0.0")
        return PolicyRegistry(root, active="kais", observer=GuardObserver())

    def test_is_answered_for_by_the_fallback(self, registry: PolicyRegistry) -> None:
        assert registry.last_reload.missing == ("kais",)
        assert registry.bundles == {}
        assert registry.get().degraded
        topology = example_topology()
        result = registry.get().decide(
            DispatchView(example_snapshot(topology)),
            example_queries(topology, 3),
            Ledger(topology),
            100.0,
            np.random.default_rng(0),
        )
        assert (result.decisions.replica >= 0).all()
        assert (result.origin.source, result.origin.reason) == (
            DecisionSource.FALLBACK,
            FallbackReason.NO_MODEL,
        )

    def test_recovers_with_the_next_sound_bundle(self, root: Path, registry: PolicyRegistry) -> None:
        write_example_bundle(root, version="1.0.1")
        registry.reload()
        assert registry.get().version == "1.0.1"
        assert not registry.get().degraded


def live_sessions() -> int:
    gc.collect()
    # isinstance would ask lazy objects of other libraries for their class, which some answer with a warning.
    return sum(type(each) is ModelSession for each in gc.get_objects())


def test_replaced_models_are_freed_without_the_garbage_collector(
    root: Path, registry: PolicyRegistry
) -> None:
    before = live_sessions()
    replaced = [weakref.ref(session) for session in registry.bundles["kais"].sessions.values()]
    guard = weakref.ref(registry.get())
    gc.disable()
    try:
        write_example_bundle(root, version="2.0.0", seed=1)
        registry.reload()
        assert guard() is None
        assert [session() for session in replaced] == [None, None]
    finally:
        gc.enable()
    assert live_sessions() == before


def test_readers_always_get_a_sound_policy_while_versions_change(root: Path) -> None:
    registry = PolicyRegistry(root, active="kais")
    topology = example_topology()
    view = DispatchView(example_snapshot(topology))
    queries = example_queries(topology, 4)
    done = threading.Event()
    versions: list[list[int]] = []
    failures: list[BaseException] = []

    def read(seed: int) -> None:
        seen: list[int] = []
        versions.append(seen)
        ledger, random = Ledger(topology), np.random.default_rng(seed)
        try:
            while not done.is_set():
                result = registry.get().decide(view, queries, ledger, 100.0, random, record=False)
                assert result.origin.source is DecisionSource.LEARNED
                assert not result.exceptions
                seen.append(int(result.origin.version.split(".")[0]))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for major in range(2, 6):
        write_example_bundle(root, version=f"{major}.0.0", seed=major)
        registry.reload()
    done.set()
    for thread in threads:
        thread.join()
    assert not failures
    assert all(seen == sorted(seen) for seen in versions), "no old version after the first new one"
    assert max(map(max, versions)) > 1


@pytest.mark.slow
def test_two_hundred_reloads_do_not_grow(root: Path) -> None:
    def resident_mebibytes() -> float:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * 4096 / 2**20

    if not Path("/proc/self/statm").exists():
        pytest.skip("needs /proc/self/statm")
    random = np.random.default_rng(0)
    ballast = {"ballast": random.normal(size=(64, 1024)).astype(np.float32)}
    models = {ENCODER: encoder_model(extra=ballast), HEAD: head_model()}
    registry = PolicyRegistry(root, active="kais")
    at_forty = 0.0
    for patch in range(1, 201):
        shutil.rmtree(root / "kais")
        write_example_bundle(root, version=f"1.0.{patch}", models=models)
        assert [b.manifest.version for b in registry.reload().loaded] == [f"1.0.{patch}"]
        if patch == 40:
            at_forty = resident_mebibytes()
    assert resident_mebibytes() - at_forty <= 20


class TestKinds:
    def test_each_registry_knows_the_bundles_of_its_kind(self, root: Path) -> None:
        write_orchestration_bundle(root)
        dispatch = PolicyRegistry(root, active="kais")
        orchestration = OrchestrationRegistry(root, active="gpg")
        assert dispatch.names == ("kais", *HEURISTIC_DISPATCH_NAMES)
        assert orchestration.names == ("gpg", *HEURISTIC_ORCHESTRATION_NAMES)
        assert not dispatch.last_reload.failures
        assert not orchestration.last_reload.failures

    def test_a_bundle_of_the_other_kind_cannot_be_active(self, root: Path) -> None:
        with pytest.raises(UnknownPolicyError, match="policy: 'kais' is unknown; choose one of static"):
            OrchestrationRegistry(root, active="kais")

    def test_a_broken_bundle_is_stood_in_for(self, tmp_path: Path) -> None:
        bundle = write_orchestration_bundle(tmp_path)
        (bundle / "head.onnx").write_bytes(b"garbage")
        registry = OrchestrationRegistry(tmp_path, active="gpg")
        assert registry.get().degraded
        assert registry.last_reload.missing == ("gpg",)

    def test_a_bundle_that_does_not_tell_its_kind_is_refused_once(self, tmp_path: Path) -> None:
        bundle = write_orchestration_bundle(tmp_path)
        (bundle / "manifest.json").write_text("garbage")
        assert len(PolicyRegistry(tmp_path, active="random").last_reload.failures) == 1
        assert not OrchestrationRegistry(tmp_path, active="static").last_reload.failures

    def test_a_new_version_replaces_the_old_one(self, tmp_path: Path) -> None:
        write_orchestration_bundle(tmp_path)
        registry = OrchestrationRegistry(tmp_path, active="gpg")
        write_orchestration_bundle(tmp_path, version="1.1.0", seed=2)
        assert [bundle.manifest.version for bundle in registry.reload().loaded] == ["1.1.0"]
        assert registry.get().version == "1.1.0"

    def test_a_bundle_named_like_a_rule_is_refused(self, tmp_path: Path) -> None:
        write_orchestration_bundle(tmp_path, policy="greedy")
        (failure,) = OrchestrationRegistry(tmp_path, active="greedy").last_reload.failures
        assert failure.what == "named like a heuristic"
