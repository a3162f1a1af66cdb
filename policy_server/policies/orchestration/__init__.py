"""Policies that decide where to add and delete replicas.

A learned policy decides in these steps, in serving and in training alike::

    graph = OrchestrationGraph.of(snapshot)                 # of one system, or of a disjoint union
    query = OrchestrationQuery(graph, options, memory)
    plan = FramePlan(query)
    inputs = encoder_inputs([graph])                        # -> node_embedding, ..., node_score
    nodes = pick_nodes(node_score, plan, random, temperature=1.0)
    pairs = graph.pair_features(nodes.node[nodes.node != NO_NODE])
    scores = action_scores(delete, nothing, add, graph.services)      # of the head, for the picked nodes
    actions = pick_actions(by_system(nodes, scores), nodes, plan, random, temperature=1.0)
    [planned.action for planned in plan.actions]            # feasible together, in this order

``nodes`` and ``actions`` hold what a policy gradient needs: choices, masks and log-probabilities. Serving picks with
temperature 0. See :mod:`policy_server.runtime.graph_contract` for the graphs and
:mod:`policy_server.policies.orchestration.policy` for the contract of any policy.
"""
