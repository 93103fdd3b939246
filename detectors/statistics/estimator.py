"""scikit-learn's manners without scikit-learn, which a node does not have.

The constructor only stores parameters, ``fit`` learns and returns self, what was learned ends in an underscore, and
``get_params`` / ``set_params`` make ``sklearn.base.clone`` and its searches work.
``tests/detectors/test_estimators.py`` holds every estimator to them.
"""

from __future__ import annotations

import inspect
from typing import Any, Self


class NotFittedError(AttributeError):
    """Something was asked that only ``fit`` can know."""


class Estimator:
    """Parameters by name. A learned attribute that does not exist yet says that ``fit`` comes first."""

    @classmethod
    def _names(cls) -> list[str]:
        return [name for name in inspect.signature(cls).parameters if name != "self"]

    def get_params(self, deep: bool = True) -> dict[str, Any]:  # noqa: ARG002 - scikit-learn's signature
        """The constructor's parameters; ``deep`` changes nothing, none of them is an estimator."""
        return {name: getattr(self, name) for name in self._names()}

    def set_params(self, **params: Any) -> Self:
        """Change parameters; what was learned before stays until the next ``fit``.

        Raises:
            ValueError: there is no such parameter.
        """
        unknown = set(params) - set(self._names())
        if unknown:
            raise ValueError(f"{type(self).__name__} has no parameter {', '.join(sorted(unknown))}")
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.get_params().items())
        return f"{type(self).__name__}({given})"

    def __getattr__(self, name: str) -> Any:
        if name.endswith("_") and not name.startswith("_"):
            raise NotFittedError(f"{type(self).__name__} has no {name}: call fit first")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
