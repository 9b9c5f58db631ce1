#!/bin/sh
# jobs.sh - what examples/job.h promises: a run that is killed, stopped or damaged at any moment and started again ends with
# the bits of one that was never interrupted; its directory can be read at any time. Needs POSIX's tools; python3 for JSON.
. "$(dirname "$0")/lib.sh"
: "${KILLS:=2}" "${PYTHON:=python3}"
cd "$scratch" || exit 1
$CC $CFLAGS "$root/examples/job.c" -o job $LDFLAGS $LDLIBS || { echo "jobs: job.c does not build"; exit 1; }
run="./job --epochs 12 --replicas 2 --quiet"

wait_for() {  # FILE: until it is there, ten seconds at most
    i=0
    while ! ls $1 >/dev/null 2>&1; do i=$((i + 1)); [ $i -le 200 ] || return 1; sleep 0.05; done
}
fraction() { od -An -N2 -tu2 /dev/urandom | awk -v most="$1" '{ printf "%.3f\n", 0.01 + $1 / 65536 * most }'; }

# FOLDER FLAGS…: kill -9 at random moments, KILLS times or until it has finished, then let it finish.
killed() {
    dir=$1
    shift
    for kill in $(seq "$KILLS"); do
        [ ! -e "$dir/export/model.safetensors" ] || break
        $run --job-dir "$dir" --checkpoint-every 7 "$@" >"$dir.log" 2>&1 &
        sleep "$(fraction 0.6)"
        kill -9 $!
        pkill -9 -f "job-dir $dir " 2>/dev/null || sleep 0.5  # who was started by it ends with it
        wait $! 2>/dev/null
    done
    $run --job-dir "$dir" --checkpoint-every 7 "$@"
}
same_bits() {  # FOLDER FLAGS…
    dir=$1
    shift
    $run --job-dir "$dir.whole" "$@" && killed "$dir" "$@" && cmp "$dir.whole/export/model.safetensors" "$dir/export/model.safetensors" || return 1
    [ -z "$(ls "$dir/checkpoints" | grep tmp)" ] && [ "$(ls "$dir/checkpoints" | grep -c step-)" = 3 ] || { ls "$dir/checkpoints"; return 1; }
}
check "killed at random moments, the same bits" same_bits one
check "two processes killed at random moments, the same bits" same_bits two --workers 1 --replicas 1
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
    [ $? = 1 ] && grep -q "is of another run: batch was 64 there, is 32 here" said && diff -r before/checkpoints other/checkpoints | grep -v notes.txt && return 1
    grep -q '"state": "FAILED".*another run' other/status.json || { cat other/status.json; return 1; }
    $run --job-dir other --batch 32 --steps 20 --fresh 1 && [ "$(cat other/checkpoints/notes.txt)" = mine ] && [ "$(ls other/checkpoints | grep -c step-)" = 1 ]
}
check "another run is refused, --fresh begins anew" other_run

finished() {
    $run --job-dir done --epochs 2 && ./job --job-dir done --epochs 2 >said && grep "the job has finished" said && $run --job-dir done --job-id x --epochs 2
}
check "a finished job says so" finished

refuses() {  # STATUS TEXT FLAGS…
    want=$1 text=$2
    shift 2
    ./job "$@" >said 2>&1
    [ $? = "$want" ] && grep -q -e "$text" said || { cat said; return 1; }
}
check "a directory that cannot be" refuses 1 'cannot be made' --job-dir /proc/none
check "a bad id" refuses 64 'letters, digits and _' --job-dir ids --job-id 9lives
check "a bad number" refuses 64 'keep is "some"' --job-dir ids --keep some
check "no checkpoint at all" refuses 64 'keep is 0' --job-dir ids --keep 0

limited() {  # files may have 100 KB: saves fail and are told, training goes on, what was there stays
    $run --job-dir small --steps 30 && rm small/export/model.safetensors && cp small/checkpoints/step-30.safetensors kept || return 1
    (ulimit -f 100; trap '' XFSZ; $run --job-dir small --epochs 3 2>said)
    grep -q "training goes on without this checkpoint" said && cmp kept small/checkpoints/step-30.safetensors
}
check "a disk that is full" limited

commands() {  # submit in the background, look at it, end it, submit again, compare
    id=$(./job submit --job-dir far --epochs 4000 --replicas 2) && [ -n "$id" ] || return 1
    wait_for "far/checkpoints/step-*" && ./job status --job-dir far | grep "\"id\": \"$id\"" | grep -E 'RUNNING|PREPARING' || return 1
    timeout 20 ./job status --job-dir far --follow >followed & follower=$!
    sleep 1.5
    ./job cancel --job-dir far | grep "told process" && wait $follower && [ "$(grep -c RUNNING followed)" -ge 1 ] && tail -n 1 followed | grep CANCELLED || return 1
    ./job cancel --job-dir far 2>&1 | grep "does not run (CANCELLED" || return 1
    ./job list far one | tee said
    [ "$(grep -c -E "^$id +CANCELLED +[0-9]+ |^job_[0-9_]+ +SUCCEEDED +276 " said)" = 2 ] && grep -q "strategy mirrored" far/logs/chief.log || return 1
    [ "$(./job submit --job-dir far --epochs 4000 --replicas 2)" = "$id" ] && ./job cancel --job-dir far  # it keeps its name
}
check "submit, status, cancel, list" commands
check "status of no job" refuses 1 "is no job's directory" status --job-dir nowhere
check "a command without its directory" refuses 64 "which job" cancel
shown() {  # by HTTP while it runs; what is no request is turned away, and a silent client holds nobody up for long
    port=$((22000 + $$ % 20000))
    ./job --job-dir web --epochs 4000 --replicas 1 --status-port $port >web.log 2>&1 & job=$!
    wait_for "web/checkpoints/step-*" && "$PYTHON" - $port <<'PY'
import json, socket, sys, time, urllib.error, urllib.request
port = int(sys.argv[1])
def get(path): return urllib.request.urlopen("http://127.0.0.1:%d%s" % (port, path), timeout=10).read().decode()
status = json.loads(get("/status"))
assert status["state"] == "RUNNING" and status["steps"] == 92000, status
lines = get("/metrics").splitlines()
assert "dtrain_up 1" in lines and all(l.startswith(("# TYPE dtrain_", "# HELP dtrain_")) or len(l.split()) == 2 and float(l.split()[1]) == float(l.split()[1]) for l in lines), lines
assert get("/healthz") == "ok\n" and "<canvas" in get("/") and get("/metrics.csv").startswith("step,epoch,loss")
silent = socket.create_connection(("127.0.0.1", port))
begin = time.time()
assert get("/healthz") == "ok\n" and time.time() - begin < 5
silent.close()
for text in (b"POST /status HTTP/1.0\r\n\r\n", b"GET /../../etc/passwd HTTP/1.0\r\n\r\n", b"\0" * 9000 + b"\r\n\r\n"):
    s = socket.create_connection(("127.0.0.1", port))
    s.settimeout(10)
    s.sendall(text)
    try: answer = s.recv(100)
    except ConnectionResetError: answer = b""
    assert not answer or answer.startswith((b"HTTP/1.0 404", b"HTTP/1.0 400")), answer
PY
    code=$?
    if [ $code = 0 ] && command -v promtool >/dev/null && command -v curl >/dev/null; then curl -s "http://127.0.0.1:$port/metrics" | promtool check metrics || code=1; fi
    kill -TERM $job
    wait $job
    [ $? = 143 ] && return $code
}
if "$PYTHON" -c 'import json' 2>/dev/null; then check "the status port" shown; else skip "the status port" "no $PYTHON"; fi
documents() {
    "$PYTHON" - <<'PY'
import csv, json
status, job = json.load(open("one/status.json")), json.load(open("one/job.json"))
assert status["state"] == "SUCCEEDED" and status["step"] == status["steps"] == 276 and status["id"] == job["id"], status
assert job["command"][0] == "./job" and "--job-dir" in job["command"], job
rows = list(csv.DictReader(open("one/metrics.csv")))
assert [int(r["epoch"]) for r in rows] == list(range(1, 13)), rows   # each once, though it was killed
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
    assert steps == list(range(23, 277, 23)), steps
PY
}
if "$PYTHON" -c 'import tensorboard' 2>/dev/null; then check "TensorBoard reads the curves" events; else skip "TensorBoard" "no $PYTHON with tensorboard"; fi
finish
