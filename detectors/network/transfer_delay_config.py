"""The numbers behind ``transfer_delays``, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DelaysConfig:
    """What ``DelaysDetector`` may be told. Log-ratios are given as ratios, times as steps."""

    shift: float = 2.0
    """Slowdown that is to be found soonest: a port at half speed."""
    least: float = 1.2
    """Slowdown that must be shown; half of it (in logarithms) is drift. Day and night move a network by a few per
    cent."""
    h: float = 12.0
    """Initial score. The noise scales the weight of a step to it (``transfer_delay_noise``)."""
    at_least: int = 3
    """Slow steps without which nothing begins, however slow they are."""
    h_off: float = 3.0
    """Score to end."""
    cap: float = 15.0
    clip: float = 4.0
    """Most that one step may say."""
    agree: float = 7.0
    """Score at which a pair is hot if another of the same sender or receiver has it too: by chance, both together
    are rarer than one at the full height."""
    alarms: float = 1.7e5
    """Steps of the job to a false warning among all its pairs: ten days of 5 s steps. Sets what a step counts."""
    skip_steps: int = 5
    """First transfers of a pair: connections are made, buffers registered."""
    learn_steps: int = 20
    """Transfers that make a pair's usual time: their median is good to 0.28 of the noise."""
    recent: int = 5
    """Transfers whose median is a pair's present effect: four hot ones outvote one from before."""
    floor: float = 0.03
    """3 %: least noise of a log-ratio; timers and scheduling of the receiving thread alone do this."""
    limit: float = 40.0
    """Steps that half speed would need to show in this noise, above which nothing is judged."""
    peers: int = 8
    """From so many pairs on the common shift is taken from the faster quarter, so that three in four may be slow;
    below, from the lower median."""
    slow_from_start: float = 1.5
    """A pair this much above the others of its kind when it starts is hot at once; only where switches are known,
    since else a longer way looks like a slow one."""
    spread: float = 3.0
    """And beyond so many deviations of how its kind differs anyway."""
    adapt: float = 0.005
    """Share of a quiet pair's distance by which its usual time follows, a step: hours, not minutes."""
    resized: float = 1.5
    """Messages that grew or shrank by more than this are not compared with before; if that lasts they are
    learned again."""
    remembered: int = 32
    """Transfers a pair remembered for the noise, and to draw."""
    confirm: int = 2
    """Ticks until a story replaces another, and until one that explains nothing ends."""
