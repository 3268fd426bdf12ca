"""Hooks on an optimizer's step and state dictionary, with the interface of PyTorch's optimizers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

from first_order.cells import set_unregistered


class RemovableHandle:
    """The handle of a registered hook; it removes the hook, also as a context manager."""

    def __init__(self, hooks: dict[int, Callable[..., Any]], key: int) -> None:
        self._hooks, self._key = hooks, key

    def remove(self) -> None:
        """Remove the hook; a second call does nothing."""
        self._hooks.pop(self._key, None)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


class Hooks:
    """The hooks of one event, in the order in which they are called."""

    def __init__(self) -> None:
        self._hooks: dict[int, Callable[..., Any]] = {}
        self._keys = count()

    def register(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Add a hook at the end, or at the front if ``prepend``."""
        if not callable(hook):
            raise TypeError(f"hook must be a function, but got {hook!r} of type {type(hook).__name__}")
        key = next(self._keys)
        others = dict(self._hooks)
        if prepend:
            self._hooks.clear()
        self._hooks[key] = hook
        if prepend:
            self._hooks.update(others)
        return RemovableHandle(self._hooks, key)

    def __iter__(self) -> Iterator[Callable[..., Any]]:
        return iter(list(self._hooks.values()))


class HookedOptimizer:
    """Mixin with the six kinds of hooks of PyTorch's ``Optimizer``; hooks get the same arguments as there.

    Step hooks run around calls on the host, not around steps inside a graph.
    """

    _step_pre_hooks: Hooks
    _step_post_hooks: Hooks
    _save_pre_hooks: Hooks
    _save_post_hooks: Hooks
    _load_pre_hooks: Hooks
    _load_post_hooks: Hooks

    def _make_hooks(self) -> None:
        for place in ("step_pre", "step_post", "save_pre", "save_post", "load_pre", "load_post"):
            set_unregistered(self, **{f"_{place}_hooks": Hooks()})

    def register_step_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """hook(optimizer, args, kwargs) before each step; it may return new (args, kwargs)."""
        return self._step_pre_hooks.register(hook)

    def register_step_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """hook(optimizer, args, kwargs) after each step."""
        return self._step_post_hooks.register(hook)

    def register_state_dict_pre_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """hook(optimizer) before the state is written to a dictionary."""
        return self._save_pre_hooks.register(hook, prepend)

    def register_state_dict_post_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """hook(optimizer, state_dict) after the state was written; it may return another dictionary."""
        return self._save_post_hooks.register(hook, prepend)

    def register_load_state_dict_pre_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """hook(optimizer, state_dict) before a dictionary is loaded; it may return another one."""
        return self._load_pre_hooks.register(hook, prepend)

    def register_load_state_dict_post_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """hook(optimizer) after a dictionary was loaded."""
        return self._load_post_hooks.register(hook, prepend)

    def _stepped(self, step: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the pre-hooks, the step and the post-hooks; return the step's result."""
        for hook in self._step_pre_hooks:
            changed = hook(self, args, kwargs)
            if changed is not None:
                if not isinstance(changed, tuple) or len(changed) != 2:
                    raise TypeError(f"a step pre-hook must return None or (args, kwargs), but returned {changed!r}")
                args, kwargs = changed
        result = step(*args, **kwargs)
        for hook in self._step_post_hooks:
            hook(self, args, kwargs)
        return result
