"""The effect of statements."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from inexact_muon.routing.reading.computed import truth
from inexact_muon.routing.reading.expressions import Expressions
from inexact_muon.routing.reading.frames import Closure, Frame
from inexact_muon.routing.reading.values import Value, of


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
            case ast.Assign():
                value = self.value(node.value, frame)
                for target in node.targets:
                    self.assign(target, value, frame)
            case ast.AnnAssign():
                if node.value is not None:
                    self.assign(node.target, self.value(node.value, frame), frame)
            case ast.AugAssign():
                operation = ast.BinOp(node.target, node.op, node.value)
                self.assign(node.target, self.value(operation, frame), frame)
            case ast.Expr():
                self.value(node.value, frame)
            case ast.FunctionDef():
                frame.names[node.name] = Value(objects=(Closure(node, frame),))
            case ast.If():
                held = truth(self.value(node.test, frame))
                bodies = [node.body, node.orelse]
                if held is None:
                    return self._branches(bodies, frame, _none(node.test))
                return self.run(bodies[not held], frame)
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

    def _branches(
        self, bodies: Sequence[Sequence[ast.stmt]], frame: Frame, none: tuple[str, int] | None = None
    ) -> bool:
        """Any of these bodies; those that end the function do not continue after it.

        Args:
            none: a variable that is None, and the number of the body where it is.
        """
        going = []
        for i, body in enumerate(bodies):
            branch = frame.copy()
            if none is not None and none[1] == i:
                branch.names[none[0]] = of(None)
            if not self.run(body, branch):
                going.append(branch)
        if going:
            frame.merge(going)
        return not going


def _none(test: ast.expr) -> tuple[str, int] | None:
    """(variable, 0 if it is None where the condition holds, 1 if where not), for `x is None` and `x is not None`."""
    match test:
        case ast.Compare(ast.Name(name), [ast.Is() | ast.IsNot() as op], [ast.Constant(None)]):
            return name, int(isinstance(op, ast.IsNot))
    return None
