"""What failures and recovery strategies cost, in closed form: pure functions of frozen values, microseconds a call.

``iteration`` times one iteration, healthy and degraded; ``event`` prices one failure; ``longrun`` what a run of weeks
keeps. Times are seconds, rates are per second, shares lie in 0..1. Where a constant comes from stands beside it.
"""
