# Copyright: the contributors of ddtree.fleet
# SPDX-License-Identifier: GPL-3.0-or-later
"""A stand-in for `sgl_kernel` on hosts without a GPU: every name exists, calling one raises.

SGLang imports kernels by name at module level, also where a CPU server never calls them; no CPU build is published.
"""

from __future__ import annotations

import sys
import types

_SUBMODULES = (
    "allreduce",
    "elementwise",
    "flash_attn",
    "flash_mla",
    "kvcacheio",
    "mamba",
    "quantization",
    "scalar_type",
    "sparse_flash_attn",
    "speculative",
)


class _Name:
    """Any attribute of the package, at any depth."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, name: str) -> _Name:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Name(f"{self.__name__}.{name}")

    def __call__(self, *args: object, **kwargs: object) -> None:
        raise RuntimeError(f"{self.__name__} is a stub: there are no kernels for the CPU")


class _Stub(types.ModuleType):
    """A module in which every public name is found; dunder names are not, or import machinery would trip over them."""

    def __getattr__(self, name: str) -> _Name:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Name(f"{self.__name__}.{name}")


def _install() -> None:
    package = _Stub(__name__)
    package.__dict__.update({k: v for k, v in globals().items() if k.startswith("__") and k.endswith("__")})
    sys.modules[__name__] = package
    for name in _SUBMODULES:
        module = _Stub(f"{__name__}.{name}")
        module.__path__ = []
        sys.modules[module.__name__] = module
        setattr(package, name, module)


_install()
