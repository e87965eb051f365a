"""Type expressions such as "Vec<(u16, u16)>" and the registry that numbers and describes them as a chain's metadata
does.

Each type is described once, under the number of its first use; the number is reserved before the description, because
a type may contain itself. Declarations are read strictly: a wrong expression raises ValueError, an unknown name
KeyError.
It is not a codec: values of these types are encoded by `bittensor_core.Runtime` over the finished metadata.

Source: layout of `PortableRegistry` in the scale-info crate.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

from subnet.localnet.devchain.scale import NO_DOCS, compact, lines, option, string, vector

Read = TypeVar("Read")

# A type is a name with arguments: ("u16", ()), ("Vec", (u8,)), ("tuple", (u16, u16)), ("array", (u8, 32)).
Type = tuple[str, tuple[Any, ...]]
Fields = tuple[tuple[str | None, Type], ...]


class Expression:
    """Reads one line of a table from left to right.

    type      u16    [u8; 32]    (u16, AccountId32)    Vec<Compact<u64>>
    fields    netuid: NetUid, hotkey: AccountId32          (or types alone)
    item      WeightsSet(NetUid, u16)                      (a name, perhaps with fields)
    """

    def __init__(self, text: str, bound: dict[str, Type] | None = None) -> None:
        self.text = text
        self.tokens = [*re.findall(r"\w+(?:::\w+)*|->|\S", text), ""]
        self.bound = bound or {}  # generic parameters and the types they stand for

    def take(self, token: str) -> bool:
        """Step over ``token`` if it is next."""
        if self.tokens[0] != token:
            return False
        self.tokens.pop(0)
        return True

    def expect(self, token: str) -> None:
        if not self.take(token):
            raise ValueError(f"expected {token or 'the end'!r} before {self.tokens} in {self.text!r}")

    def name(self) -> str:
        if not re.match(r"\w", self.tokens[0]):
            raise ValueError(f"expected a name before {self.tokens} in {self.text!r}")
        name: str = self.tokens.pop(0)
        return name

    def sequence(self, read: Callable[[], Read], end: str) -> tuple[Read, ...]:
        items: list[Read] = []
        while not self.take(end):
            if items:
                self.expect(",")
            items.append(read())
        return tuple(items)

    def type(self) -> Type:
        if self.take("("):
            return "tuple", self.sequence(self.type, ")")
        if self.take("["):
            element = self.type()
            self.expect(";")
            length = int(self.name())
            self.expect("]")
            return "array", (element, length)
        name = self.name()
        arguments = self.sequence(self.type, ">") if self.take("<") else ()
        return self.bound.get(name, (name, arguments))

    def field(self) -> tuple[str | None, Type]:
        name = self.name() if self.tokens[1:2] == [":"] else None
        self.take(":")
        return name, self.type()

    def item(self) -> tuple[str, Fields]:
        return self.name(), self.sequence(self.field, ")") if self.take("(") else ()

    def parameter(self) -> tuple[str, Type | None]:
        return self.name(), self.type() if self.take("=") else None


def type_of(text: str) -> Type:
    """The type that a whole expression spells; anything after it raises ValueError."""
    expression = Expression(text)
    kind = expression.type()
    expression.expect("")
    return kind


def spell(kind: Type) -> str:
    """A type as an expression again."""
    name, arguments = kind
    if name == "array":
        return f"[{spell(arguments[0])}; {arguments[1]}]"
    spelled = ", ".join(map(spell, arguments))
    return f"({spelled})" if name == "tuple" else f"{name}<{spelled}>" if arguments else name


# What a declared type is made of: fields for a struct; items for an enum, numbered from zero or by explicit keys.
Body = str | list[str] | dict[int, str]

PRIMITIVES = [
    "bool",
    "char",
    "str",
    "u8",
    "u16",
    "u32",
    "u64",
    "u128",
    "u256",
    "i8",
    "i16",
    "i32",
    "i64",
    "i128",
    "i256",
]


class Registry:
    """Numbers types in the order of their first use and describes each of them once."""

    def __init__(self, declarations: dict[str, Body]) -> None:
        self.declared: dict[str, tuple[list[str], dict[str, Type | None], Body]] = {}
        self.numbers: dict[Type, int] = {}
        self.entries: list[bytes] = []
        for heading, body in declarations.items():
            self.declare(heading, body)

    def declare(self, heading: str, body: Body) -> None:
        """Add "crate::module::Name<Parameter = Default, ...>", to be known by its full path and by its last name."""
        expression = Expression(heading)
        path = expression.name()
        parameters = dict(expression.sequence(expression.parameter, ">")) if expression.take("<") else {}
        expression.expect("")
        segments = path.split("::")
        self.declared[path] = self.declared[segments[-1]] = segments, parameters, body

    def lookup(self, kind: Type) -> tuple[list[str], dict[str, Type], Body]:
        """The path of a declared type, its parameters with the arguments given or else their defaults, its body."""
        name, arguments = kind
        if name not in self.declared:
            raise KeyError(f"type {name!r} is not declared")
        path, defaults, body = self.declared[name]
        given = dict(zip(defaults, arguments or defaults.values(), strict=True))
        bound = {parameter: argument for parameter, argument in given.items() if argument is not None}
        if len(bound) < len(given):
            raise ValueError(f"type {name!r} needs arguments: {', '.join(defaults)}")
        return path, bound, body

    def number(self, kind: Type | str) -> bytes:
        """The number of a type, as references to it are written."""
        if isinstance(kind, str):
            kind = type_of(kind)
        if kind not in self.numbers:
            number = self.numbers[kind] = len(self.entries)  # first, because a type may contain itself
            self.entries.append(b"")
            self.entries[number] = compact(number) + self.describe(kind)
        return compact(self.numbers[kind])

    def describe(self, kind: Type) -> bytes:
        name, arguments = kind
        path: list[str] = []
        parameters: dict[str, Type] = {}
        if name in PRIMITIVES:
            shape = bytes([5, PRIMITIVES.index(name)])
        elif name == "Vec":
            shape = b"\2" + self.number(*arguments)
        elif name == "array":
            shape = b"\3" + arguments[1].to_bytes(4, "little") + self.number(arguments[0])
        elif name == "tuple":
            shape = b"\4" + vector(map(self.number, arguments))
        elif name == "Compact":
            shape = b"\6" + self.number(*arguments)
        else:
            path, parameters, _ = self.lookup(kind)
            content = self.content(kind)
            if isinstance(content, dict):
                shape = b"\1" + vector(
                    string(item) + self.fields(fields) + bytes([index]) + lines(docs)
                    for index, (item, fields, docs) in content.items()
                )
            else:
                shape = b"\0" + self.fields(content)
        generics = vector(string(parameter) + option(self.number(bound)) for parameter, bound in parameters.items())
        return vector(map(string, path)) + generics + shape + NO_DOCS

    def fields(self, fields: Fields) -> bytes:
        return vector(
            option(None if name is None else string(name)) + self.number(kind) + option(string(spell(kind))) + NO_DOCS
            for name, kind in fields
        )

    def content(self, kind: Type) -> Fields | dict[int, tuple[str, Fields, str]]:
        """The fields of a struct, or the items of an enum by index; "Name: text" carries documentation."""
        _, bound, body = self.lookup(kind)
        if isinstance(body, str):
            expression = Expression(body, bound)
            return expression.sequence(expression.field, "")
        content = {}
        for index, line in body.items() if isinstance(body, dict) else enumerate(body):
            documented = re.fullmatch(r"(\w+): (.*)", line)
            text, docs = documented.groups() if documented else (line, "")
            expression = Expression(text, bound)
            content[index] = (*expression.item(), docs)
            expression.expect("")
        return content

    def value(self, kind: Type, number: int = 0) -> bytes:
        """``number`` as a value of a type; for 0 also what is natural for other types: empty, none, all zeros."""
        name, arguments = kind
        if name in ("Vec", "str", "Option"):
            return b"\0"
        if name in PRIMITIVES:
            return number.to_bytes(1 if name == "bool" else int(name[1:]) // 8, "little")
        if name == "Compact":
            return compact(number)
        if name == "array":
            element, length = arguments
            return self.value(element) * int(length)
        if name == "tuple":
            return b"".join(map(self.value, arguments))
        content = self.content(kind)
        if isinstance(content, dict):
            index, (_, fields, _) = next(iter(content.items()))
            return bytes([index]) + b"".join(self.value(part) for _, part in fields)
        return b"".join(self.value(part, number) for _, part in content)
