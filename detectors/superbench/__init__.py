"""SuperBench's files, read and judged here: results, rules, baselines, summaries (github.com/microsoft/superbenchmark).

Labels and categories are SuperBench's, on any rule file; where it aborts a fleet's diagnosis or passes what is missing,
this package answers UNKNOWN and says why. ``docs/superbench.md`` lists every deviation.
"""
