"""GPG: credit, gradients, masks, learning, checkpoints."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from policy_server.policies.orchestration.plan import FramePlan
from policy_server.policies.orchestration.rules import heuristic_orchestration
from policy_server.policies.orchestration.stepwise import NO_NODE
from training.algorithms import gpg
from training.algorithms.episode_jobs import jobs, play_job
from training.algorithms.frames import Episodes, imitated, pick_frame, play
from training.algorithms.gpg import (
    FrameTensors,
    GpgConfig,
    GpgState,
    centred,
    initial_state,
    pick_advantages,
)
from training.algorithms.runners import InlineRunner, JobSource
from training.checkpoints import (
    ORCHESTRATION,
    RunError,
    create_run,
    load_checkpoint,
    resume_run,
    save_checkpoint,
)
from training.environments.compiled_dispatch import CompiledDispatch
from training.environments.orchestration import OrchestrationEnvironment
from training.orchestration_scenarios import OrchestrationSetting, orchestration_simulator
from training.scenarios import Scenario
from training.simulator.simulator import SimulatorConfig
from training.workloads.patterns import Pattern

TINY = GpgConfig(
    updates=2, scenarios=2, repeats=2, presets=("testbed-40",), load_range=(0.2, 0.3), steps=3, frames=2,
    warm_start_batches=1, embedding=8, hidden=8,
)  # fmt: skip


def environment(load: float = 0.3, repeats: int = 1, seeds: int = 2) -> OrchestrationEnvironment:
    """Short frames of ten slots."""
    simulator = orchestration_simulator(
        [Scenario(preset="testbed-40", seed=1 + i, pattern=Pattern.P4, load=load) for i in range(seeds)],
        OrchestrationSetting(frames=3, settle_slots=20, initial_replicas_per_node=1.2),
        repeats=repeats,
        spare_frames=1,
        config=SimulatorConfig(slots_per_frame=10),
    )
    frames = OrchestrationEnvironment(simulator, CompiledDispatch(simulator))
    frames.step([], slots=20)
    return frames


def fitted_state(config: GpgConfig = TINY) -> GpgState:
    state = initial_state(config)
    gpg.fit_normalisers(state, episodes(state).steps)
    return state


def episodes(state: GpgState, *, load: float = 0.3, repeats: int = 2, seed: int = 0) -> Episodes:
    random = np.random.default_rng(seed)
    return play(
        environment(load, repeats),
        lambda frames: pick_frame(state.actor, FramePlan(frames.query()), random, steps=3),
        frames=3,
        repeats=repeats,
    )


def test_the_baseline_is_the_mean_of_the_other_repeats() -> None:
    values = np.random.default_rng(0).normal(size=(2, 6, 4))
    result = centred(values, 3)
    for system in range(6):
        first = system // 3 * 3
        others = [row for row in range(first, first + 3) if row != system]
        assert result[:, system] == pytest.approx(values[:, system] - values[:, others].mean(axis=1))
    # Whatever the load does to all repeats alike is gone.
    shifted = values + np.repeat(np.random.default_rng(1).normal(size=(2, 2, 4)), 3, axis=1)
    assert centred(shifted, 3) == pytest.approx(result)


def test_who_is_credited_with_what() -> None:
    played = episodes(fitted_state())
    steps = [replace(step, choice=step.choice.copy()) for step in played.steps]
    steps[1].choice[2] = (4, 30, 31 + 7)  # delete service 4, nothing, add service 7
    played = replace(played, steps=steps)
    of_services = np.random.default_rng(0).normal(size=played.service_reward.shape)
    own = pick_advantages(replace(TINY, team_share=0.0), played, of_services)
    team = pick_advantages(replace(TINY, team_share=1.0), played, of_services)
    assert own[1, 2] == pytest.approx([of_services[1, 2, 4], 0.0, of_services[1, 2, 7]])
    assert team[1, 2] == pytest.approx([of_services[1, 2].sum()] * 3)
    mixed = pick_advantages(replace(TINY, team_share=0.25), played, of_services)
    assert mixed == pytest.approx(0.75 * own + 0.25 * team)


def test_log_probabilities_are_those_of_the_picks_and_each_choice_sums_to_one() -> None:
    state = fitted_state()
    for step in episodes(state).steps:
        tensors = FrameTensors.of(step)
        log_probability, entropy = tensors.evaluate(state.actor)
        active = step.node != NO_NODE
        assert active.any()
        np.testing.assert_allclose(
            log_probability.detach().numpy()[active], step.log_probability[active], atol=1e-4
        )
        assert (entropy[torch.from_numpy(active)] > 0).all()
        # Over all actions of one pick, given its node.
        pick = tuple(np.argwhere(active)[0])
        total = 0.0
        with torch.no_grad():
            of_node, _ = tensors._node_log_probability(state.actor.encoder(**tensors.inputs)[3])
            for choice in np.flatnonzero(step.mask[pick]):
                tensors.choice[pick] = int(choice)
                total += float((tensors.evaluate(state.actor)[0][pick] - of_node[pick]).exp())
        assert total == pytest.approx(1.0, abs=1e-4)


def test_every_pick_is_feasible_and_carried_out() -> None:
    state, frames = fitted_state(), environment(load=1.0, seeds=3)
    random = np.random.default_rng(0)
    kinds = set()
    for _ in range(3):
        step = pick_frame(state.actor, FramePlan(frames.query()), random, steps=6)
        active = step.node != NO_NODE
        chosen = np.take_along_axis(step.mask, step.choice[..., None], axis=2)[..., 0]
        assert chosen[active].all()
        for system, own in enumerate(step.node):
            own = own[own != NO_NODE]
            assert len(set(own.tolist())) == len(own)
            assert set(own.tolist()) <= set(step.members[system].tolist())
            assert step.allowed[own].all()
        kinds |= set(np.sign(step.choice[active] - 30).tolist())
        assert frames.step(step.actions).refused == 0
    assert kinds == {-1, 0, 1}


def gradients(state: GpgState, played: Episodes, advantage: np.ndarray) -> torch.Tensor:
    loss = torch.zeros(())
    for step, of_frame in zip(played.steps, advantage, strict=True):
        log_probability, _ = FrameTensors.of(step).evaluate(state.actor)
        loss = loss - (log_probability * torch.from_numpy(of_frame.astype(np.float32))).sum()
    parameters = [p for p in state.actor.parameters() if p.requires_grad]
    parts = torch.autograd.grad(loss, parameters)
    return torch.cat([part.flatten() for part in parts])


def test_the_gradient_from_the_reward_is_not_zero_and_reaches_every_part() -> None:
    """In the authors' demo it is: the advantage of one trajectory against itself, times the gradient of log 1."""
    state = fitted_state()
    played = episodes(state, load=1.5)
    of_services, _ = gpg._service_advantages(TINY, state.critic, played)
    advantage = pick_advantages(TINY, played, centred(of_services, played.repeats))
    assert np.abs(advantage).max() > 1e-4
    gradient = gradients(state, played, advantage)
    assert torch.isfinite(gradient).all()
    assert float(gradient.norm()) > 1e-4
    for name, parameter in state.actor.named_parameters():
        log_probability, _ = FrameTensors.of(played.steps[0]).evaluate(state.actor)
        (part,) = torch.autograd.grad(log_probability.sum(), [parameter])
        assert float(part.abs().max()) > 0, name
    # Other rewards, another gradient: it comes from them and from nothing else.
    assert float(gradients(state, played, np.zeros_like(advantage)).abs().max()) == 0.0
    opposite = gradients(state, played, -advantage)
    torch.testing.assert_close(opposite, -gradient)


def test_updates_raise_the_probability_of_what_was_rewarded() -> None:
    state = fitted_state()
    played = episodes(state)
    favourite = played.steps[1].node != NO_NODE
    reward = np.zeros_like(played.service_reward)
    reward[1, 0] = 1.0  # the first repeat did well in its second frame
    rewarded = replace(played, service_reward=reward)
    config = replace(TINY, learning_rate=1e-2, entropy_weight=0.0, team_share=1.0, trace=0.0, discount=0.0)

    def log_probability() -> np.ndarray:
        with torch.no_grad():
            values = FrameTensors.of(played.steps[1]).evaluate(state.actor)[0].numpy()
        return np.array([values[row][favourite[row]].sum() for row in range(2)])

    before = log_probability()
    for _ in range(3):
        figures = gpg.update(config, state, [rewarded], np.random.default_rng(0))
    after = log_probability()
    assert after[0] > before[0]
    assert after[1] < before[1]
    assert all(np.isfinite(value) for value in figures.values())


def test_imitation_takes_over_what_the_rule_does() -> None:
    rule = heuristic_orchestration("gsp-ss")
    frames = environment(load=1.0)
    decide = partial(imitated, rule=rule, random=np.random.default_rng(0), steps=3)
    played = play(frames, decide, frames=3, repeats=1)
    picked = sum(int((step.node != NO_NODE).sum()) for step in played.steps)
    assert picked >= 6
    assert picked == sum(len(step.actions) for step in played.steps)
    for step in played.steps:
        active = step.node != NO_NODE
        assert np.take_along_axis(step.mask, step.choice[..., None], axis=2)[..., 0][active].all()
        assert (step.choice[active] != 30).all()

    class Fixed:
        def imitation(self, batch: int) -> list[Episodes]:
            return [played]

        def rollouts(self, actor: object, batch: int) -> list[Episodes]:
            raise AssertionError("not asked for")

    config = replace(TINY, passes=12)
    state = initial_state(config)

    def likelihood() -> float:
        with torch.no_grad():
            values = [
                FrameTensors.of(s).evaluate(state.actor)[0].numpy()[s.node != NO_NODE] for s in played.steps
            ]
        return float(np.concatenate(values).mean())

    gpg.fit_normalisers(state, played.steps)
    before = likelihood()
    gpg.warm_start(config, state, Fixed(), np.random.default_rng(0))
    assert likelihood() > before + 0.5


def test_jobs_repeat_and_their_repeats_share_arrivals_and_nothing_else() -> None:
    state = fitted_state()
    (job,) = jobs(replace(TINY, frames=1), "rollout", 0, state.actor.state_dict())
    first, again = play_job(job), play_job(job)
    assert np.array_equal(first.service_reward, again.service_reward)
    assert np.array_equal(first.steps[0].choice, again.steps[0].choice)
    step = first.steps[0]
    arrivals = step.inputs["demand_features"].reshape(4, -1)
    assert np.array_equal(arrivals[0], arrivals[1])
    assert np.array_equal(arrivals[2], arrivals[3])
    assert not np.array_equal(arrivals[0], arrivals[2])
    assert not np.array_equal(step.node[0] - step.members[0, 0], step.node[1] - step.members[1, 0])


@pytest.mark.slow
@pytest.mark.parametrize("encoder", ["graph", "stacked"])
def test_training_runs_repeats_and_resumes(encoder: gpg.Encoder, tmp_path: Path) -> None:
    config = replace(TINY, encoder=encoder)

    def trained() -> GpgState:
        state = initial_state(config)
        gpg.train(config, state, JobSource(config, InlineRunner()), on_update=lambda current, figures: None)
        return state

    first = trained()
    again = trained()
    for name, values in first.actor.state_dict().items():
        assert torch.equal(values, again.actor.state_dict()[name]), name
    assert [set(figures) >= {"frames"} for figures in first.history] == [True] * 3
    assert first.frames == 2 * 2 * 4
    create_run(tmp_path, config)
    save_checkpoint(tmp_path, first)
    loaded_config, loaded = load_checkpoint(tmp_path, ORCHESTRATION)
    assert (loaded_config, loaded.update, loaded.frames) == (config, 2, 16)
    for name, values in first.actor.state_dict().items():
        assert torch.equal(values, loaded.actor.state_dict()[name]), name
    changed, resumed = resume_run(tmp_path, {"updates": 3}, ORCHESTRATION)
    gpg.train(changed, resumed, JobSource(changed, InlineRunner()), on_update=lambda current, figures: None)
    assert resumed.update == 3
    with pytest.raises(RunError, match="networks keep their size"):
        resume_run(tmp_path, {"hidden": 9}, ORCHESTRATION)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"repeats": 1}, "repeats: 1; must be two or more"),
        ({"steps": 0}, "steps: 0; must be one or more"),
        ({"team_share": 1.5}, "team_share: 1.5; must be from 0 to 1"),
        ({"presets": ("testbed-41",)}, "must be some of testbed-40, testbed-100"),
        ({"initial_replicas_range": (2.0, 1.0)}, "the lower first"),
        ({"learning_rate": 0.0}, "learning_rate: 0.0; must be finite and above zero"),
    ],
)
def test_wrong_hyperparameters_are_named(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GpgConfig(**values)  # type: ignore[arg-type]
