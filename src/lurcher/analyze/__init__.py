"""From files, arrays or a run directory to a verdict. Free of torch. The package can be called: `lurcher.analyze(...)` is `library.analyze`.

A function of that name beside the package would be lost as soon as any module of the package is imported, because Python then
puts the package under the name.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from lurcher.analyze.library import analyze

        return analyze(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
