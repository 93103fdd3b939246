"""Reads and judges the files of SuperBench: results, rules, baselines, and summaries.

Labels and categories are those of SuperBench (github.com/microsoft/superbenchmark) for any rule file. Where SuperBench
aborts a diagnosis or passes a missing metric, this package answers UNKNOWN with the reason.
``docs/how-to/superbench.md`` lists every deviation.
"""
