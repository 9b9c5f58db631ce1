"""The models of bench/models.c in TensorFlow: train_tf.py --model mnist_cnn --mode function_jit --threads 2"""
import os, time
begin = time.perf_counter()
import common
a = common.arguments(["fit", "fit_jit", "function", "function_jit"])
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["OMP_NUM_THREADS"] = str(a.threads)
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers as L

tf.config.threading.set_intra_op_parallelism_threads(a.threads)
tf.config.threading.set_inter_op_parallelism_threads(1)
tf.random.set_seed(1)


def conv_norm(x, filters, stride):
    return L.BatchNormalization(epsilon=1e-5)(L.Conv2D(filters, 3, stride, "same", use_bias=False)(x))


def resnet20(x):
    x = L.ReLU()(conv_norm(x, 16, 1))
    for filters in (16, 32, 64):
        for i in range(3):
            more = filters - x.shape[-1]
            y = conv_norm(L.ReLU()(conv_norm(x, filters, 2 if more else 1)), filters, 1)
            if more:
                x = L.Lambda(lambda t, m=more: tf.pad(t[:, ::2, ::2], [[0, 0], [0, 0], [0, 0], [m // 2, m - m // 2]]))(x)
            x = L.ReLU()(L.Add()([x, y]))
    return L.GlobalAveragePooling2D()(x)


def mnist_mlp(x):
    return L.Dropout(0.2)(L.Dense(512, "relu")(L.Dropout(0.2)(L.Dense(512, "relu")(x))))


def mnist_cnn(x):
    x = L.MaxPool2D(2)(L.Conv2D(64, 3, activation="relu")(L.MaxPool2D(2)(L.Conv2D(32, 3, activation="relu")(x))))
    return L.Dense(128, "relu")(L.Flatten()(x))


def cifar_cnn(x):
    return L.Dense(64, "relu")(L.Flatten()(L.MaxPool2D(2)(L.Conv2D(32, 3, activation="relu")(x))))


inputs = keras.Input(common.SHAPE[a.model])
net = keras.Model(inputs, L.Dense(10)(globals()[a.model](inputs)))
if a.model == "resnet20":
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9, weight_decay=1e-4)
else:
    optimizer = keras.optimizers.Adam(1e-3)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
x, y = (tf.constant(v) for v in common.samples(a.model))
jit = a.mode.endswith("_jit")
if a.mode.startswith("fit"):
    net.compile(optimizer, loss, jit_compile=jit)
    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(a.batch, drop_remainder=True).prefetch(2)
    common.measure(a, "TensorFlow", tf.__version__, begin, lambda: net.fit(batches, verbose=0), common.POOL // a.batch)
else:
    @tf.function(jit_compile=jit)
    def train(xb, yb):
        with tf.GradientTape() as tape:
            value = loss(yb, net(xb, training=True))
        optimizer.apply_gradients(zip(tape.gradient(value, net.trainable_variables), net.trainable_variables))
        return value

    optimizer.build(net.trainable_variables)
    at = 0

    def step():
        global at
        at = 0 if at + a.batch > common.POOL else at
        train(x[at:at + a.batch], y[at:at + a.batch]).numpy()
        at += a.batch

    common.measure(a, "TensorFlow", tf.__version__, begin, step)
