"""The rates as a picture: SVG, one group of bars a case, each as long as the side's share of the best in its case."""

from collections.abc import Sequence
from html import escape

from rounds import CPU, OUT, Case, shown

WIDTH, LEFT, BAR, GAP, HEAD = 860, 300, 16, 26, 40
OURS, LOGGED, OTHER = "#2160dd", "#7aa7ff", "#8a94a3"
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#1b2430}.case{font-weight:600}.soft{fill:#5d6b7c}"
    "@media(prefers-color-scheme:dark){text{fill:#e4e9f0}.soft{fill:#93a1b3}}"
)


def svg(cases: Sequence[Case], results: Sequence[dict]) -> str:
    """Without cases that compare work: there all sides have the same rate."""
    compared = [case for case in cases if case.is_load and not any(ratio.key == CPU for ratio in case.ratios)]
    titles = {case.name: case.title for case in compared}
    parts, y = [], HEAD
    for result in results:
        sides = [(one["name"], one["spread"][OUT]) for one in result["sides"] if one["spread"] and OUT in one["spread"]]
        if result["name"] not in titles or len(sides) < 2:
            continue
        parts.append(f'<text x="0" y="{y}" class="case">{escape(titles[result["name"]])}</text>')
        best = max(spread["middle"] for _, spread in sides)
        for name, spread in sides:
            y += BAR + 4
            parts += bar(name, spread, best, y)
        y += GAP
    title = '<text x="0" y="16" class="soft">deliveries or acknowledgements a second; the line is least to most</text>'
    size = f'width="{WIDTH}" height="{y}" viewBox="0 0 {WIDTH} {y}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{STYLE}</style>{title}{"".join(parts)}</svg>\n'


def bar(name: str, spread: dict, best: float, y: int) -> list[str]:
    room = WIDTH - LEFT - 110
    length, least, most = (max(spread[key] / best, 0.002) * room for key in ("middle", "least", "most"))
    middle = y - BAR / 2 + 2
    colour = LOGGED if name.endswith(("log on", "on disk")) else OURS if name.startswith("SMB") else OTHER
    return [
        f'<text x="{LEFT - 8}" y="{y}" text-anchor="end">{escape(name)}</text>',
        f'<rect x="{LEFT}" y="{y - BAR + 4}" width="{length:.1f}" height="{BAR - 4}" rx="2" fill="{colour}"/>',
        f'<path d="M{LEFT + least:.1f} {middle}H{LEFT + min(most, room + 8):.1f}" stroke="#1b2430" opacity=".5"/>',
        f'<text x="{LEFT + max(length, min(most, room)) + 12:.1f}" y="{y}">{shown(spread["middle"])}/s</text>',
    ]
