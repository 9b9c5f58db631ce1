// threads.cpp - from C++11: std::thread, std::vector and unique_ptr around the same header
//
// Four threads learn two intertwined spirals, each with a model of its own and with one ring of the points:
// the first the innermost, the last the outermost. Every five steps they take the mean of their parameters
// (federated averaging, McMahan et al. 2017, algorithm 1), so that in the end all of them know all rings.
//
// Shows:   options without designated initialisers, a net as a lambda, data in vectors, dt_comm_group
//          between std::threads, dt_parameter_read and dt_parameter_write.
// Data:    made by the program.
// Build:   c++ -O2 examples/threads.cpp -o threads -lm -pthread
// Run:     ./threads
// Output:  thread 0:  47.60 % right alone,  99.40 % together, checksum c61ea30b
//          thread 1:  52.35 % right alone,  99.40 % together, checksum c61ea30b
//          thread 2:  52.35 % right alone,  99.40 % together, checksum c61ea30b
//          thread 3:  47.70 % right alone,  99.40 % together, checksum c61ea30b
#define DTRAIN_IMPLEMENTATION
#include "../dtrain.h"
#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

const int threads = 4, points = 800, batch = 50, rounds = 1000, steps_between = 5;

struct spirals {                                       // from the middle to the rim
    std::vector<float> x, y;
    spirals(int n, unsigned seed) {
        std::mt19937 bits(seed);
        for (int i = 0; i < n; i++) {
            int arm = i % 2;
            double turn = 0.5 + 6.0 * (i + bits() / 4294967296.0) / n, angle = turn + 3.14159265 * arm;
            x.push_back(float(turn / 6 * std::cos(angle)));
            x.push_back(float(turn / 6 * std::sin(angle)));
            y.push_back(float(arm));
        }
    }
};

struct model {
    std::unique_ptr<dt_model, void (*)(dt_model *)> m;
    dt_error err = DT_DEFAULTS;                        // keeps the first error of many calls

    void check() const { if (err.code) throw std::runtime_error(err.text); }
    model() : m(nullptr, dt_model_free) {
        dt_options o = DT_DEFAULTS;
        o.net = [](dt_tensor *x, void *) {
            dt_dense_options last = DT_DEFAULTS;
            last.name = "logit";
            return dt_dense(dt_tanh(dt_dense(dt_tanh(dt_dense(x, 32)), 32)), 1, last);
        };
        o.input[0] = 2;
        o.batch = batch;
        o.replicas = 1;
        o.loss = DT_BINARY_CROSS_ENTROPY;
        o.optimizer = DT_ADAM;
        o.learning_rate = 5e-3;
        m.reset(dt_model_create(&o, &err));
        check();
    }
    void step(const float *x, const float *y) { dt_step(m.get(), x, y, batch, &err); }
    void take_mean(dt_comm *comm) {                    // of every parameter over the threads
        dt_parameter p;
        for (int i = 0; !dt_parameter_at(m.get(), i, &p, nullptr); i++) {
            std::vector<float> values(p.size);
            dt_parameter_read(m.get(), p.name, values.data(), p.size, &err);
            dt_allreduce(comm, values.data(), p.size, DT_MEAN, &err);
            dt_parameter_write(m.get(), p.name, values.data(), p.size, &err);
        }
        check();
    }
    double accuracy(const spirals &s) {
        std::vector<float> logit(s.y.size());
        dt_predict(m.get(), s.x.data(), long(logit.size()), logit.data(), &err);
        check();
        int right = 0;
        for (size_t i = 0; i < logit.size(); i++) right += (logit[i] > 0) == (s.y[i] > 0.5f);
        return 100.0 * right / double(logit.size());
    }
};

struct result { double alone, together; unsigned checksum; std::string error; };

void work(dt_comm *handle, const spirals &train, const spirals &test, result &out) try {
    std::unique_ptr<dt_comm, void (*)(dt_comm *)> comm(handle, dt_comm_close);
    const int rank = dt_comm_rank(comm.get()), share = points / threads;
    const float *x = train.x.data() + 2 * rank * share, *y = train.y.data() + rank * share;
    model alone, together;
    for (int step = 0; step < rounds * steps_between; step++) {
        int at = step * batch % share;
        alone.step(x + 2 * at, y + at);
        together.step(x + 2 * at, y + at);
        if (step % steps_between == steps_between - 1) together.take_mean(comm.get());
    }
    out.alone = alone.accuracy(test);
    out.together = together.accuracy(test);
    out.checksum = dt_parameters_crc32c(together.m.get());
} catch (const std::exception &e) { out.error = e.what(); }

}  // namespace

int main() {
    const spirals train(points, 1), test(2000, 2);
    std::vector<dt_comm *> comm(threads);
    std::vector<result> results(threads);
    std::vector<std::thread> running;
    dt_error err = DT_DEFAULTS;
    if (dt_comm_group(threads, comm.data(), &err)) return std::fprintf(stderr, "threads: %s\n", err.text), 1;
    for (int i = 0; i < threads; i++)
        running.emplace_back(work, comm[i], std::cref(train), std::cref(test), std::ref(results[i]));
    for (std::thread &t : running) t.join();
    for (int i = 0; i < threads; i++) {
        if (!results[i].error.empty()) return std::fprintf(stderr, "threads: %s\n", results[i].error.c_str()), 1;
        std::printf("thread %d: %6.2f %% right alone, %6.2f %% together, checksum %08x\n", i, results[i].alone,
                    results[i].together, results[i].checksum);
    }
}
