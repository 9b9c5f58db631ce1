# dtrain is one header, so there is nothing to build before you use it: this file runs its examples,
# tests and measurements. GNU make. Everything that is built goes into $(BUILD).
#   make test CC=clang CFLAGS="-g -O1 -fsanitize=thread" BUILD=.build/tsan
CC      ?= cc
CFLAGS  ?= -O2
LDLIBS  ?= -lm -pthread
# Each test program holds the whole header: at -O1 they are built in half the time.
TEST_CFLAGS = $(subst -O2,-O1,$(CFLAGS))
BUILD   ?= .build
PREFIX  ?= /usr/local
# in front of each test program, for other CPUs: make test CC=s390x-linux-gnu-gcc LDFLAGS=-static WRAP=qemu-s390x
WRAP    ?=
TESTS   ?= $(patsubst tests/%.c,%,$(sort $(wildcard tests/*.c)))
SCRIPTS ?= jobs readme examples inclusion docs
ifeq ($(origin CXX),default)
CXX = c++
endif
export CC CXX CFLAGS TEST_CFLAGS LDFLAGS LDLIBS BUILD

# All cores, and one more, since some tests wait for a clock; unless the command line says otherwise.
ifeq ($(MAKELEVEL)$(findstring -j,$(MAKEFLAGS)),0)
MAKEFLAGS += -j$(shell echo $$(($$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1) + 1)))
endif

EXAMPLES := $(patsubst examples/%,$(BUILD)/examples/%,$(basename $(filter-out $(if $(shell echo '#include <mpi.h>' | mpicc -E - 2>&1 >/dev/null || echo no),examples/mpi.c),$(wildcard examples/*.c examples/*.cpp))))
SWITCHES := none NO_THREADS NO_SOCKETS NO_STDIO NO_MALLOC NO_SIMD all STATIC BLAS
VERSION  := $(shell awk '/^.define DTRAIN_VERSION_(MAJOR|MINOR|PATCH)/ { v = v dot $$3; dot = "." } END { print v }' dtrain.h)

help:           ## show this list
	@awk -F '## *' '/^[a-z-]+:.*##/ { sub(/:.*/, "", $$1); printf "make %-16s %s\n", $$1, $$2 }' Makefile

run: $(BUILD)/examples/digits           ## train a network on real handwritten digits: a few seconds
	$< --save $(BUILD)/digits.safetensors

# What takes longest begins first.
LONG := $(filter server wire compat export train,$(TESTS))
test: $(SCRIPTS:%=script-%) $(LONG:%=test-%) $(TESTS:%=test-%)          ## build and run all tests: needs cc and make only
	@tests/run.sh total $(TESTS:%=$(BUILD)/%.log) $(SCRIPTS:%=$(BUILD)/%.log)

data:           ## fetch MNIST, Fashion-MNIST and CIFAR-10 into data/ (curl; 230 MB): SETS="mnist" for some
	examples/data.sh data $(SETS)

examples: $(EXAMPLES)           ## build every example

cxx:            ## compile and run the header as C++
	@mkdir -p $(BUILD)
	ONLY=c++ tests/inclusion.sh

bench: $(BUILD)/bench/models            ## measure four models on one replica each: half a minute
	@for model in mnist_mlp mnist_cnn cifar_cnn resnet20; do $< --model $$model $(BENCHFLAGS) || exit 1; done

bench-kernels: $(BUILD)/bench/kernels           ## products and convolutions in GFLOP/s beside the peak, and OpenBLAS if it is here
	$< $(BENCHFLAGS)
$(BUILD)/bench/kernels: LDLIBS += $(shell printf '\043include <cblas.h>\nint main(void) { return 0; }\n' | $(CC) -x c - -o /dev/null -lopenblas 2>/dev/null && echo -DWITH_OPENBLAS -lopenblas)

bench-comm: $(BUILD)/bench/comm         ## allreduce and its relatives between threads, beside memcpy
	$< $(BENCHFLAGS)

bench-checkpoint: $(BUILD)/bench/checkpoint     ## what checkpoints cost a run, in turn with and without
	$< $(BENCHFLAGS)

bench-peers: $(BUILD)/bench/models              ## the four models beside PyTorch and TensorFlow: installs those into $(BUILD)/venv; an hour
	@[ -x $(BUILD)/venv/bin/python ] || python3 -m venv $(BUILD)/venv
	$(BUILD)/venv/bin/pip install -q torch tensorflow-cpu matplotlib
	$(BUILD)/venv/bin/python bench/compare.py --ours $(BUILD)/bench/models --python $(BUILD)/venv/bin/python --out $(BUILD)/bench $(BENCHFLAGS)

switches: $(SWITCHES:%=switch-%)                ## build and test each DTRAIN_ switch
	@tests/run.sh total $(SWITCHES:%=$(BUILD)/switch-%.log)

shipped:        ## the test programs with -O2 throughout, as the header is shipped: make test builds most of them in less time
	$(MAKE) test SCRIPTS= BUILD=$(BUILD)/shipped TEST_CFLAGS="$(CFLAGS)"

sanitize:       ## the test programs under the address, undefined and thread sanitizers
	$(MAKE) sanitize-address
	$(MAKE) sanitize-thread
sanitize-address:
	$(MAKE) test SCRIPTS= BUILD=$(BUILD)/asan CFLAGS="-g -O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined"
sanitize-thread:
	$(MAKE) test SCRIPTS= BUILD=$(BUILD)/tsan CFLAGS="-g -O1 -fsanitize=thread"

# Children that end in _exit would leave no counts: the linker puts in front of it what writes them.
coverage:       ## lines and branches that the tests run, room by room, and a list of the others: gcc, three minutes
	@mkdir -p $(BUILD)/coverage
	find $(BUILD)/coverage -name '*.gcda' -delete
	printf 'void __gcov_dump(void);\nvoid __real__exit(int);\nvoid __wrap__exit(int);\nvoid __wrap__exit(int s) { __gcov_dump(); __real__exit(s); }\n' | $(CC) -x c -c - -o $(BUILD)/coverage/exit.o
	$(MAKE) test SCRIPTS=jobs BUILD=$(BUILD)/coverage CFLAGS="-O0 -w --coverage" LDFLAGS="-Wl,--wrap=_exit $(abspath $(BUILD))/coverage/exit.o"; \
	    status=$$?; tests/coverage.sh $(BUILD)/coverage && exit $$status

lint:           ## clang-tidy, cppcheck, gcc's analyzer and the files' form: those that are there; half an hour
	@tests/lint.sh

format:         ## mend blanks, tabs and line ends of all files; what needs a choice is told
	@tests/format.sh fix

contents:       ## every >>tag of the header has its line in the contents and its banner
	@tests/contents.sh dtrain.h

size:           ## lines and bytes of the header, room by room
	@tests/size.sh dtrain.h

fuzz:           ## fuzz what reads files and text, a minute each (clang): SECONDS_EACH=600 for longer, FUZZ="csv json" for some
	@tests/fuzz/run.sh $(FUZZ)

accuracy:       ## the models on the data in DTRAIN_DATA: ten minutes
	@tests/accuracy.sh

exchange:       ## weights to PyTorch and back, nets to ONNX, events to TensorBoard: needs python3 with those packages (PYTHON=…)
	@mkdir -p $(BUILD)
	@tests/exchange.sh
	@tests/onnx.sh
	@tests/events.sh

launchers:      ## the same program under every launcher that is installed, and processes that die: five minutes
	@tests/launchers.sh

check-all:      ## test, shipped, cxx, switches, sanitize, exchange, launchers, killed jobs, accuracy, contents and size, one after another
	$(MAKE) test
	$(MAKE) shipped
	KILLS=50 tests/jobs.sh
	KILLS=1 CFLAGS="-g -O1 -w -fsanitize=thread" tests/jobs.sh
	$(MAKE) cxx
	$(MAKE) switches
	$(MAKE) sanitize
	$(MAKE) exchange
	$(MAKE) launchers
	$(MAKE) accuracy
	$(MAKE) contents size

install:        ## header and pkg-config file into $(DESTDIR)$(PREFIX)
	mkdir -p $(DESTDIR)$(PREFIX)/include $(DESTDIR)$(PREFIX)/lib/pkgconfig
	cp dtrain.h $(DESTDIR)$(PREFIX)/include/
	printf '%s\n' 'Name: dtrain' 'Description: neural-network training in one C header' 'Version: $(VERSION)' \
	    'Cflags: -I$(PREFIX)/include' 'Libs: -lm -pthread' >$(DESTDIR)$(PREFIX)/lib/pkgconfig/dtrain.pc

clean:          ## remove what was built
	rm -rf $(BUILD)

# A program is built anew when the compiler or its flags differ from the last time.
$(BUILD)/flags: FORCE
	@mkdir -p $(BUILD)/examples $(BUILD)/bench $(BUILD)/programs
	@echo '$(CC) $(CFLAGS) $(CPPFLAGS) $(LDFLAGS) $(LDLIBS) $(TEST_CFLAGS)' >$@.new
	@if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi

programs: $(TESTS:%=$(BUILD)/%)

# What the optimiser could break first is tested as it is shipped; what hardly computes is built in the least time (`make shipped`
# has all of them with -O2). A test that calls public names only has no implementation of its own: dtrain.o has one for them all.
$(BUILD)/kernels: TEST_CFLAGS := $(CFLAGS)
$(addprefix $(BUILD)/,base checkpoint compat corners events files golden graph plan processes server status switches wire): TEST_CFLAGS := $(subst -O2,-O0,$(CFLAGS))
$(patsubst tests/%.c,$(BUILD)/%,$(shell grep -L 'define DTRAIN_IMPLEMENTATION' tests/*.c)): $(BUILD)/dtrain.o
$(BUILD)/%: tests/%.c dtrain.h $(wildcard tests/*.h examples/*.h) $(BUILD)/flags
	$(CC) $(TEST_CFLAGS) $(CPPFLAGS) $< $(filter %.o,$^) -o $@ $(LDFLAGS) $(LDLIBS)

$(BUILD)/dtrain.o: dtrain.h $(wildcard examples/*.h) $(BUILD)/flags
	@printf '#define DTRAIN_IMPLEMENTATION\n#include "dtrain.h"\n#include "examples/cifar10.h"\n#include "examples/csv.h"\n' >$(BUILD)/dtrain.c
	$(CC) $(TEST_CFLAGS) $(CPPFLAGS) -I. -c $(BUILD)/dtrain.c -o $@

# Examples that more than one script runs are built once; what the compiler said of them is beside them, for tests/examples.sh.
$(BUILD)/programs/%: examples/%.c dtrain.h $(wildcard examples/*.h) $(BUILD)/flags
	$(CC) $(TEST_CFLAGS) $(CPPFLAGS) -Wall -Wextra -Wpedantic $< -o $@ $(LDFLAGS) $(LDLIBS) 2>$@.said || { cat $@.said; exit 1; }

$(BUILD)/examples/%: examples/%.c dtrain.h $(wildcard examples/*.h) $(BUILD)/flags
	$(CC) $(CFLAGS) $(CPPFLAGS) $< -o $@ $(LDFLAGS) $(LDLIBS)

$(BUILD)/examples/mpi: examples/mpi.c dtrain.h $(wildcard examples/*.h) $(BUILD)/flags
	mpicc $(CFLAGS) $< -o $@ $(LDFLAGS) $(LDLIBS)

$(BUILD)/examples/%: examples/%.cpp dtrain.h $(wildcard examples/*.h) $(BUILD)/flags
	$(CXX) $(CFLAGS) $(CPPFLAGS) $< -o $@ $(LDFLAGS) $(LDLIBS)

$(BUILD)/bench/%: bench/%.c dtrain.h $(wildcard examples/*.h) $(BUILD)/flags
	$(CC) $(CFLAGS) $(CPPFLAGS) $< -o $@ $(LDFLAGS) $(LDLIBS)

$(TESTS:%=test-%): test-%: $(BUILD)/%
	@tests/run.sh one $* $(BUILD)/$*.log $(WRAP) $(BUILD)/$*

script-examples script-readme: $(BUILD)/dtrain.o $(BUILD)/programs/train
script-jobs script-readme: $(BUILD)/programs/job
$(SCRIPTS:%=script-%): script-%: $(BUILD)/flags
	@BUILT=$(BUILD) tests/run.sh one $* $(BUILD)/$*.log tests/$*.sh

$(SWITCHES:%=switch-%): switch-%: $(BUILD)/flags
	@tests/run.sh one $* $(BUILD)/switch-$*.log tests/switches.sh $*

FORCE:
.PHONY: help run test data examples cxx bench bench-kernels bench-comm bench-checkpoint bench-peers switches shipped sanitize sanitize-address sanitize-thread exchange launchers fuzz accuracy coverage lint format contents size check-all install clean programs FORCE \
    $(TESTS:%=test-%) $(SCRIPTS:%=script-%) $(SWITCHES:%=switch-%)
