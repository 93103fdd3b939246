"""Whole state dicts in a standalone agent's memory: what the adapters to other checkpointing interfaces share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist

from mainstay.recovery.adapters.tree import Tree, TreeState
from mainstay.recovery.sdk.standalone import StandaloneSession


class StateDictStore:
    """Saves trees, and gives back the newest that every rank has in its own node's memory.

    Every rank makes every call. What is lost with a node is not fetched from replicas: a tree has no layout before it
    is there.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.session = StandaloneSession(group=group)
        layout = self.session.layout()
        self._state = TreeState(layout)
        self._held = layout is not None
        if self._held:
            self.session.register(self._state)

    def load(self) -> Tree | None:
        """The newest common tree, in fresh CPU memory (of a ``DTensor`` the local part); None: there is none."""
        return self._state.loaded if self.session.resume() else None

    def save(self, tree: Mapping[Any, Any], epoch: int | None = None) -> None:
        """Copy ``tree`` before returning.

        Args:
            tree: what ``TreeState.stage`` admits.
            epoch: its number, larger than the last one's; by default one more.

        Raises:
            ValueError: something in it is no plain data.
            RuntimeError: a peer is gone.
        """
        if self._state.stage(tree) or not self._held:
            self.session.register(self._state)
            self._held = True
        self.session.save(self.session.epoch + 1 if epoch is None else epoch)
        self.session.settle()

    def close(self) -> None:
        """Hang up. What was saved stays with the agent."""
        self.session.close()
