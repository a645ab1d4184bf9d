"""A pickle read as data: nothing that it names is imported or called.

Python's own unpickler (the one written in Python, whose opcodes are a table), without the opcodes that plain data does
not need. A name of the file becomes an empty class that only notes its arguments and state.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Container
from functools import cache
from struct import error as struct_error
from typing import Any, NoReturn

P = pickle
TUPLES = (P.EMPTY_TUPLE, P.TUPLE, P.TUPLE1, P.TUPLE2, P.TUPLE3)
OPCODES = (
    *(P.PROTO, P.FRAME, P.STOP, P.MARK, P.NONE, P.NEWTRUE, P.NEWFALSE, P.EMPTY_LIST, P.EMPTY_DICT, P.EMPTY_SET),
    *(P.BININT, P.BININT1, P.BININT2, P.LONG1, P.LONG4, P.BINFLOAT),
    *(P.SHORT_BINUNICODE, P.BINUNICODE, P.BINUNICODE8, P.SHORT_BINBYTES, P.BINBYTES, P.BINBYTES8),
    *(P.APPEND, P.APPENDS, P.SETITEM, P.SETITEMS, P.ADDITEMS),
    *(P.MEMOIZE, P.BINPUT, P.LONG_BINPUT, P.BINGET, P.LONG_BINGET),
    *(P.GLOBAL, P.STACK_GLOBAL, P.REDUCE, P.NEWOBJ, P.BUILD),
)


class Constructed:
    """An object or the result of a call of the file; its class has the name in the file. Compared by identity."""

    arguments: tuple[Any, ...]
    state: Any = None

    def __new__(cls, *arguments: Any) -> Constructed:
        """The unpickler calls this alone, never `__init__`."""
        new = super().__new__(cls)
        new.arguments = arguments
        return new

    def __setstate__(self, state: Any) -> None:
        self.state = state


class NameNotAllowed(ValueError):
    """The file names something outside the given list."""


class Unhashable(tuple[Any, ...]):
    """A tuple that is no key: the hash of nested tuples that share their parts takes time exponential in the file."""

    def __hash__(self) -> NoReturn:
        raise TypeError("a tuple is not a key of plain data")


@cache
def _stand_in(name: str) -> type[Constructed]:
    return type(name, (Constructed,), {})


def _unhashable(load: Callable[[Any], None]) -> Callable[[Any], None]:
    """The opcode that makes a tuple, then made unhashable."""

    def loaded(reader: Any) -> None:
        load(reader)
        reader.stack[-1] = Unhashable(reader.stack[-1])

    return loaded


class _Reader(pickle._Unpickler):
    dispatch = {  # noqa: RUF012
        **{opcode[0]: pickle._Unpickler.dispatch[opcode[0]] for opcode in OPCODES},
        **{opcode[0]: _unhashable(pickle._Unpickler.dispatch[opcode[0]]) for opcode in TUPLES},
    }

    def __init__(self, content: bytes, allowed: Container[tuple[str, str]]) -> None:
        super().__init__(io.BytesIO(content))
        self.allowed = allowed

    def find_class(self, module: str, name: str) -> type[Constructed]:
        if (module, name) not in self.allowed:
            raise NameNotAllowed(f"{module}.{name}")
        return _stand_in(name)


def read_pickle(content: bytes, allowed: Container[tuple[str, str]]) -> Any:
    """The value described by a pickle of protocol 2 to 5.

    Args:
        allowed: exact (module, name) pairs that it may name.

    Raises:
        NameNotAllowed: it names something else.
        ValueError: it is not a complete pickle, or has opcodes that plain data does not need.
    """
    try:
        return _Reader(content, allowed).load()
    except NameNotAllowed:
        raise
    except (
        *(pickle.UnpicklingError, EOFError, ValueError, TypeError, LookupError, AttributeError, OverflowError),
        struct_error,
    ) as error:
        raise ValueError(f"not a pickle of plain data ({type(error).__name__})") from None
