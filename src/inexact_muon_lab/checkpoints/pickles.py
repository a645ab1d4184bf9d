"""A pickle parsed as data: nothing is imported or called.

Python's unpickler imports and calls what a file names. Here the opcodes are interpreted on plain values; an object
becomes a `Constructed`, with the name of its class and its contents.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Container
from dataclasses import dataclass
from struct import error as struct_error
from typing import Any

MARK = object()

VALUES = {
    *("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT"),
    *("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8"),
}
"""Opcodes whose argument is the value."""

CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "MARK": lambda: MARK,
    "EMPTY_TUPLE": tuple,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "EMPTY_SET": set,
}
"""Opcode -> the value that it pushes."""

TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
"""Opcode -> length of the tuple made of the last values."""


@dataclass(frozen=True)
class Name:
    """A class or function named by the file."""

    module: str
    name: str


@dataclass(eq=False)
class Constructed:
    """An object or the result of a call, as described by the file; compared by identity.

    Attributes:
        kind: the class or function.
        arguments: arguments of the call.
        state: state of the object.
    """

    kind: Name
    arguments: tuple[Any, ...]
    state: Any = None


class NameNotAllowed(ValueError):
    """The file names something outside the given list."""


def read_pickle(content: bytes, allowed: Container[tuple[str, str]]) -> Any:
    """The value described by a pickle of protocol 2 to 5.

    Args:
        allowed: exact (module, name) pairs that it may name.

    Raises:
        NameNotAllowed: it names something else.
        ValueError: it is not a complete pickle, or has opcodes that plain data does not need.
    """
    machine = _Machine(allowed)
    try:
        for opcode, argument, _ in pickletools.genops(content):
            machine.apply(opcode.name, argument)
        (value,) = machine.stack
    except NameNotAllowed:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, struct_error) as error:
        raise ValueError(f"not a pickle of plain data ({type(error).__name__})") from None
    return value


class _Machine:
    """Stack and memo while reading a pickle."""

    def __init__(self, allowed: Container[tuple[str, str]]) -> None:
        self.allowed = allowed
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def apply(self, opcode: str, argument: Any) -> None:
        """Interpret one opcode."""
        stack = self.stack
        if opcode in VALUES:
            stack.append(argument)
        elif opcode in CONSTANTS:
            stack.append(CONSTANTS[opcode]())
        elif opcode in TUPLES:
            stack.append(tuple(reversed([stack.pop() for _ in range(TUPLES[opcode])])))
        elif opcode == "TUPLE":
            stack.append(tuple(self._marked()))
        elif opcode in ("MEMOIZE", "BINPUT", "LONG_BINPUT"):
            self.memo[len(self.memo) if opcode == "MEMOIZE" else argument] = stack[-1]
        elif opcode in ("BINGET", "LONG_BINGET"):
            stack.append(self.memo[argument])
        elif opcode in ("GLOBAL", "STACK_GLOBAL"):
            self._name(opcode, argument)
        elif opcode in ("REDUCE", "NEWOBJ", "BUILD"):
            self._object(opcode)
        elif opcode not in ("PROTO", "FRAME", "STOP"):
            self._fill(opcode)

    def _marked(self) -> list[Any]:
        """Values pushed since the last mark."""
        values: list[Any] = []
        while (value := self.stack.pop()) is not MARK:
            values.append(value)
        return values[::-1]

    def _name(self, opcode: str, argument: Any) -> None:
        if opcode == "GLOBAL":
            module, name = argument.split(" ")
        else:
            name, module = self.stack.pop(), self.stack.pop()
        if not (isinstance(module, str) and isinstance(name, str)):
            raise TypeError("a name is text")
        if (module, name) not in self.allowed:
            raise NameNotAllowed(f"{module}.{name}")
        self.stack.append(Name(module, name))

    def _object(self, opcode: str) -> None:
        argument, target = self.stack.pop(), self.stack.pop()
        if opcode == "BUILD":
            if not isinstance(target, Constructed):
                raise TypeError("only an object has a state")
            target.state = argument
            self.stack.append(target)
        elif isinstance(target, Name) and isinstance(argument, tuple):
            self.stack.append(Constructed(target, argument))
        else:
            raise TypeError("only a name with a tuple of arguments makes an object")

    def _fill(self, opcode: str) -> None:
        """Add items to the list, dict or set below them."""
        items = self._marked() if opcode.endswith("S") else [self.stack.pop()]
        if opcode == "SETITEM":
            items.insert(0, self.stack.pop())
        target = self.stack[-1]
        if opcode in ("SETITEM", "SETITEMS") and isinstance(target, dict):
            target.update(zip(map(_key, items[::2]), items[1::2], strict=True))
        elif opcode in ("APPEND", "APPENDS") and isinstance(target, list):
            target.extend(items)
        elif opcode == "ADDITEMS" and isinstance(target, set):
            target.update(map(_key, items))
        else:
            raise ValueError(f"{opcode} is not expected here")


def _key(value: Any) -> Any:
    """A key without parts: the hash of nested tuples that share their parts takes time exponential in the file."""
    if isinstance(value, tuple):
        raise TypeError("a tuple is not a key of plain data")
    return value
