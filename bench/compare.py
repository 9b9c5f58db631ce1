#!/usr/bin/env python3
"""Train the same models with dtrain, PyTorch and TensorFlow in turn, and print the medians and ratios as Markdown.

compare.py --ours .build/bench/models [--python PYTHON] [--models mnist_mlp,…] [--threads 1,2] [--rounds 5] [--out FOLDER]

Each round runs every configuration once, each in a process of its own, so that a slow minute of a shared machine meets all
of them. The first round tries every mode of a peer; from the second on only its two best run. A peer has N threads on the
batch; dtrain has N replicas that share it. A peer that is not installed is left out, and the table says so.
"""
import argparse, json, os, platform, statistics, subprocess, sys

HERE = os.path.dirname(os.path.abspath(__file__))
BATCH = {"mnist_mlp": 128, "mnist_cnn": 128, "cifar_cnn": 64, "resnet20": 128}
MODES = {"torch": ["eager", "channels_last", "compile", "compile_channels_last"], "tf": ["fit", "fit_jit", "function", "function_jit"]}
NAME = {"torch": "PyTorch", "tf": "TensorFlow"}


def run(command, timeout):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, cwd=os.path.join(HERE, "peers"))
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        print("failed: %s\n%s" % (" ".join(command), done.stderr[-400:]), file=sys.stderr)
        return None
    return json.loads(done.stdout.strip().splitlines()[-1])


def cpu():
    try:
        with open("/proc/cpuinfo") as f:
            return next(line.split(":", 1)[1].strip() for line in f if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def measure(a, model, threads):
    """{configuration: [result of each round]} of one row of the table."""
    batch, results = BATCH[model], {"dtrain": []}
    for peer in a.peers:
        for mode in MODES[peer]:
            if model != "mnist_mlp" or "channels_last" not in mode:
                results[peer, mode] = []
    for r in range(a.rounds):
        for key, done in results.items():
            if key == "dtrain":
                command = [a.ours, "--model", model, "--batch", str(batch // threads), "--replicas", str(threads)]
            else:
                rates = sorted((v[0]["samples_per_s"] for k, v in results.items() if k[0] == key[0] and v), reverse=True)
                if r and (not done or done[0]["samples_per_s"] < rates[:2][-1]):
                    continue
                command = [a.python, "train_%s.py" % key[0], "--model", model, "--mode", key[1], "--batch", str(batch), "--threads", str(threads)]
            result = run(command + ["--seconds", str(a.seconds)], 120 + 20 * a.seconds)
            if result:
                done.append(result)
                print("round %d  %-10s %d  %-32s %9.1f samples/s  %5d MB" % (r + 1, model, threads, " ".join(key) if key != "dtrain" else key,
                      result["samples_per_s"], result["peak_rss_mb"]), file=sys.stderr, flush=True)
    return results


def row(a, model, threads, results):
    """The line of the table: ours, the best mode of each peer, the ratio to the best peer."""
    def rate(v):
        return statistics.median(x["samples_per_s"] for x in v)

    ours, cells, best = results["dtrain"], [], None
    for peer in ("torch", "tf"):
        full = {k: v for k, v in results.items() if k[0] == peer and len(v) == a.rounds}
        if not full:
            cells += ["not measured", ""]
            continue
        key = max(full, key=lambda k: rate(full[k]))
        if best is None or rate(full[key]) > rate(best):
            best = full[key]
        cells += ["%.0f (%s)" % (rate(full[key]), key[1].replace("_", " ")), "%d" % min(x["peak_rss_mb"] for x in full[key])]
    ratio = statistics.median(o["samples_per_s"] / p["samples_per_s"] for o, p in zip(ours, best)) if best else float("nan")
    return [model, str(BATCH[model]), str(threads), "%.0f" % rate(ours)] + cells[0::2] + ["%.2f" % ratio, "%d" % min(x["peak_rss_mb"] for x in ours)] + cells[1::2]


def plot(rows, path):
    try:
        import matplotlib
    except ImportError:
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot
    names = ["%s, %s" % (r[0], r[2]) for r in rows]
    best = [max(float(c.split()[0]) for c in r[4:6] if c[0].isdigit()) for r in rows]
    figure, axis = pyplot.subplots(figsize=(8, 0.5 * len(rows) + 1.5))
    axis.barh(names, [float(r[3]) / b for r, b in zip(rows, best)])
    axis.axvline(1, color="black", linewidth=0.8)
    axis.set_xlabel("samples/s, times the best of the peers (model, threads)")
    axis.invert_yaxis()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--ours", required=True)
    p.add_argument("--python", default=sys.executable)
    p.add_argument("--models", default=",".join(BATCH))
    p.add_argument("--threads", default="1,2")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--seconds", type=float, default=4)
    p.add_argument("--out", default=".")
    a = p.parse_args()
    a.ours = os.path.abspath(a.ours)
    if os.path.exists(a.python):
        a.python = os.path.abspath(a.python)
    versions = {}
    for peer, module in (("torch", "torch"), ("tf", "tensorflow")):
        done = subprocess.run([a.python, "-c", "import importlib.metadata as m; print(m.version(%r))" % module], capture_output=True, text=True)
        if done.returncode == 0:
            versions[peer] = done.stdout.strip()
    a.peers = list(versions)
    rows = [row(a, m, int(t), measure(a, m, int(t))) for m in a.models.split(",") for t in a.threads.split(",")]
    lines = ["| model | batch | threads | dtrain, samples/s | PyTorch | TensorFlow | times the best | dtrain, MB | PyTorch | TensorFlow |",
             "| --- |" + " ---: |" * 9] + ["| " + " | ".join(r) + " |" for r in rows]
    lines += ["", "%s, %d cores; %s; medians of %d rounds" % (cpu(), os.cpu_count(), ", ".join("%s %s" % (NAME[k], v) for k, v in versions.items()) or "no peers", a.rounds)]
    print("\n".join(lines))
    os.makedirs(a.out, exist_ok=True)
    with open(os.path.join(a.out, "compare.md"), "w") as f:
        f.write("\n".join(lines) + "\n")
    if a.peers:
        plot(rows, os.path.join(a.out, "compare.png"))


if __name__ == "__main__":
    main()
