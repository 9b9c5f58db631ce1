#!/bin/sh
# examples.sh - every example builds with its one cc line and no warning; those that need no data run. Fuzz targets compile.
. "$(dirname "$0")/lib.sh"

build() {  # SOURCE: the line that its header comment gives, and -Wall and so on
    name=$(basename "${1%.*}")
    case $1 in *.cpp) compiler="$CXX" ;; */mpi.c) compiler=mpicc ;; *) compiler="$CC" ;; esac
    case $1 in examples/*) grep -q "^// Build:   [a-z+]* -O2 $1 -o $name -lm -pthread" "$1" || { echo "$1 does not name its build line"; return 1; } ;; esac
    case $name in
    xor) $compiler -O0 -Wall -Wextra -Wpedantic -Werror "$1" -o "$scratch/$name" $LDFLAGS $LDLIBS ;;
    digits | models) user "$1" "$scratch/$name" -Wall -Wextra -Wpedantic -Werror ;;
    train) program train "$scratch/train" && { [ -z "$BUILT" ] || ! grep . "$BUILT/programs/train.said"; } ;;
    *) $compiler -fsyntax-only -Wall -Wextra -Wpedantic -Werror "$1" ;;  # `make examples` links them
    esac
}

for source in examples/*.c examples/*.cpp bench/*.c tests/fuzz/*.c; do
    [ -f "$source" ] || continue
    case $source in
    *.cpp) command -v $CXX >/dev/null || { skip "$source" "no C++ compiler"; continue; } ;;
    */mpi.c) echo '#include <mpi.h>' | mpicc -E - >/dev/null 2>&1 || { skip "$source" "no mpicc"; continue; } ;;
    esac
    check "$source builds" build "$source"
done
cd "$scratch" || exit 1

says() {  # STATUS TEXT COMMAND…: ends with that status, and what it prints holds the text
    wanted=$1 text=$2
    shift 2
    "$@" >said 2>&1
    status=$?
    cat said
    [ "$status" = "$wanted" ] && grep -qF -- "$text" said
}
check "xor learns" says 0 "1 xor 1 = 0.0" ./xor
text_of() { size "$1" | awk 'NR == 2 { print $1 }'; }
small() {  # of the operations, xor holds those it calls. Static: three fifths of digits' code at most; in sections: three quarters of its own
    $CC $TEST_CFLAGS -DDTRAIN_STATIC "$root/examples/xor.c" -o xor-static $LDLIBS &&
        $CC -O0 -ffunction-sections -fdata-sections -Wl,--gc-sections "$root/examples/xor.c" -o xor-sections $LDLIBS || return 1
    nm xor | grep -q ' dt__conv_forward$' || { echo "the whole library has no dt__conv_forward: look for another name"; return 1; }
    for program in xor-static xor-sections; do
        text=$(text_of $program)
        [ $program = xor-static ] && most=$(($(text_of digits) * 3 / 5)) || most=$(($(text_of xor) * 3 / 4))
        echo "$program: $text bytes of code, $most at most"
        [ "$text" -lt $most ] || return 1
        nm $program | grep -E ' dt__(conv|embedding|maxpool|batchnorm|layernorm|dropout|concat|slice)_(forward|backward|shape)$' && return 1
        nm $program | grep -q ' dt__dense_forward$' || return 1
    done
}
if command -v nm >/dev/null && command -v size >/dev/null && $CC --version 2>/dev/null | grep -qi -e gcc -e clang -e 'Free Software'; then
    check "xor links only what it uses" small
else
    skip "xor links only what it uses" "no nm and size, or a compiler that keeps everything"
fi
accurate() {  # at least 97 of 100 digits that it has never seen
    ./digits --json --quiet >said || return 1
    cat said
    tail -n 1 said | sed 's/.*"eval_accuracy": *\([0-9.]*\).*/\1/' | awk '{ exit !($1 >= 0.97) }'
}
check "digits reaches 97 %" accurate
check "digits saves its weights" test -s digits.safetensors
exported() {  # a program of its own, with no header of ours
    ./train --data digits --model mlp --epochs 2 --quiet --export-c net.c || return 1
    printf '#include "net.c"\nint main(void) { static float x[net_x_size], y[net_y_size]; net_predict(x, y); return !(y[0] == y[0]); }\n' >board.c
    $CC -std=c99 -Wall -Wextra -Werror board.c -o board -lm && ./board
}
check "digits as one C file" exported

for model in linear mlp cnn cifar resnet20; do
    check "train --model $model" says 0 '"status": "succeeded"' ./train --data synthetic:12x12x2:3:60 --model $model --steps 2 --batch 7 --replicas 2 --json --quiet
done
together() {  # 4 threads, 2 processes of 2 and 4 processes end with the same bits, and one chief speaks
    for layout in "--replicas 4" "--replicas 2 --workers 1" "--replicas 1 --workers 3"; do
        ./train --data digits --model mlp --epochs 2 $layout --json --quiet >said || return 1
        tail -n 1 said | sed 's/.*"processes": *\([0-9]*\).*"parameters_crc32c": *\([0-9]*\).*/\1 \2/'
    done >layouts
    cat layouts
    [ "$(cut -d ' ' -f 1 layouts | tr '\n' ' ')" = "1 2 4 " ] && [ "$(cut -d ' ' -f 2 layouts | sort -u | wc -l)" -eq 1 ]
}
check "processes and threads end with the same bits" together
check "workers speak behind their names" says 0 "[chief] epoch 1/1" ./train --data digits --model mlp --workers 1 --replicas 1
served() {  # FLAGS…: parameter servers speak behind their names, the chief has the last word
    ./train --data digits --model mlp --epochs 1 --replicas 1 --json "$@" >said 2>&1 || { cat said; return 1; }
    cat said
    tail -n 1 said | grep -q '^{"status": "succeeded", "strategy": "ps", ' && grep -q '^\[chief\] epoch 1/1' said && grep -q '^\[ps 0\] .* updates of ' said
}
check "a worker and two parameter servers" served --workers 1 --ps 2
check "… together" served --workers 1 --ps 2 --sync
check "… are as many as asked for" grep -q '^\[ps 1\]' "$scratch/said"
check "one parameter server, no worker but the chief" served --ps 1
check "a whole tier" served --tier standard_1
check "… of five processes and three servers" eval 'grep -q "^.ps 2. " "$scratch/said" && tail -n 1 "$scratch/said" | grep -q "\"processes\": 5, "'
exact() {  # the bits of a direct exchange
    for layout in "--workers 2" "--workers 2 --ps 1 --sync" "--workers 2 --ps 3 --sync"; do
        ./train --data digits --model mlp --epochs 2 --replicas 1 $layout --json --quiet >said || return 1
        tail -n 1 said | sed 's/.*"train_loss": *\([0-9.]*\).*"parameters_crc32c": *\([0-9]*\).*/\1 \2/'
    done >layouts
    cat layouts
    [ "$(sort -u layouts | wc -l)" -eq 1 ]
}
check "parameter servers end with the bits of a direct exchange" exact
stopped() {  # by a signal in the middle: all end, and the chief saves
    rm -f stopped.safetensors said  # what the last one said must not be read as this one's
    ./train --data digits --model mlp --epochs 1000000 --replicas 1 --workers 1 "$@" --save stopped.safetensors >said 2>&1 &
    job=$!
    for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do ! grep -qs 'epoch 2/' said || break; sleep 1; done
    kill -TERM $job
    wait $job
    status=$?
    head -n 20 said
    echo "status $status"
    [ $status = 143 ] && [ -s stopped.safetensors ]
}
check "a signal ends workers, and the chief saves" stopped
check "a signal ends workers and servers, and the chief saves" stopped --ps 1
check "… together" stopped --ps 2 --sync
deaf() { (trap '' CHLD && ./train --data digits --model mlp --workers 1 --load nothing.safetensors --quiet 2>said); [ $? = 1 ] && grep nothing.safetensors said; }
check "whoever ignores the ends of children learns of failure, too" deaf
mute() { timeout 60 ./train --data digits --model mlp --epochs 1 --workers 1 2>&- && timeout 60 ./train --data digits --model mlp --epochs 1 --workers 1 --quiet >&-; }
check "workers where an output is closed" mute
check "train refuses more servers than there may be" says 78 "--ps 5000: give at most" ./train --ps 5000
check "train has no tier of that name" says 64 "standard_1" ./train --tier huge
check "train has no other kinds of cores" says 64 "dtrain computes on CPUs" ./train --tier BASIC_TPU
check "a strategy of parameter servers needs some" says 64 "there are no parameter servers" ./train --data digits --model mlp --strategy ps
check "train finds its role as a parameter server" says 0 "role = ps" env DTRAIN_RANK=1 DTRAIN_WORLD=2 DTRAIN_SERVERS=2 DTRAIN_ROLE=ps DTRAIN_CHIEF=127.0.0.1:2222 ./train --print-cluster
check "… and its number" says 0 "rank = 1" env DTRAIN_RANK=1 DTRAIN_WORLD=2 DTRAIN_SERVERS=2 DTRAIN_ROLE=ps DTRAIN_CHIEF=127.0.0.1:2222 ./train --print-cluster
check "train refuses other roles" says 78 'DTRAIN_ROLE is "server"' env DTRAIN_RANK=1 DTRAIN_WORLD=2 DTRAIN_ROLE=server DTRAIN_CHIEF=127.0.0.1:2222 ./train
served_course='{"cluster": {"chief": ["127.0.0.1:2222"], "worker": ["127.0.0.1:2223"], "ps": ["127.0.0.1:2224"]}, "task": {"type": "%s", "index": 0}}'
check "train reads the servers of TF_CONFIG" says 0 "role = ps" env TF_CONFIG="$(printf "$served_course" ps)" ./train --print-cluster
check "… as seen by a worker" says 0 "parameter servers = 1" env TF_CONFIG="$(printf "$served_course" worker)" ./train --print-cluster
check "train starts no servers besides those of TF_CONFIG" says 78 "leave out one of the two" env TF_CONFIG="$(printf "$served_course" worker)" ./train --tier standard_1
course='{"cluster": {"worker": ["127.0.0.1:%d", "127.0.0.1:%d"]}, "task": {"type": "worker", "index": 1}}'
check "train reads TF_CONFIG" says 0 "rank = 1" env TF_CONFIG="$(printf "$course" 2222 2223)" ./train --print-cluster
check "train is an evaluator" says 0 "role = evaluator" env TF_CONFIG="$(printf "$served_course" evaluator)" ./train --print-cluster
check "train names the place of a slip in TF_CONFIG" says 78 "TF_CONFIG, byte" env TF_CONFIG='{"cluster": {"worker": [2222]}}' ./train
$CC $TEST_CFLAGS -DDTRAIN_NO_SOCKETS "$root/examples/digits.c" -o alone $LDFLAGS $LDLIBS
for asked in "env RANK=0 WORLD_SIZE=2 ./alone" "env TF_CONFIG={} ./alone" "./alone --tier standard_1" "./alone --workers 1"; do
    check "without sockets: $asked" says 78 "this build has DTRAIN_NO_SOCKETS" $asked
done
check "without sockets, one process" says 0 '"status": "succeeded"' env RANK=0 WORLD_SIZE=1 ./alone --epochs 1 --json --quiet
check "train misses half of a family" says 78 "WORLD_SIZE is not set" env RANK=1 ./train
check "train on digits" says 0 '"eval_accuracy": 0.9' ./train --data digits --model mlp --epochs 5 --json --quiet
awk 'BEGIN { print "a,b,kind"; for (i = 0; i < 100; i++) print i / 100 "," i % 7 "," (i < 50 ? "low" : "high") }' >table.csv
check "train on a table" says 0 '"status"' ./train --data csv:table.csv --model mlp --epochs 2 --json --quiet
awk 'BEGIN { for (i = 0; i < 100; i++) print i / 100 ";" i % 7 ";" i / 30 + 0.5 }' >numbers.csv
check "train on a table of numbers" says 0 '"status"' ./train --data csv:numbers.csv --model linear --epochs 2 --json --quiet
answers() {  # a line per sample, most of them right
    ./train --data digits --model mlp --epochs 5 --quiet --save mlp.safetensors &&
        ./train predict --data digits --model mlp --load mlp.safetensors --out answers.csv || return 1
    head -n 3 answers.csv
    [ "$(wc -l <answers.csv)" -eq 1798 ] && [ "$(awk -F, '$1 < 10 && $2 == $1' answers.csv | wc -l)" -ge 8 ]
}
check "train predict" answers
if [ -c /dev/full ]; then
    check "train predict: a full disk" says 1 "the answers cannot all be written" ./train predict --data digits --model mlp --load mlp.safetensors --out /dev/full
else
    skip "train predict: a full disk" "no /dev/full"
fi
check "train predict asks for weights" says 64 "Add --load" ./train predict --data digits
awk 'BEGIN { print "a,town,kind"; for (i = 0; i < 90; i++) print i / 100 "," (i % 3 ? "Rome" : "Oslo") "," (i % 3 ? "low" : "high") }' >towns.csv
awk 'BEGIN { print "a,town,kind"; for (i = 0; i < 9; i++) print i / 100 "," (i % 2 ? "Rome" : "Oslo") "," (i % 2 ? "low" : "high") }' >new.csv
table() {  # what a word means is kept with the weights
    ./train --data csv:towns.csv --columns "town onehot, a standardise" --model linear --epochs 60 --learning-rate 0.05 --quiet --save towns.safetensors &&
        ./train predict --data csv:new.csv --model linear --load towns.safetensors >new.out || return 1
    cat new.out
    [ "$(awk -F, 'NR > 1 && $2 == $1 % 2' new.out | wc -l)" -eq 9 ]
}
check "train predict on a table" table
pictures() {  # bright and dark ones, a folder per class
    for i in 0 1 2 3 4 5 6 7 8 9; do
        mkdir -p pictures/bright pictures/dark
        { printf 'P2 4 4 255\n'; awk -v i=$i 'BEGIN { for (k = 0; k < 16; k++) print 200 + (i * 7 + k) % 40 }'; } >pictures/bright/$i.pgm
        { printf 'P2 4 4 255\n'; awk -v i=$i 'BEGIN { for (k = 0; k < 16; k++) print 20 + (i * 7 + k) % 40 }'; } >pictures/dark/$i.pgm
    done
    ./train --data images:pictures --model linear --epochs 100 --learning-rate 0.05 --json --quiet >said && cat said && grep -q '"eval_accuracy": 1,' said
}
check "train on pictures" pictures
check "train --help" says 0 "synthetic:HxWxC:CLASSES:N" ./train --help
check "train refuses unknown data" says 64 "--data minst:x is none of" ./train --data minst:x
check "train refuses broken sizes" says 64 "--data synthetic:8x8:3:10 is none of" ./train --data synthetic:8x8:3:10
check "train refuses unknown models" says 64 "--model vgg is none of" ./train --model vgg
check "train refuses small images" says 64 "at least 10x10; --data digits has 8x8" ./train --data digits --model cnn
check "train refuses tables as images" says 64 "--data csv:table.csv has none" ./train --data csv:table.csv --model cifar
check "train refuses unknown flags" says 64 "--modle" ./train --modle mlp
serves() {  # a hundred clients at once get what each would get alone; what is no request is refused
    $CC -O0 "$root/examples/serve.c" -o serve $LDFLAGS $LDLIBS && ./digits --epochs 3 --quiet --save served.safetensors || return 1
    port=$a_port
    ./serve served.safetensors $port & server=$!
    "$PYTHON" - $port <<'PY'
import json, random, socket, sys, threading, time, urllib.error, urllib.request
url, wrong = "http://127.0.0.1:%s/" % sys.argv[1], []
def ask(path, body=None): return urllib.request.urlopen(urllib.request.Request(url + path, body), timeout=20).read()
for attempt in range(100):
    try: ask("healthz"); break
    except OSError: time.sleep(0.1)
def client(seed):
    r = random.Random(seed)
    x = [[r.randint(0, 16) for _ in range(64)] for _ in range(r.randint(1, 5))]
    together = json.loads(ask("predict", json.dumps({"instances": x}).encode()))["predictions"]
    alone = [json.loads(ask("predict", json.dumps({"instances": [one]}).encode()))["predictions"][0] for one in x]
    if len(together) != len(x) or any(abs(a - b) > 1e-6 for p, q in zip(together, alone) for a, b in zip(p, q)): wrong.append(seed)
clients = [threading.Thread(target=client, args=(i,)) for i in range(100)]
for c in clients: c.start()
for c in clients: c.join()
assert not wrong, wrong
for path, body, code in [("predict", b'{"instances": [[1]]}', 400), ("predict", b'{"instances": [', 400), ("predict", b'[]', 400), ("x", None, 404)]:
    try: ask(path, body); assert False, body
    except urllib.error.HTTPError as e: assert e.code == code, (body, e.code)
half = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(100)]  # that say nothing more
for s in half: s.send(b"POST /predict HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n")
assert ask("healthz") == b"ok\n"
PY
    code=$?
    kill $server
    return $code
}
: "${PYTHON:=python3}"
if "$PYTHON" -c '' 2>/dev/null; then check "serve: a hundred clients" serves; else skip "serve" "no $PYTHON"; fi
wrong_bytes() {  # a mirror that serves something else: refused, and nothing is left under the name
    mkdir -p mirror/mnist && echo junk | gzip >mirror/mnist/train-images-idx3-ubyte.gz || return 1
    MIRROR=file://$scratch/mirror "$root/examples/data.sh" fetched mnist && return 1
    MIRROR=file://$scratch/nowhere "$root/examples/data.sh" fetched mnist && return 1
    [ -z "$(ls fetched/mnist)" ]
}
if command -v curl >/dev/null; then
    check "data.sh refuses other bytes" wrong_bytes
    check "data.sh names the sets" says 1 "none of mnist, fashion, cifar10" "$root/examples/data.sh" fetched imagenet
    real_bytes() { MIRROR=file://$DTRAIN_DATA "$root/examples/data.sh" fetched mnist && MIRROR=none "$root/examples/data.sh" fetched mnist && test -f fetched/mnist/t10k-labels-idx1-ubyte.gz; }
    if [ -n "${DTRAIN_DATA:-}" ]; then check "data.sh fetches" real_bytes; else skip "data.sh fetches" "DTRAIN_DATA names no folder"; fi
else
    skip "data.sh" "no curl"
fi
check "train names what is missing" says 1 "nowhere" ./train --data mnist:nowhere
check "bench counts" says 0 '"samples_per_s"' ./models --model mnist_mlp --batch 8 --steps 3
finish
