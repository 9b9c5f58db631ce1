#!/bin/sh
# jobs.sh - what examples/job.h promises: a run that is killed, stopped or damaged at any moment and started again ends with
# the bits of one that was never interrupted; its directory can be read at any time. Needs POSIX's tools; python3 for JSON.
. "$(dirname "$0")/lib.sh"
: "${KILLS:=2}" "${PYTHON:=python3}"
cd "$scratch" || exit 1
program job job || { echo "jobs: job.c does not build"; exit 1; }
run="./job --epochs 8 --replicas 2 --quiet"

wait_for() {  # FILE: until it is there, ten seconds at most
    i=0
    while ! ls $1 >/dev/null 2>&1; do i=$((i + 1)); [ $i -le 200 ] || return 1; sleep 0.05; done
}
fraction() { od -An -N2 -tu2 /dev/urandom | awk -v most="$1" '{ printf "%.3f\n", 0.01 + $1 / 65536 * most }'; }

# FOLDER FLAGS…: kill -9 at random moments, KILLS times, then let it finish. One that has finished before gave the right bits, and begins anew.
killed() {
    dir=$1 torn=0 finished=0
    shift
    for kill in $(seq "$KILLS"); do
        if [ -e "$dir/export/model.safetensors" ]; then
            finished=$((finished + 1))
            [ ! -e "$dir.whole" ] || cmp "$dir.whole/export/model.safetensors" "$dir/export/model.safetensors" || return 1
            rm -rf "$dir"
        fi
        $run --job-dir "$PWD/$dir" --checkpoint-every 7 "$@" >"$dir.log" 2>&1 &
        sleep "$(fraction 0.5)"
        kill -9 $!
        pkill -9 -f "job-dir $PWD/$dir " 2>/dev/null || sleep 0.5  # who was started by it ends with it
        wait $! 2>/dev/null
        ! ls "$dir"/checkpoints/*.tmp >/dev/null 2>&1 || torn=$((torn + 1))
    done
    $run --job-dir "$dir" --checkpoint-every 7 "$@" || return 1
    echo "$KILLS kills, $torn of them while a checkpoint was written; $((finished + 1)) runs finished" | tee "$dir.kills"
}
same_bits() {  # FOLDER FLAGS…
    dir=$1
    shift
    $run --job-dir "$dir.whole" "$@" && killed "$dir" "$@" && cmp "$dir.whole/export/model.safetensors" "$dir/export/model.safetensors" || return 1
    [ -z "$(ls "$dir/checkpoints" | grep tmp)" ] && [ "$(ls "$dir/checkpoints" | grep -c step-)" = 3 ] || { ls "$dir/checkpoints"; return 1; }
}
check "killed at random moments, the same bits" same_bits one
check "two processes killed at random moments, the same bits" same_bits two --workers 1 --replicas 1
[ "$KILLS" -lt 20 ] || cat one.kills two.kills
check "two processes with a server, synchronous, killed: it ends" killed served --workers 1 --ps 1 --sync --replicas 1

stopped() {  # SIGTERM: the step ends, is saved; 143; CANCELLED; and on it goes
    $run --job-dir term --epochs 400 &
    wait_for "term/checkpoints/step-*" || return 1
    kill -TERM $!
    wait $!
    [ $? = 143 ] || return 1
    grep -q '"state": "CANCELLED"' term/status.json || { cat term/status.json; return 1; }
    step=$(ls term/checkpoints | sed -n 's/step-\([0-9]*\).*/\1/p' | sort -n | tail -n 1)
    ./job --job-dir term --epochs 400 --replicas 2 >said & wait_for "said" && sleep 0.5; kill -TERM $!; wait $!
    grep "goes on from step $step of term" said
}
check "SIGTERM: saved at the step's end, 143" stopped

damaged() {  # a byte of the newest, then the end of the one before: the third is taken, both are told
    $run --job-dir harm --epochs 4 && cp harm/export/model.safetensors right && rm harm/export/model.safetensors || return 1
    set -- $(ls harm/checkpoints/step-* | sort -t- -k2 -n -r)
    printf 'x' | dd of="$1" bs=1 seek=30000 conv=notrunc 2>/dev/null
    head -c 20000 "$2" >cut && mv cut "$2"
    $run --job-dir harm --epochs 4 2>said; code=$?
    cat said
    [ $code = 0 ] && [ "$(grep -c 'going back to the checkpoint before' said)" = 2 ] && grep -q 'is damaged (crc32c' said && cmp harm/export/model.safetensors right
}
check "damaged checkpoints: the one before" damaged

other_run() {  # another batch: refused, nothing lost; --fresh begins anew, and removes what it wrote alone
    $run --job-dir other --steps 30 && rm other/export/model.safetensors && cp -r other before && echo mine >other/checkpoints/notes.txt || return 1
    $run --job-dir other --batch 32 >said 2>&1
    [ $? = 1 ] && grep -q "is of another run: batch was 64 there, is 32 here" said || { cat said; return 1; }
    diff -r before/checkpoints other/checkpoints | grep -v notes.txt && return 1
    $run --job-dir other --optimizer sgd >said 2>&1
    grep -q "is of another run: optimizer was adam there, is sgd here" said || { cat said; return 1; }
    grep -q '"state": "FAILED".*another run' other/status.json || { cat other/status.json; return 1; }
    $run --job-dir other --batch 32 --steps 20 --fresh && [ "$(cat other/checkpoints/notes.txt)" = mine ] && [ "$(ls other/checkpoints | grep -c step-)" = 1 ]
}
check "another run is refused, --fresh begins anew" other_run

refuses() {  # STATUS TEXT FLAGS…
    want=$1 text=$2
    shift 2
    ./job "$@" >said 2>&1
    [ $? = "$want" ] && grep -q -e "$text" said || { cat said; return 1; }
}
finished() {
    $run --job-dir done --epochs 2 && ./job --job-dir done --epochs 2 >said && grep "the job has finished" said && refuses 64 "is the directory of job_" --job-dir done --job-id x --epochs 2
}
check "a finished job says so" finished

check "a directory that cannot be" refuses 1 'cannot be made' --job-dir /proc/none
check "a bad id" refuses 64 'letters, digits and _' --job-dir ids --job-id 9lives
check "a bad number" refuses 64 'keep is "some"' --job-dir ids --keep some
check "no checkpoint at all" refuses 64 'keep is 0' --job-dir ids --keep 0

idle() { $run --job-dir idle --epochs 1 --sync --wire bf16 2>said && grep -e "--sync.* nothing: there are no parameter servers" said && grep -e "--wire does nothing" said; }
check "flags that do nothing are told" idle

limited() {  # files may have 100 KB: saves fail and are told, training goes on, what was there stays; a job without its result has failed
    $run --job-dir small --steps 30 && rm small/export/model.safetensors && cp small/checkpoints/step-30.safetensors kept || return 1
    (ulimit -f 100; $run --job-dir small --epochs 3 2>said)
    [ $? = 1 ] && ./job status --job-dir small | grep FAILED && [ ! -e small/export/model.safetensors ] &&
        grep -q "training goes on without this checkpoint" said && cmp kept small/checkpoints/step-30.safetensors
}
check "a disk that is full" limited

commands() {  # submit in the background, look at it, end it, submit again, compare
    id=$(./job submit --job-dir far --epochs 4000 --replicas 2) && [ -n "$id" ] || return 1
    wait_for "far/checkpoints/step-*" && ./job status --job-dir far | grep "\"id\": \"$id\"" | grep -E 'RUNNING|PREPARING' || return 1
    timeout 20 ./job status --job-dir far --follow >followed & follower=$!
    sleep 1.5
    ./job cancel --job-dir far | grep "told process" && wait $follower && [ "$(grep -c RUNNING followed)" -ge 1 ] && tail -n 1 followed | grep CANCELLED || return 1
    ./job cancel --job-dir far 2>&1 | grep "does not run on this machine (CANCELLED" || return 1
    ./job list far one | tee said
    [ "$(grep -c -E "^$id +CANCELLED +mirrored +64 +adam +[-] +[0-9]+ |^job_[0-9_]+ +SUCCEEDED +mirrored +64 +adam +[-] +184 " said)" = 2 ] && grep -q "strategy mirrored" far/logs/chief.log || return 1
    [ "$(./job submit --job-dir far --epochs 4000 --replicas 2)" = "$id" ] && ./job cancel --job-dir far  # it keeps its name
}
check "submit, status, cancel, list" commands
gone() {  # killed: status.json says RUNNING, and cancel must not signal whoever has that number now
    ./job --job-dir lost --epochs 4000 --quiet & job=$!
    wait_for "lost/checkpoints/step-*" || return 1
    kill -9 $job
    wait $job 2>/dev/null
    sed -i "s/\"pid\": [0-9]*/\"pid\": $$/" lost/status.json
    ./job status --job-dir lost 2>said | grep '"state": "RUNNING"' && grep "no process of it runs" said && refuses 1 "does not run on this machine" cancel --job-dir lost
}
check "a job whose process is gone" gone
check "status of no job" refuses 1 "is no job's directory" status --job-dir nowhere
check "a command without its directory" refuses 64 "which job" cancel
shown() {  # by HTTP while it runs; tests/status.c has the clients that behave badly
    port=$a_port
    ./job --job-dir web --epochs 4000 --replicas 1 --status-port $port >web.log 2>&1 & job=$!
    wait_for "web/checkpoints/step-*" && "$PYTHON" - $port <<'PY'
import json, sys, urllib.request
port = int(sys.argv[1])
def get(path): return urllib.request.urlopen("http://127.0.0.1:%d%s" % (port, path), timeout=10).read().decode()
status = json.loads(get("/status"))
assert status["state"] == "RUNNING" and status["steps"] == 92000, status
lines = get("/metrics").splitlines()
assert "dtrain_up 1" in lines and all(l.startswith(("# TYPE dtrain_", "# HELP dtrain_")) or float(l.rsplit(" ", 1)[1]) == float(l.rsplit(" ", 1)[1]) for l in lines), lines
assert get("/healthz") == "ok\n" and get("/").startswith("<!doctype html>") and get("/metrics.csv").startswith("step,epoch,loss")
assert [r["task"] for r in json.loads(get("/ranks"))] == ["chief"], get("/ranks")
PY
    code=$?
    if [ $code = 0 ] && command -v promtool >/dev/null && command -v curl >/dev/null; then curl -s "http://127.0.0.1:$port/metrics" | promtool check metrics || code=1; fi
    kill -TERM $job
    wait $job
    [ $? = 143 ] && return $code
}
servers_shown() {  # server i on PORT + 1 + i
    port=$((a_port + 5))
    ./job --job-dir webs --epochs 4000 --replicas 1 --workers 1 --ps 2 --status-port $port >webs.log 2>&1 & job=$!
    wait_for "webs/checkpoints/step-*" && sleep 1.2 && "$PYTHON" - $port <<'PY'
import json, sys, urllib.request
port = int(sys.argv[1])
def get(port, path): return json.loads(urllib.request.urlopen("http://127.0.0.1:%d%s" % (port, path), timeout=10).read().decode())
assert get(port, "/status")["strategy"] == "ps"
for i in (0, 1):
    status = get(port + 1 + i, "/status")
    assert status["task"] == "ps %d" % i and status["step"] > 0 and status["values"] > 70000, status
assert [r["task"] for r in get(port, "/ranks")] == ["chief", "worker 1", "ps 0", "ps 1"], get(port, "/ranks")
PY
    code=$?
    kill -TERM $job
    wait $job
    [ $? = 143 ] && return $code
}
if "$PYTHON" -c 'import json' 2>/dev/null; then check "… of parameter servers" servers_shown; else skip "… of parameter servers" "no $PYTHON"; fi
if "$PYTHON" -c 'import json' 2>/dev/null; then check "the status port" shown; else skip "the status port" "no $PYTHON"; fi
documents() {
    "$PYTHON" - <<'PY'
import csv, json
status, job = json.load(open("one/status.json")), json.load(open("one/job.json"))
assert status["state"] == "SUCCEEDED" and status["step"] == status["steps"] == 184 and status["id"] == job["id"], status
assert job["command"][0] == "./job" and "--job-dir" in job["command"] and job["strategy"] == status["strategy"] == "mirrored", job
rows = list(csv.DictReader(open("one/metrics.csv")))
assert [int(r["epoch"]) for r in rows] == list(range(1, 9)), rows   # each once, though it was killed
whole = list(csv.DictReader(open("one.whole/metrics.csv")))
assert [(r["loss"], r["eval_loss"]) for r in rows] == [(r["loss"], r["eval_loss"]) for r in whole]
PY
}
if "$PYTHON" -c 'import json' 2>/dev/null; then check "status, description and curves, without a gap" documents; else skip "status.json" "no $PYTHON"; fi

events() {
    "$PYTHON" - <<'PY'
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
for name in ("one", "one.whole"):
    a = EventAccumulator(name + "/events")
    a.Reload()
    assert "loss/train" in a.Tags()["scalars"] and "loss/eval" in a.Tags()["scalars"], a.Tags()
    steps = [s.step for s in a.Scalars("loss/train")]
    assert steps == list(range(23, 185, 23)), steps
PY
}
if "$PYTHON" -c 'import tensorboard' 2>/dev/null; then check "TensorBoard reads the curves" events; else skip "TensorBoard" "no $PYTHON with tensorboard"; fi

# ---- the optimizer's moments under every strategy

values() { tail -c 1800000 "$1"; }  # of a checkpoint of job.c, moments included; what is in front says how many processes there were
other_strategy() {  # FIRST SECOND: begun with the flags of the first, killed, gone on with those of the second: one run's bits
    rm -rf across
    ./job --epochs 8 --quiet --job-dir "$PWD/across" --checkpoint-every 7 $1 >across.log 2>&1 &
    wait_for "across/checkpoints/step-*" && sleep "$(fraction 0.5)"
    kill -9 $!
    pkill -9 -f "job-dir $PWD/across " 2>/dev/null
    wait $! 2>/dev/null
    sleep 0.3
    ./job --epochs 8 --job-dir across --checkpoint-every 7 $2 >said || return 1
    cat said
    grep -q "goes on from step" said || { grep -q "has finished" said && return 0; }  # too fast for this machine's kill
    cmp one.whole/export/model.safetensors across/export/model.safetensors && values one.whole/checkpoints/step-184.safetensors >a && values across/checkpoints/step-184.safetensors >b && cmp a b
}
check "from two servers to two replicas" other_strategy "--replicas 1 --workers 1 --ps 2 --sync" "--replicas 2"
check "from two replicas to a server" other_strategy "--replicas 2" "--replicas 1 --workers 1 --ps 1 --sync"
check "from two processes to two servers" other_strategy "--replicas 1 --workers 1" "--replicas 1 --workers 1 --ps 2 --sync"
fewer() {  # one replica instead of two: every sample once, and it says that the bits may differ
    rm -rf fewer
    $run --job-dir fewer & job=$!
    wait_for "fewer/checkpoints/step-*" && kill -TERM $job
    wait $job
    ./job --epochs 8 --job-dir fewer --replicas 1 >said || return 1
    cat said
    grep -q "was saved by 2 replicas in 1 process, here are 1 in 1: every sample once" said && [ "$(awk -F, 'NR > 1 { print $1 }' fewer/metrics.csv | tr '\n' ' ')" = "$(awk -F, 'NR > 1 { print $1 }' one.whole/metrics.csv | tr '\n' ' ')" ] &&
        awk -F, 'END { exit !($5 < 0.15) }' fewer/metrics.csv
}
check "another number of replicas: told, and every sample once" fewer
asynchronous() {  # begun with asynchronous servers, killed, gone on: every epoch once, and it learns
    rm -rf loose
    ./job --epochs 8 --quiet --job-dir "$PWD/loose" --replicas 1 --workers 1 --ps 2 >loose.log 2>&1 &
    wait_for "loose/checkpoints/step-*" && sleep "$(fraction 0.3)"
    kill -9 $!
    pkill -9 -f "job-dir $PWD/loose " 2>/dev/null
    wait $! 2>/dev/null
    sleep 0.3
    ./job --epochs 8 --quiet --job-dir loose --replicas 1 --workers 1 --ps 2 || return 1
    cat loose/metrics.csv
    [ "$(awk -F, 'NR > 1 { print $1 "," $2 }' loose/metrics.csv | tr '\n' ' ')" = "$(awk -F, 'NR > 1 { print $1 "," $2 }' one.whole/metrics.csv | tr '\n' ' ')" ] &&
        awk -F, 'END { exit !($5 < 0.4) }' loose/metrics.csv && ls loose/tasks loose/logs
}
check "asynchronous servers, killed: every epoch once" asynchronous
check "… a log and a line in the table for each task" eval 'for t in chief worker-1 ps-0 ps-1; do [ -s loose/tasks/$t.json ] && grep -q begins loose/logs/$t.log || exit 1; done'

# ---- other processes that look on

evaluated() {  # beside the run, each checkpoint once; again: nothing new; the numbers are those of the run's own evaluation
    rm -rf seen
    ./job evaluate --job-dir seen >evaluator.out 2>&1 & evaluator=$!
    $run --job-dir seen --keep 100 || return 1
    wait $evaluator || return 1
    cat evaluator.out
    ./job evaluate --job-dir seen --quiet || return 1
    TF_CONFIG='{"cluster": {"chief": ["a:1"], "worker": ["b:1"]}, "task": {"type": "evaluator", "index": 0}}' ./job --job-dir seen --quiet || return 1
    awk -F, 'NR > 1 { print $1 "," $5 "," $6 }' seen/metrics.csv >mine
    awk -F, 'NR > 1 { print $1 "," $3 "," $4 }' seen/evaluator.csv >theirs
    paste -d, mine theirs
    paste -d, mine theirs | awk -F, '$1 != $4 || $2 - $5 > 1e-6 || $5 - $2 > 1e-6 || $3 != $6 { bad = 1 } END { exit bad || NR != 8 }'
}
check "an evaluator beside the run" evaluated
check "an evaluator needs a job" refuses 64 "which job" evaluate
alone() {  # one run to a directory
    ./job --job-dir both --epochs 4000 --replicas 1 --quiet & job=$!
    wait_for "both/checkpoints/step-*"
    kill -STOP $job  # it need not compute meanwhile: the other tries for three seconds
    refuses 78 "another run works in" --job-dir both
    code=$?
    kill -CONT $job
    kill -TERM $job
    wait $job
    return $code
}
check "a second run in one directory" alone

# ---- before it begins, and behind its end

exports() { [ -s one/export/model.onnx ] && $CC -c -O1 one/export/model.c -o exported.o; }
check "a finished job leaves ONNX and C" exports
begun_from() {  # another job's best weights: the first epoch begins where that one was
    $run --job-dir heir --init-from one --epochs 1 && awk -F, 'NR == 2 { exit !($3 < 0.4) }' heir/metrics.csv
}
check "begins from another job's weights" begun_from
check "… which must be there" refuses 64 "holds no weights of a job" --job-dir heir2 --init-from nowhere
planned() {
    ./job --plan --batch 64 --epochs 3 --replicas 2 --job-dir plan >said || return 1
    cat said
    [ ! -e plan ] && grep -q "steps *69 .*64 samples; 23 an epoch" said && grep -q "^checkpoint *1.8 MB  3 are kept" said && grep -q "^memory" said || return 1
    ./job --plan --workers 1 --ps 2 --replicas 1 | tee said
    grep -q "^strategy ps, 2 processes of 1 replica, 2 parameter servers" said && grep -q "^network *0.6 MB  out of each process, and 0.6 MB into it" said
}
check "--plan: memory, bytes a step, bytes of a checkpoint" planned
configured() {
    cat >config.json <<'JSON'
{"jobId": "by_config", "trainingInput": {"scaleTier": "CUSTOM", "workerCount": "1", "parameterServerCount": "0", "region": "us-central1",
 "args": ["--epochs", "2", "--replicas", "1"], "jobDir": "configured"}}
JSON
    ./job --config config.json --quiet 2>said || return 1
    cat said configured/job.json
    grep -q '"region" is not used here' said && grep -q '"id": "by_config"' configured/job.json && grep -q '"processes": 2, "replicas": 1' configured/status.json && [ "$(wc -l <configured/metrics.csv)" = 3 ]
}
check "--config: the platform's fields" configured
for slip in '{"workerCuont": 1}|no field of' '{"args": ["--epochs" 3]}|expected' '{"trainingInput": {"scaleTier": "BASIC_GPU"}}|dtrain computes on CPUs' '{"hyperparameters": {}}|tuning is not here' '{}{}|behind the end' '|is empty'; do
    printf '%s' "${slip%|*}" >slip.json
    check "… refuses ${slip%|*}" refuses 64 "${slip#*|}" --config slip.json
done
check "--best by something else" refuses 64 'best is "fun"' --job-dir ids --best fun
looked_into() {  # histograms and a trace
    rm -rf deep
    $run --job-dir deep --epochs 2 --histograms --trace 5 --best eval_accuracy || return 1
    "$PYTHON" - <<'PY'
import json
trace = json.load(open("deep/trace/chief.json"))["traceEvents"]
spans = [e for e in trace if e["ph"] == "X"]
names = {(e["tid"], e["name"], e["cat"]) for e in spans}
for replica in (0, 1):
    for name, cat in (("conv2d_1", "forward"), ("conv2d_1", "backward"), ("data", "step"), ("reduce", "step"), ("update", "step"), ("logits", "forward")): assert (replica, name, cat) in names, (replica, name, cat)
assert {e["args"]["step"] for e in spans} == set(range(5)) and all(e["dur"] >= 0 for e in spans)
for replica in (0, 1):   # one thing at a time on each replica
    row = sorted((e["ts"], e["ts"] + e["dur"]) for e in spans if e["tid"] == replica)
    assert all(a[1] <= b[0] + 0.002 for a, b in zip(row, row[1:]))
best = json.load(open("deep/checkpoints/best.json"))
assert -1 <= best["value"] < -0.5, best
PY
}
if "$PYTHON" -c 'import json' 2>/dev/null; then check "histograms, a trace, the best by accuracy" looked_into; else skip "histograms and a trace" "no $PYTHON"; fi
deep_events() {
    "$PYTHON" - <<'PY'
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
a = EventAccumulator("deep/events", size_guidance={"tensors": 0})
a.Reload()
tags = a.Tags()["tensors"]
for tag in ("weights/conv2d_1.weight", "gradients/logits.bias"): assert tag in tags, tags
assert [t.step for t in a.Tensors("weights/logits.weight")] == [23, 46] and [t.step for t in a.Tensors("gradients/logits.weight")] == [1, 24]
assert any("job" in t for t in tags), tags
PY
}
if "$PYTHON" -c 'import tensorboard' 2>/dev/null; then check "TensorBoard reads histograms" deep_events; else skip "TensorBoard's histograms" "no $PYTHON with tensorboard"; fi
finish
