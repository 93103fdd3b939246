"""Selects the benchmarks that a node needs before its next job, by incident risk, defect coverage, and cost.

``history`` turns a node's past into rows. ``survival`` learns the time to its next incident from them, and ``learning``
decides whether the model is credible. ``coverage`` learns which defects a set of benchmarks finds. ``risk`` joins both
into the risk that remains after a set. ``set_search`` finds the cheapest set that brings it under a target. ``audit``
gives the reason for each benchmark, and ``backtest`` replays the past under another policy.

After "SuperBench: Improving Cloud AI Infrastructure Reliability with Proactive Validation" (USENIX ATC'24), whose
Selector was not published; the definitions are our own (docs/how-to/selector.md).
"""
