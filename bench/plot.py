#!/usr/bin/env python3
"""Draw bench/figures.json as SVG beside it, and write its tables into README.md: tables and pictures are of one source.

plot.py            writes bench/throughput.svg, sums.svg and accuracy.svg, and the tables between README.md's marks
plot.py --check    writes nothing; says what is not as figures.json has it, and ends with 1

Plain Python. The pictures stand on a card of their own and bring colours for light and dark pages. Figures are put into
figures.json by hand, with the machine and the command that measured them.
"""
import html, json, math, os, re, sys

HERE = os.path.dirname(os.path.abspath(__file__))
README = os.path.join(HERE, "..", "README.md")
STYLE = """
  text { font: 13px -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2937 }
  .title { font-weight: 600; font-size: 15px } .head { font-weight: 600 } .soft { fill: #64748b; font-size: 12px }
  .card { fill: #ffffff; stroke: #d8dee6 } .grid { stroke: #e2e8f0 } .axis { stroke: #94a3b8 }
  .f0 { fill: #2563eb } .f1 { fill: #ea580c } .f2 { fill: #d69e05 } .f3 { fill: #7c8798 }
  .s0 { stroke: #2563eb } .s1 { stroke: #ea580c } .s2 { stroke: #d69e05 } .s3 { stroke: #7c8798 }
  .line { fill: none; stroke-width: 2.2 } .dash { stroke-dasharray: 5 4 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e5e7eb } .soft { fill: #9aa7b8 }
    .card { fill: #11161d; stroke: #2d3743 } .grid { stroke: #232c37 } .axis { stroke: #5b6878 }
    .f0 { fill: #60a5fa } .f1 { fill: #fb923c } .f2 { fill: #facc15 } .f3 { fill: #94a3b8 }
    .s0 { stroke: #60a5fa } .s1 { stroke: #fb923c } .s2 { stroke: #facc15 } .s3 { stroke: #94a3b8 }
  }
"""


class Picture:
    def __init__(self, width, height, title, says):
        self.size, self.title, self.says, self.parts = (width, height), title, says, []
        self.text(24, 32, title, "title")

    def add(self, form, *values):
        self.parts.append(form % values)

    def text(self, x, y, words, kind="", anchor="start"):
        self.add('<text x="%.1f" y="%.1f" class="%s" text-anchor="%s">%s</text>', x, y, kind, anchor, html.escape(words))

    def line(self, x1, y1, x2, y2, kind):
        self.add('<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" class="%s"/>', x1, y1, x2, y2, kind)

    def curve(self, points, kind, dot):
        self.add('<polyline points="%s" class="line %s"/>', " ".join("%.1f,%.1f" % p for p in points), kind)
        for x, y in points:
            self.add('<circle cx="%.1f" cy="%.1f" r="3" class="%s"/>', x, y, dot)

    def svg(self):
        w, h = self.size
        return ('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img">\n<title>%s</title>\n<desc>%s</desc>\n<style>%s</style>\n'
                '<rect x="0.5" y="0.5" width="%d" height="%d" rx="8" class="card"/>\n%s\n</svg>\n') % (
            w, h, w, h, html.escape(self.title), html.escape(self.says), STYLE, w - 1, h - 1, "\n".join(self.parts))


def throughput(data):
    """A panel per model, at the most cores: a bar per library."""
    cores = max(r["cores"] for r in data["rows"])
    rows = [r for r in data["rows"] if r["cores"] == cores]
    p = Picture(860, 270, "Training, samples per second on %d cores" % cores, "Bars of %s for each of four models." % ", ".join(data["columns"]))
    width = (860 - 40) / len(rows)
    for k, r in enumerate(rows):
        left, most = 24 + k * width, max(v for v in r["samples_per_s"] if v)
        p.text(left, 66, r["model"], "head")
        p.text(left, 83, "batch %d" % r["batch"], "soft")
        for i, (name, v) in enumerate(zip(data["columns"], r["samples_per_s"])):
            y = 94 + i * 34
            p.text(left, y + 12, name if v else name + ": no batch norm", "soft")
            if v:
                p.add('<rect x="%.1f" y="%.1f" width="%.1f" height="12" rx="2" class="f%d"/>', left, y + 17, v / most * (width - 72), i)
                p.text(left + v / most * (width - 72) + 5, y + 28, "{:,}".format(v))
    p.text(24, 256, data["machine"], "soft")
    return p.svg()


def axis_y(p, left, right, at, ticks):
    for v, words in ticks:
        p.line(left, at(v), right, at(v), "grid")
        p.text(left - 8, at(v) + 4, words, "soft", "end")


def legend(p, x, y, names):
    for name, kind, dot in names:
        p.line(x, y - 4, x + 22, y - 4, "line " + kind)
        p.add('<circle cx="%.1f" cy="%.1f" r="3" class="%s"/>', x + 11, y - 4, dot)
        p.text(x + 28, y, name)
        x += 50 + 7.4 * len(name)


def seconds(v):
    return "%g us" % (v * 1e6) if v < 1e-3 else "%g ms" % (v * 1e3)


def sums(data):
    """Time over size, both logarithmic."""
    p = Picture(860, 380, "A sum of all values over two processes of one machine", "Time over size for dtrain and Open MPI, in shared memory and over TCP.")
    left, right, top, bottom = 84, 830, 82, 316
    low, high = math.log10(0.3e-6), math.log10(1e-1)

    def x(b): return left + 30 + (math.log2(b) - 10) / 16 * (right - left - 60)
    def y(s): return bottom - (math.log10(s) - low) / (high - low) * (bottom - top)
    axis_y(p, left, right, y, [(10.0 ** k, seconds(10.0 ** k)) for k in range(-6, 0)])
    for r in data["rows"]:
        p.text(x(r["bytes"]), bottom + 22, r["size"], "soft", "middle")
    kinds = [("s0", "f0"), ("s1", "f1"), ("s0 dash", "f0"), ("s1 dash", "f1")]
    names = ["dtrain, shared memory", "Open MPI, shared memory", "dtrain, TCP", "Open MPI, TCP"]
    for i, (kind, dot) in enumerate(kinds):
        p.curve([(x(r["bytes"]), y(r["seconds"][i])) for r in data["rows"]], kind, dot)
    legend(p, 84, 60, [(n,) + k for n, k in zip(names, kinds)])
    p.text(24, 366, data["machine"] + "; both axes are logarithmic", "soft")
    return p.svg()


def accuracy(data):
    """Test accuracy after each epoch, a panel per data set."""
    p = Picture(860, 350, "Accuracy on the test images, epoch by epoch", "; ".join("%s %s ends at %.1f %%" % (r["data"], r["model"], 100 * r["accuracy"][-1]) for r in data["rows"]))
    panels = list(dict.fromkeys(r["data"] for r in data["rows"]))
    width = (860 - 48) / len(panels)
    for k, name in enumerate(panels):
        rows = [r for r in data["rows"] if r["data"] == name]
        values = [v for r in rows for v in r["accuracy"]]
        step = next(s for s in (0.005, 0.01, 0.02, 0.05, 0.1) if (max(values) - min(values)) / s <= 6)
        low, high = math.floor(min(values) / step) * step, math.ceil(max(values) / step + 0.01) * step
        left, right, top, bottom = 24 + k * width + 50, 24 + (k + 1) * width - 14, 92, 284
        most = max(len(r["accuracy"]) for r in rows)

        def x(e): return left + 14 + (e - 1) / max(most - 1, 1) * (right - left - 28)
        def y(v): return bottom - (v - low) / (high - low) * (bottom - top)
        n = round((high - low) / step)
        axis_y(p, left, right, y, [(low + i * step, "%g %%" % round(100 * (low + i * step), 2)) for i in range(n + 1)])
        p.text(left - 50, 60, name, "head")
        legend(p, left - 50, 80, [(r["model"], "s%d" % i, "f%d" % i) for i, r in enumerate(rows)])
        for e in range(1, most + 1):
            p.text(x(e), bottom + 20, str(e), "soft", "middle")
        for i, r in enumerate(rows):
            p.curve([(x(e + 1), y(v)) for e, v in enumerate(r["accuracy"])], "s%d" % i, "f%d" % i)
    p.text(24, 336, data["machine"], "soft")
    return p.svg()


def markdown(head, align, rows):
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, align] + rows)


def table_throughput(data):
    head = ["model (batch)", "cores"] + data["columns"] + ["dtrain against the best", "peak memory against the lighter of PyTorch and TensorFlow"]
    rows = [["%s (%d)" % (r["model"], r["batch"]), str(r["cores"])] + ["{:,}".format(v) if v else "no" for v in r["samples_per_s"]]
            + ["%.2f x" % r["times"], "1 / %.1f" % r["lighter"]] for r in data["rows"]]
    return markdown(head, ["---"] + ["---:"] * (len(head) - 1), rows)


def table_sums(data):
    def cell(v): return "" if v is None else "%.1f us" % (v * 1e6) if v < 2e-6 else "%.0f us" % (v * 1e6) if v < 1e-4 else "%.2g ms" % (v * 1e3)
    return markdown(["values"] + data["columns"], ["---:"] * (1 + len(data["columns"])), [[r["size"]] + [cell(v) for v in r["seconds"]] for r in data["rows"]])


def table_processes(data):
    rows = [["%s (%d)" % (r["model"], r["batch"]), "{:,}".format(r["samples_per_s"][0])] + ["{:,} (%.2f x)".format(v) % t for v, t in zip(r["samples_per_s"][1:], r["times"])]
            for r in data["rows"]]
    return markdown(["samples per second (batch of each)"] + data["columns"], ["---"] + ["---:"] * len(data["columns"]), rows)


def table_reaches(data):
    rows = [[r["data"], r["model"], "%.1f %% of %s" % (100 * r["accuracy"], r["of"]), str(r["epochs"]), "%d s" % r["seconds"]] for r in data["rows"]]
    return markdown(["data", "model", "accuracy on the test images", "epochs", "training took"], ["---", "---", "---:", "---:", "---:"], rows)


def main():
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        sys.exit(__doc__)
    with open(os.path.join(HERE, "figures.json"), encoding="utf-8") as f:
        figures = json.load(f)
    with open(README, encoding="utf-8") as f:
        readme = f.read()
    files = {}
    for name, draw in [("throughput", throughput), ("sums", sums), ("accuracy", accuracy)]:
        files[os.path.join(HERE, name + ".svg")] = draw(figures[name])
    for name, table in [("reaches", table_reaches), ("throughput", table_throughput), ("sums", table_sums), ("processes", table_processes)]:
        mark = r"(<!-- figures\.json: %s -->\n)(?:(?!<!--).)*?(?=\n<!-- end -->)" % name
        readme, found = re.subn(mark, lambda m: m.group(1) + "\n" + table(figures[name]) + "\n", readme, flags=re.S)
        if found != 1:
            sys.exit("README.md has %d places <!-- figures.json: %s --> … <!-- end -->; 1 is needed" % (found, name))
    files[README] = readme
    stale = 0
    for path, text in files.items():
        try:
            with open(path, encoding="utf-8") as f:
                same = f.read() == text
        except FileNotFoundError:
            same = False
        if same:
            continue
        stale = 1
        print("%s %s" % (os.path.relpath(path, os.path.join(HERE, "..")), "is not as figures.json has it: run bench/plot.py" if check else "written"))
        if not check:
            with open(path + ".new", "w", encoding="utf-8") as f:
                f.write(text)
            os.replace(path + ".new", path)
    sys.exit(check and stale)


if __name__ == "__main__":
    main()
