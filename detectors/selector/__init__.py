"""Which checks a node needs before its next job: risk of an incident, what each benchmark finds, and what it costs.

``history`` turns a node's past into rows, ``survival`` learns the time to its next incident from them, ``learning``
decides whether that can be believed; ``coverage`` learns which defects a set of benchmarks finds; ``risk`` joins both
into the risk that is left after a set, ``select`` finds the cheapest set that brings it under a target, ``audit`` says
why each benchmark runs or does not, and ``whatif`` replays the past under another policy.

After "SuperBench: Improving Cloud AI Infrastructure Reliability with Proactive Validation" (USENIX ATC'24), whose
Selector was not published; the definitions are our own (docs/selector.md).
"""
