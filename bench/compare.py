#!/usr/bin/env python3
"""Train the same models with dtrain, PyTorch and TensorFlow in turn, and print the medians and ratios as Markdown.

compare.py --ours .build/bench/models [--python PYTHON] [--kann PROGRAM] [--models mnist_mlp,…] [--threads 1,2] [--rounds 5] [--skip MODES] [--out FOLDER]

Each round runs every configuration once, each in a process of its own, so that a slow minute of a shared machine meets all
of them. The first round tries every mode of a peer; from the second on only its two best run. A peer has N threads on the
batch; dtrain has N replicas that share it. A peer that is not installed is left out, and the table says so. --kann, once for each
build, adds peers/train_kann.c; the builds count as modes. The ratio of the memory is to the lighter of PyTorch and TensorFlow.
"""
import argparse, json, os, platform, re, shlex, statistics, subprocess, sys

HERE = os.path.dirname(os.path.abspath(__file__))
BATCH = {"mnist_mlp": 128, "mnist_cnn": 128, "cifar_cnn": 64, "resnet20": 128}
MODES = {"torch": ["eager", "channels_last", "compile", "compile_channels_last"], "tf": ["fit", "fit_jit", "function", "function_jit"]}
NAME = {"dtrain": "dtrain", "torch": "PyTorch", "tf": "TensorFlow", "kann": "KANN"}
PACKAGES = {"torch": ["torch"], "tf": ["tensorflow", "tensorflow-cpu"]}


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


def system():
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, AttributeError, KeyError):
        return platform.platform()


def compiler(program):
    """What built a program, by the mark that it left; clang's stands beside that of the C library's gcc."""
    with open(program, "rb") as f:
        text = f.read()
    found = re.search(rb"clang version [\d.]+", text) or re.search(rb"GCC: \([^)]*\) [\d.]+", text)
    return found.group().decode().replace("GCC: ", "gcc ") if found else "compiler unknown"


def installed(python, packages):
    """The version of the first of these packages that this Python has, or nothing."""
    for package in packages:
        done = subprocess.run([python, "-c", "import importlib.metadata as m; print(m.version(%r))" % package], capture_output=True, text=True)
        if done.returncode == 0:
            return done.stdout.strip()


def measure(a, model, threads):
    """{(peer, mode): [result of each round]} of one row of the table."""
    batch, results = BATCH[model], {("dtrain", ""): []}
    for peer in a.peers:
        for mode in (m for m in MODES[peer] if m not in a.skip.split(",")):
            if model != "mnist_mlp" or "channels_last" not in mode:
                results[peer, mode] = []
    for r in range(a.rounds):
        for (peer, mode), done in results.items():
            rates = sorted((v[0]["samples_per_s"] for k, v in results.items() if k[0] == peer and v), reverse=True)
            if r and (not done or done[0]["samples_per_s"] < rates[:2][-1]):
                continue
            if peer == "dtrain":
                command = [a.ours, "--batch", str(batch // threads), "--replicas", str(threads)]
            else:
                program = [mode] if peer == "kann" else [a.python, "train_%s.py" % peer, "--mode", mode]
                command = program + ["--batch", str(batch), "--threads", str(threads)]
            result = run(command + ["--model", model, "--seconds", str(a.seconds)], 120 + 20 * a.seconds)
            if result:
                done.append(result)
                print("round %d  %-10s %d  %-32s %9.1f samples/s  %5d MB" % (r + 1, model, threads, peer + " " + os.path.basename(mode),
                      result["samples_per_s"], result["peak_rss_mb"]), file=sys.stderr, flush=True)
    return results


def row(a, model, threads, results):
    """The cells of a line of the table: ours, the best mode of each peer, the ratios to the fastest and the lightest."""
    def rate(runs):
        return statistics.median(x["samples_per_s"] for x in runs)

    def memory(runs):
        return min(x["peak_rss_mb"] for x in runs)

    best, mode_of = {}, {}
    for (peer, mode), runs in results.items():
        if len(runs) == a.rounds and (peer not in best or rate(runs) > rate(best[peer])):
            best[peer], mode_of[peer], a.versions[peer] = runs, os.path.basename(mode).replace("_", " "), runs[0]["version"]
    peers = [runs for peer, runs in best.items() if peer != "dtrain"]
    heavy = [memory(best[peer]) for peer in ("torch", "tf") if peer in best]
    times = lighter = ""
    if peers and "dtrain" in best:
        pairs = zip(best["dtrain"], max(peers, key=rate))
        times = "%.2f" % statistics.median(o["samples_per_s"] / p["samples_per_s"] for o, p in pairs)
    if heavy and "dtrain" in best:
        lighter = "%.1f" % (min(heavy) / memory(best["dtrain"]))
    speed = ["%.0f%s" % (rate(best[c]), mode_of[c] and " (%s)" % mode_of[c]) if c in best else "" for c in a.columns]
    size = ["%d" % memory(best[c]) if c in best else "" for c in a.columns]
    return [model, str(BATCH[model]), str(threads)] + speed + [times] + size + [lighter]


def plot(rows, column, path):
    try:
        import matplotlib
    except ImportError:
        print("no plot: %s has no matplotlib" % sys.executable, file=sys.stderr)
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot
    rows = [r for r in rows if r[column]]
    if not rows:
        return
    figure, axis = pyplot.subplots(figsize=(8, 0.5 * len(rows) + 1.5))
    axis.barh(["%s, %s" % (r[0], r[2]) for r in rows], [float(r[column]) for r in rows])
    axis.axvline(1, color="black", linewidth=0.8)
    axis.set_xlabel("samples/s, times the best of the peers (model, threads)")
    axis.invert_yaxis()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--ours", required=True, help="bench/models.c, built")
    p.add_argument("--python", default=sys.executable, help="one that has PyTorch and TensorFlow")
    p.add_argument("--kann", action="append", default=[], help="bench/peers/train_kann.c, built")
    p.add_argument("--skip", default="", help="modes of the peers to leave out, as in compile,fit_jit")
    p.add_argument("--models", default=",".join(BATCH))
    p.add_argument("--threads", default="1,2")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--seconds", type=float, default=4)
    p.add_argument("--out", default=".")
    a = p.parse_args()
    a.ours = os.path.abspath(a.ours)
    for program in [a.ours] + a.kann:
        if not os.access(program, os.X_OK):
            p.error("%s is no program: build it first (make bench)" % program)
    if os.path.exists(a.python):
        a.python = os.path.abspath(a.python)
    a.versions = {peer: installed(a.python, packages) for peer, packages in PACKAGES.items()}
    a.peers = [peer for peer in PACKAGES if a.versions[peer]] + ["kann"] * bool(a.kann)
    a.columns = ["dtrain", "torch", "tf"] + ["kann"] * bool(a.kann)
    MODES["kann"] = [os.path.abspath(program) for program in a.kann]
    rows = [row(a, m, int(t), measure(a, m, int(t))) for m in a.models.split(",") for t in a.threads.split(",")]
    names = [NAME[c] for c in a.columns]
    head = ["model", "batch", "threads"] + [n + ", samples/s" * (n == "dtrain") for n in names] + ["times the best"]
    head += [n + ", MB" * (n == "dtrain") for n in names] + ["times lighter"]
    lines = ["| " + " | ".join(cells) + " |" for cells in [head, ["---"] + ["---:"] * (len(head) - 1)] + rows]
    versions = ", ".join("%s %s" % (NAME[c], a.versions[c] or "not installed") for c in a.columns if c in a.versions)
    lines += ["", "%s, %d cores; %s, %s; %s; medians of %d rounds, the lowest peak memory:" % (cpu(), os.cpu_count(), system(), compiler(a.ours), versions, a.rounds),
              "", "    " + shlex.join(sys.argv)]
    print("\n".join(lines))
    os.makedirs(a.out, exist_ok=True)
    with open(os.path.join(a.out, "compare.md"), "w") as f:
        f.write("\n".join(lines) + "\n")
    if a.peers:
        plot(rows, 3 + len(names), os.path.join(a.out, "compare.png"))


if __name__ == "__main__":
    main()
