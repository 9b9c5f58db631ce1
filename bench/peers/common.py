"""What the peer programs share: their arguments, the samples, and the line of JSON that bench/models.c prints too."""
import argparse, json, statistics, time

SHAPE = {"mnist_mlp": (784,), "mnist_cnn": (28, 28, 1), "cifar_cnn": (32, 32, 3), "resnet20": (32, 32, 3)}
POOL, CLASSES = 4096, 10


def arguments(modes):
    p = argparse.ArgumentParser()
    p.add_argument("--model", required=True, choices=SHAPE)
    p.add_argument("--mode", default=modes[0], choices=modes)
    p.add_argument("--batch", type=int, default=128)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--seconds", type=float, default=5)
    return p.parse_args()


def samples(model):
    """Random pictures [POOL, height, width, channels], labelled by a random linear teacher."""
    import numpy as np
    r = np.random.default_rng(1)
    x = r.random((POOL,) + SHAPE[model], dtype=np.float32)
    teacher = r.standard_normal((x[0].size, CLASSES)).astype(np.float32)
    return x, ((x.reshape(POOL, -1) - 0.5) @ teacher).argmax(1)


def peak_mb():
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmHWM")) // 1024


def measure(a, peer, version, begin, step, steps_of_call=1):
    """step() does steps_of_call training steps and returns when they are done; print how fast."""
    step()
    first = time.perf_counter() - begin
    for _ in range(max(1, 10 // steps_of_call)):
        step()
    times, start = [], time.perf_counter()
    while not times or time.perf_counter() - start < a.seconds:
        t = time.perf_counter()
        step()
        times.append((time.perf_counter() - t) / steps_of_call)
    total = time.perf_counter() - start
    print(json.dumps({"peer": peer + " " + a.mode, "model": a.model, "batch": a.batch, "threads": a.threads, "replicas": 1,
                      "samples_per_s": round(a.batch * steps_of_call * len(times) / total, 1),
                      "step_ms_median": round(1e3 * statistics.median(times), 4), "peak_rss_mb": peak_mb(),
                      "to_first_step_s": round(first, 2), "version": version}))
