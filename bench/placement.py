"""Every set of lost nodes, really decoded: the fraction that comes back is the formula's, exactly. Counts, no timing.

``python -m bench.placement [--json FILE]``. N = 8 with groups of four under xor and rs:2, and with copies: agents with
real arenas on loopback; of each set every lost rank is brought back to a newcomer, or refused. N = 16: placement only.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations

from bench.lib_agents import Cluster
from bench.lib_survival import enumerate_survival, gemini_bound, survival
from bench.report import Row, publish, target_file
from mainstay.recovery.placement import PlacementHost, place_groups
from mainstay.recovery.protection_scheme import ProtectionScheme, parse

NODES = 8
EPOCH = 1
FLEET = 16
DECODED = (("xor", 4), ("rs:2", 4), ("copies:2", None))


def rows() -> list[Row]:
    return [*decoded_rows(), *placed_rows()]


def decoded_rows(nodes: int = NODES) -> list[Row]:
    return [_decoded(parse(text, size), nodes) for text, size in DECODED]


def _decoded(scheme: ProtectionScheme, nodes: int) -> Row:
    """All subsets of the nodes but the empty one."""
    with Cluster(nodes, scheme) as cluster:
        cluster.step(EPOCH)
        sizes = [len(group) for group in cluster.groups]
        found = {k: _fraction(cluster, nodes, k) for k in range(1, nodes + 1)}
    expected = {k: survival(scheme, sizes, k) for k in found}
    wrong = [k for k in found if found[k] != expected[k]]
    shown = ", ".join(f"k={k}: {found[k]}" for k in found if found[k])
    return Row(
        claim=f"recovered fraction of all sets of lost nodes, N = {nodes}, {scheme}, groups of {sizes[0]}",
        figure="equal" if not wrong else f"differs for k = {wrong}", unit="", target="equal to the formula",
        holds=not wrong, kind="live", n=2**nodes - 1, note=f"{shown}; 0 beyond; every lost slot checked to the bit",
    )  # fmt: skip


def _fraction(cluster: Cluster, nodes: int, lost: int) -> Fraction:
    sets = list(combinations(range(nodes), lost))
    return Fraction(sum(all(cluster.bring_back(rank, EPOCH, gone) for rank in gone) for gone in sets), len(sets))


def placed_rows(nodes: int = FLEET) -> list[Row]:
    """GEMINI's placement against its own formula, which is exact below two groups and a bound beyond."""
    scheme = parse("copies:2")
    groups = place_groups([PlacementHost(f"n{rank}", (rank,)) for rank in range(nodes)], scheme).groups
    found_rows = []
    for lost in (2, 3, 4):
        found, formula = enumerate_survival(scheme, groups, lost), gemini_bound(nodes, 2, lost)
        exact = survival(scheme, [len(group) for group in groups], lost)
        holds = found == exact and (found == formula if lost < 4 else found >= formula)
        found_rows.append(
            Row(
                claim=f"recovered fraction, N = {nodes}, two copies, {lost} nodes lost", figure=float(found), unit="",
                target="equal to the exact count" if lost > 3 else "equal to GEMINI's formula", holds=holds,
                kind="simulated", baseline=f"GEMINI's formula {float(formula):.4f}", n=1,
                note=f"{found}; exact count {exact}",
            )
        )  # fmt: skip
    return found_rows


if __name__ == "__main__":
    file = target_file("placement")
    publish("placement", rows(), file)
