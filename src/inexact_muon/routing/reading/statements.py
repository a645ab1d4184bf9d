"""The effect of statements."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from inexact_muon.routing.layers import role
from inexact_muon.routing.reading.computed import truth
from inexact_muon.routing.reading.expressions import Expressions
from inexact_muon.routing.reading.frames import Closure, Frame
from inexact_muon.routing.reading.values import Value, carried, listed, of, record, with_role


class Statements(Expressions):
    """Runs statements; branches whose condition is not known are both followed."""

    def run(self, body: Sequence[ast.stmt], frame: Frame) -> bool:
        """Run statements; returns whether the function or the iteration ends there."""
        return any(self._statement(statement, frame) for statement in body)

    def _statement(self, node: ast.stmt, frame: Frame) -> bool:
        match node:
            case ast.Return():
                frame.returned.append(Value() if node.value is None else self.value(node.value, frame))
                return True
            case ast.Raise() | ast.Continue() | ast.Break():
                return True
            case ast.Assign(targets, source):
                value = self.value(source, frame)
                for target in targets:
                    self.assign(target, value, frame)
            case ast.AnnAssign(value=ast.expr() as source):
                self.assign(node.target, self.value(source, frame), frame)
            case ast.AugAssign(target, operator, source):
                self.assign(target, self.value(ast.BinOp(target, operator, source), frame), frame)
            case ast.Expr():
                self.value(node.value, frame)
            case ast.FunctionDef():
                frame.names[node.name] = Value(objects=(Closure(node, frame),))
            case ast.If():
                held = truth(self.value(node.test, frame))
                bodies = [node.body, node.orelse]
                return self._branches(bodies, frame, node.test) if held is None else self.run(bodies[not held], frame)
            case ast.For():
                for element in self.elements(self.value(node.iter, frame)):
                    self.assign(node.target, element, frame)
                    self.run(node.body, frame)
                self.run(node.orelse, frame)
            case ast.While():
                self.value(node.test, frame)
                for _ in range(2):
                    self._branches([node.body, []], frame)
            case ast.With():
                for item in node.items:
                    value = self.value(item.context_expr, frame)
                    if item.optional_vars is not None:
                        self.assign(item.optional_vars, value, frame)
                return self.run(node.body, frame)
            case ast.Try():
                ended = self._branches([node.body + node.orelse, *(h.body for h in node.handlers)], frame)
                return self.run(node.finalbody, frame) or ended
            case ast.Match():
                self.value(node.subject, frame)
                self._branches([*(case.body for case in node.cases), []], frame)
        return False

    def _branches(self, bodies: Sequence[Sequence[ast.stmt]], frame: Frame, test: ast.expr | None = None) -> bool:
        """Any of these bodies; those that end the function do not continue after it.

        Rows that a variable holds in one of them alone count as used: they are not known after it.
        Where the condition is `x is None`, x is None in the first body; in the second if it is `x is not None`.
        """
        going = []
        for i, body in enumerate(bodies):
            branch = frame.copy()
            match test:
                case ast.Compare(ast.Name(name), [operator], [ast.Constant(None)]):
                    if isinstance(operator, (ast.Is, ast.IsNot)[i]):
                        branch.names[name] = of(None)
            if not self.run(body, branch):
                going.append(branch)
        if going:
            frame.merge(going)
            lost = [name for name, value in frame.names.items() if value.rows is None]
            values = [branch.names[name] for branch in going for name in lost if name in branch.names]
            self.used(value for value in values if value.rows is not None)
        return not going

    def assign(self, target: ast.expr, value: Value, frame: Frame) -> None:
        match target:
            case ast.Name(variable):
                part = role(variable) if value.rows is not None else ""  # named as attention does
                frame.names[variable] = with_role(value, part) if part else value
            case ast.Tuple() | ast.List():
                parts = value.elements() or []
                star = next((i for i, part in enumerate(target.elts) if isinstance(part, ast.Starred)), None)
                if star is not None and len(parts) >= len(target.elts) - 1:
                    end = len(parts) - len(target.elts) + star + 1
                    parts = [*parts[:star], listed(parts[star:end]), *parts[end:]]
                if len(parts) != len(target.elts):
                    parts = [value.at(Value())] * len(target.elts)
                for inner, element in zip(target.elts, parts, strict=True):
                    self.assign(inner, element, frame)
            case ast.Starred():
                self.assign(target.value, value, frame)
            case ast.Attribute():
                owner = self.value(target.value, frame)
                for x in owner.objects:
                    self.stored[id(x), target.attr] = value
                if not owner.objects and isinstance(target.value, ast.Name):
                    frame.names[target.value.id] = record({**owner.fields, target.attr: value}, [owner])
            case ast.Subscript(ast.Name(name)):
                old, key = frame.lookup(name), self.value(target.slice, frame)
                named = key.known and isinstance(key.objects[0], str)
                frame.names[name] = (
                    record({**old.fields, key.objects[0]: value}, [old]) if named else carried([old, value])
                )

    def grow(self, target: ast.expr, values: Sequence[Value], frame: Frame) -> None:
        while isinstance(target, ast.Subscript):
            target = target.value
        if isinstance(target, ast.Name):
            old = frame.lookup(target.id)
            known = old.items is not None and len(values) == 1
            frame.names[target.id] = listed([*(old.items or ()), *values]) if known else carried([old, *values])
