"""What arrives at an edge-cloud system: services, request sequences, arrival patterns, recorded traces.

``services`` describes what is asked for, ``requests`` holds a sequence of requests, ``patterns`` generates the four
arrival patterns of the KaiS paper, ``traces`` turns recorded workloads into sequences, ``seeds`` keeps training and
evaluation apart.
"""
