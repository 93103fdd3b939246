"""A source that failed is left aside, and believed again only where nothing else is left, and not for ever."""

from __future__ import annotations

from recovery.launcher.episode import Episode
from recovery.launcher.survey import BadSource
from recovery.plan import RestoreSource

BAD = BadSource(rank=1, epoch=54, source=RestoreSource.PARITY)


def test_what_failed_is_tried_again_a_few_times() -> None:
    episode = Episode("id", 0.0, 54, 0.0, lambda _kind, _data: None)
    assert not episode.forgives(), "nothing has failed: there is nothing to try again"
    for _ in range(3):
        episode.bad.add(BAD)
        assert episode.forgives()
        assert episode.bad == set()
    episode.bad.add(BAD)
    assert not episode.forgives()
    assert episode.bad == {BAD}
