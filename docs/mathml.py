"""Formulas as MathML, made from the text in which pages write them: `gamma_k (1-eta_k) |grad_k|* <= D0/K`.

Browsers do not break lines in MathML, so a formula in a line of text is several, each of which ends with a relation, a
sign or a comma: the lines of a phone are broken there.
"""

import re
from dataclasses import dataclass
from html import escape

GREEK = "alpha beta gamma delta eta kappa lambda nu rho sigma phi xi pi zeta Lambda"
SYMBOLS = {
    **dict(zip(GREEK.split(), "αβγδηκλνρσφξπζΛ", strict=True)),
    "grad": "∇",
    "sum": "∑",
    "prod": "∏",
    "int": "∫",
    "inf": "∞",
    "eps": "ε",
    "in": "∈",
}
WORDS = ("min", "max", "mean", "log", "exp", "diag", "argmin", "gap", "overshoot", "dx")
TEXT = ("past", "if", "else", "that", "is", "at")
BREAKS = ("=", "<=", ">=", "<", ">", "->", "<-", ",", ";", ":")
"""A line may be broken after these; after +, - and / if there are spaces around them."""
SHORT = 6
"""A formula of so few tokens is not broken."""
LONGEST = 30
"""Characters of a part of a formula that surely fit a phone; a longer one scrolls."""
OPERATORS = {"<=": "≤", ">=": "≥", "!=": "≠", "->": "→", "<-": "←", "-": "−", "*": "·"}
STAR = "<mo>∗</mo>"
TOKEN = re.compile(
    r"(?P<space>\s+)|(?P<number>\d+(?:\.\d+)?(?:e-?\d+)?)|(?P<hat>d_hat)|(?P<letter0>[DL][01](?!\w))"
    r"|(?P<word>[A-Za-z]+)|(?P<operator><=|>=|!=|->|<-|\.\.\.|\.\.|[-+=,;:.!'∈∎])"
    r"|(?P<angle>[<>])|(?P<star>\*)|(?P<script>[_^])|(?P<open>[(\[{])|(?P<close>[)\]}])|(?P<bar>\|)|(?P<slash>/)"
)


@dataclass(frozen=True)
class Token:
    """A piece of text, its kind, and whether spaces stand around it."""

    kind: str
    text: str
    before: bool
    after: bool


def tokens(text: str) -> list[Token] | None:
    """The tokens of a formula; None if anything in it is no mathematics."""
    found, place = [], 0
    while place < len(text):
        match = TOKEN.match(text, place)
        if match is None or match.lastgroup is None:
            return None
        word = match[0]
        if match.lastgroup == "word" and len(word) > 1 and word not in (*SYMBOLS, *WORDS, *TEXT, "sqrt"):
            return None
        if match.lastgroup != "space":
            spaced = (place == 0 or text[place - 1] == " ", match.end() == len(text) or text[match.end()] == " ")
            found.append(Token(match.lastgroup, word, *spaced))
        place = match.end()
    return found


class Typesetter:
    """A formula as MathML, by recursive descent: row = item item ..., item = atom scripts, or atom/atom."""

    def __init__(self, found: list[Token], display: bool) -> None:
        self.found, self.place, self.display, self.angles, self.bars = found, 0, display, 0, 0

    def parts(self) -> list[tuple[str, str]]:
        """(MathML, source) of the parts between which a line may be broken; brackets only where they are long."""
        parts, items, start = [], [], 0
        closing: set[int] = set()
        while self.place < len(self.found):
            first = self.place
            end = self.end_of_long(first)
            if end or first in closing:
                closing.add(end or first)
                self.place += 1
                items.append(self.tall(self.found[first]))
            else:
                items.append(self.item())
            ends = self.place == len(self.found)
            alone = self.place == first + 1 and "⟩" not in items[-1]
            if ends or (alone and self.breaks(self.found[first])):
                row = "".join(items) if ends else "".join(items[:-1]) + items[-1].replace("<mo>", '<mo form="infix">')
                source = "".join(" " * t.before + t.text for t in self.found[start : self.place])
                parts.append((row, source.strip()))
                items, start = [], self.place
        return parts

    def end_of_long(self, first: int) -> int:
        """Where the bracket that opens here closes, if a line may be broken within it; else 0.

        It may if it is longer than a phone and nothing applies to the whole of it: no power, fraction or function.
        """
        if self.found[first].kind != "open" or self.applied(first):
            return 0
        depth, last = 1, first
        while depth and last + 1 < len(self.found):
            last += 1
            depth += {"open": 1, "close": -1}.get(self.found[last].kind, 0)
        short = sum(len(token.text) + token.before for token in self.found[first:last]) <= LONGEST
        after = self.found[last + 1] if last + 1 < len(self.found) else None
        whole = after is not None and after.kind in ("script", "star", "slash") and not after.before
        return 0 if depth or short or whole else last

    def applied(self, first: int) -> bool:
        """Whether the bracket that opens here has the arguments of a function: zeta(3/2)."""
        return first > 0 and self.found[first - 1].kind == "word" and not self.found[first].before

    def tall(self, token: Token) -> str:
        """A bracket whose other half may be on another line: it cannot see what it has to be as tall as."""
        size = "2.4em" if self.display else "1em"
        form = "prefix" if token.kind == "open" else "postfix"
        return f'<mo form="{form}" symmetric="true" minsize="{size}">{token.text}</mo>'

    def breaks(self, token: Token) -> bool:
        """Whether a line may be broken after this token, which is an item by itself."""
        if self.angles or self.bars or len(self.found) <= SHORT:
            return False
        return token.text in BREAKS or (token.text in "+-/" and token.before and token.after)

    def row(self, until: str = "") -> str:
        """Items up to a closing bracket, which is consumed."""
        items: list[str] = []
        while self.place < len(self.found):
            token = self.found[self.place]
            if token.kind == "close" and until:
                self.place += 1
                return "".join(items)
            items.append(self.item())
        if until:
            raise ValueError(f"no {until}")
        return "".join(items)

    def item(self) -> str:
        """An atom with its scripts; a fraction if a slash without spaces follows."""
        token, applied = self.found[self.place], self.applied(self.place)
        above, bare = self.atom()
        if self.place < len(self.found) and token.kind != "slash" and not (applied and token.kind == "open"):
            slash = self.found[self.place]
            if slash.kind == "slash" and not (slash.before or slash.after) and self.display:
                self.place += 1
                _, below = self.atom()
                return f"<mfrac><mrow>{bare}</mrow><mrow>{below}</mrow></mfrac>"
        return above

    def atom(self) -> tuple[str, str]:
        """(with, without) the brackets around it."""
        token = self.found[self.place]
        self.place += 1
        if token.kind == "open":
            inner = self.row(token.text)
            closing = self.found[self.place - 1].text  # half-open intervals: (0, 1]
            ends = (self.bracket(token.text), self.bracket(closing))
            shown = self.scripts(f"<mrow>{ends[0]}{inner}{ends[1]}</mrow>")
            return shown, inner if "<msu" not in shown[:6] else shown
        if token.text == "sqrt":
            self.place += 1
            made = self.scripts(f"<msqrt>{self.row('(')}</msqrt>")
            return made, made
        made = self.scripts(self.base(token), under=token.text in ("sum", "prod", "min", "max", "mean"))
        return made, made

    def base(self, token: Token) -> str:
        """The symbol of a token."""
        text = token.text
        match token.kind:
            case "number":
                return f"<mn>{text}</mn>"
            case "hat":
                return '<mover accent="true"><mi>d</mi><mo>^</mo></mover>'
            case "letter0":
                return f"<msub><mi>{text[0]}</mi><mn>{text[1]}</mn></msub>"
            case "word":
                if text in TEXT:
                    return self.text(token)
                kind = "mo" if text in ("sum", "prod", "int", "in") else "mi"
                return f"<{kind}>{SYMBOLS.get(text, text)}</{kind}>"
            case "angle":
                return self.angle(token)
            case "bar":
                return self.bar(token)
            case "slash":
                room = "0.2em" if token.before else "0"
                return f'<mo lspace="{room}" rspace="{room}">/</mo>'
            case _:
                return f"<mo>{escape(OPERATORS.get(text, text))}</mo>"

    def text(self, token: Token) -> str:
        """A word of English with the spaces around it, which MathML drops."""
        after_bar = self.place > 1 and self.found[self.place - 2].kind == "bar"
        before = "&#160;" if token.before and self.place > 1 and not after_bar else ""
        follows = self.place < len(self.found) and self.found[self.place].text not in TEXT
        after = "&#160;" if token.after and follows else ""
        return f"<mtext>{before}{token.text}{after}</mtext>"

    def bracket(self, text: str) -> str:
        """Brackets grow with what is in them in formulas of their own, not in lines of text."""
        return f"<mo>{text}</mo>" if self.display else f'<mo stretchy="false">{text}</mo>'

    def bar(self, token: Token) -> str:
        """A norm's bar opens after a space or a bracket; between two spaces it reads "given"."""
        last = self.found[self.place - 2].kind if self.place > 1 else "open"
        opens = not token.after and (token.before or last in ("open", "operator", "bar"))
        given = token.before and token.after
        if not given:
            self.bars += 1 if opens else -1
        before = "0.25em" if given or (opens and last not in ("open", "operator")) else "0"
        return f'<mo stretchy="false" lspace="{before}" rspace="{"0.25em" if given else "0"}">|</mo>'

    def angle(self, token: Token) -> str:
        """`<m, d>` is an inner product, `k < K` and `k<K` a relation."""
        last = self.found[self.place - 2] if self.place > 1 else None
        joined = last is not None and last.kind in ("word", "number", "letter0", "close") and not token.before
        if token.text == "<" and not token.after and not joined:
            self.angles += 1
            return self.bracket("⟨")
        if token.text == ">" and self.angles and not token.before:
            self.angles -= 1
            return self.bracket("⟩")
        return f"<mo>{escape(token.text)}</mo>"

    def scripts(self, base: str, under: bool = False) -> str:
        """Subscript, superscript, and the star of a dual norm or an optimum."""
        found = {"_": "", "^": ""}
        while self.place < len(self.found):
            token = self.found[self.place]
            free = not found.get(token.text) or (token.text == "^" and found["^"] == STAR)  # the square of a dual norm
            if token.kind == "script" and free and self.place + 1 < len(self.found):
                self.place += 1
                found[token.text] += self.script()
            elif token.kind == "star" and not token.before and not found["^"]:
                self.place += 1
                found["^"] = STAR
            else:
                break
        below, above = found["_"], found["^"]
        names = ("munderover", "munder", "mover") if under and self.display else ("msubsup", "msub", "msup")
        if below and above:
            return f"<{names[0]}>{base}<mrow>{below}</mrow><mrow>{above}</mrow></{names[0]}>"
        if below:
            return f"<{names[1]}>{base}<mrow>{below}</mrow></{names[1]}>"
        return f"<msup>{base}<mrow>{above}</mrow></msup>" if above else base

    def script(self) -> str:
        token = self.found[self.place]
        if token.kind == "open":
            self.place += 1
            return self.row(token.text)
        self.place += 1
        if token.text == "-" and self.place < len(self.found):
            self.place += 1
            return "<mo>−</mo>" + self.base(self.found[self.place - 1])
        return self.base(token)


def mathml(text: str, display: bool = False) -> str | None:
    """A formula as MathML; None if the text is no formula."""
    made = parts(text, display)
    return element("".join(row for row, _ in made), text, display) if made else None


def parts(text: str, display: bool = False) -> list[tuple[str, str]]:
    """(MathML, source) of the parts of a formula between which a line may be broken; none if the text is no formula."""
    found = tokens(text)
    if not found or not any(token.kind in ("word", "hat", "letter0", "number", "bar") for token in found):
        return []
    try:
        return Typesetter(found, display).parts()
    except (ValueError, IndexError):
        return []


def element(row: str, text: str, display: bool = False) -> str:
    """A row as an element of the page, which reads its source aloud."""
    style = ' displaystyle="true"' if display else ""
    return f'<math{style} alttext="{escape(text, quote=True)}"><mrow>{row}</mrow></math>'
