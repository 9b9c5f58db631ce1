#!/bin/sh
# data.sh - fetch the public data sets that the examples read; what is there already stays.
#
#   examples/data.sh [FOLDER [SET…]]     FOLDER: data; SET: mnist, fashion, cifar10; all of them
#
# Needs curl, gzip and tar. A download that broke off goes on where it stopped. Each file is checked against the MD5 of
# the published bytes before it gets its name, so a file that is there is whole. MIRROR=URL fetches URL/SET/FILE instead.
set -eu
folder=${1:-data}
[ $# -gt 0 ] && shift
[ $# -gt 0 ] || set -- mnist fashion cifar10

say() { echo "data: $*"; }
die() { say "$*" >&2; exit 1; }
command -v curl >/dev/null || die "needs the program curl: install it, or put the files into $folder by hand"
digest() { if command -v md5sum >/dev/null; then md5sum | cut -d ' ' -f 1; else md5 -q; fi; }

download() {  # URL FILE: FILE.part, and on a second try the rest of it
    say "fetching $1"
    [ -t 2 ] && bar=--progress-bar || bar=-sS
    curl -fL $bar --retry 3 --connect-timeout 30 -C - -o "$2.part" "$1" || die "$1 cannot be fetched: try again, and it goes on where it stopped"
}

fetch() {  # SET URL MD5: one gzip file, checked by what is in it
    file=$folder/$1/${2##*/}
    if [ -f "$file" ] && [ "$(gzip -dc "$file" | digest)" = "$3" ]; then say "$file is there"; return; fi
    mkdir -p "$folder/$1"
    url=$2
    [ -z "${MIRROR:-}" ] || url=$MIRROR/$1/${2##*/}
    download "$url" "$file"
    if [ "$(gzip -dc "$file.part" 2>/dev/null | digest)" != "$3" ]; then
        rm -f "$file.part"
        die "$url is not what was published (its MD5 differs): the download was damaged, or the address serves another file"
    fi
    mv "$file.part" "$file"
    say "$file: complete"
}

idx() {  # SET URL MD5-OF-TRAIN-IMAGES TRAIN-LABELS TEST-IMAGES TEST-LABELS
    fetch "$1" "$2/train-images-idx3-ubyte.gz" "$3"
    fetch "$1" "$2/train-labels-idx1-ubyte.gz" "$4"
    fetch "$1" "$2/t10k-images-idx3-ubyte.gz" "$5"
    fetch "$1" "$2/t10k-labels-idx1-ubyte.gz" "$6"
}

cifar10() {  # six .bin files from one archive; the MD5 is the archive's
    for i in data_batch_1 data_batch_2 data_batch_3 data_batch_4 data_batch_5 test_batch; do [ -f "$folder/cifar10/$i.bin" ] || missing=1; done
    [ -n "${missing:-}" ] || { say "$folder/cifar10 is there"; return; }
    mkdir -p "$folder/cifar10"
    archive=$folder/cifar10/cifar-10-binary.tar.gz
    url=https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz
    [ -z "${MIRROR:-}" ] || url=$MIRROR/cifar10/cifar-10-binary.tar.gz
    download "$url" "$archive"
    if [ "$(digest <"$archive.part")" != c32a1d4ab5d03f1284b67883e8d87530 ]; then
        rm -f "$archive.part"
        die "$url is not what was published (its MD5 differs): the download was damaged, or the address serves another file"
    fi
    rm -rf "$folder/cifar10/unpacked"
    mkdir "$folder/cifar10/unpacked"
    tar -xzf "$archive.part" -C "$folder/cifar10/unpacked"
    mv "$folder"/cifar10/unpacked/*/*.bin "$folder/cifar10/"
    rm -rf "$folder/cifar10/unpacked" "$archive.part"
    say "$folder/cifar10: complete"
}

for set; do
    case $set in
    mnist) idx mnist https://storage.googleapis.com/cvdf-datasets/mnist \
        6bbc9ace898e44ae57da46a324031adb a25bea736e30d166cdddb491f175f624 2646ac647ad5339dbf082846283269ea 27ae3e4e09519cfbb04c329615203637 ;;
    fashion) idx fashion https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion \
        f4a8712d7a061bf5bd6d2ca38dc4d50a 9018921c3c673c538a1fc5bad174d6f9 8181f5470baa50b63fa0f6fddb340f0a 15d484375f8d13e6eb1aabb0c3f46965 ;;
    cifar10) cifar10 ;;
    *) die "$set is none of mnist, fashion, cifar10" ;;
    esac
done
