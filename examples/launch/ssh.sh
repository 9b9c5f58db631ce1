#!/bin/sh
# ssh.sh - copy a program to hosts and start one process on each; rank 0 is on the first.
#
#   ssh.sh "n1 n2 n3" ./train --data digits --json
#
# The program must be built for those hosts (cc -static makes one that needs nothing there), and ssh must ask for no
# password. Ctrl-C here ends the processes there, and so does a connection that breaks. The exit status is rank 0's.
# PORT is where rank 0 listens (29500), FOLDER where the copy is put (/tmp), SSH another command than ssh.
set -eu
: "${SSH:=ssh}" "${PORT:=29500}" "${FOLDER:=/tmp}"
if [ $# -lt 2 ]; then sed -n 's/^# \{0,1\}//p' "$0" >&2; exit 64; fi
hosts=$1 program=$2 copy=$FOLDER/$(basename "$2")-$$
shift 2
size=$(echo $hosts | wc -w | tr -d ' ')
quoted=  # the flags, safe for the shell there
for flag; do quoted="$quoted '$(printf %s "$flag" | sed "s/'/'\\\\''/g")'"; done

secret=${DTRAIN_SECRET:-$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')}  # of this job alone: only its processes join
for host in $hosts; do
    { echo "$secret"; cat "$program"; } | $SSH "$host" "umask 077; read -r secret && echo \$secret >$copy.secret && cat >$copy && chmod +x $copy" || { echo "ssh.sh: cannot copy to $host" >&2; exit 1; }
done

open=$(mktemp -u)
mkfifo "$open"
exec 3<>"$open" 4<"$open"  # an input that ends when this script does, and the process there is ended by that
rm "$open"
rank=0 started=
trap 'kill $started 2>/dev/null; exit 143' INT TERM
for host in $hosts; do
    $SSH "$host" "exec 3<&0
        DTRAIN_RANK=$rank DTRAIN_WORLD=$size DTRAIN_CHIEF=${hosts%% *}:$PORT DTRAIN_SECRET=\$(cat $copy.secret) $copy $quoted </dev/null &
        program=\$!
        { cat <&3 >/dev/null; kill \$program; } 2>/dev/null &
        wait \$program; status=\$?; kill \$! 2>/dev/null; rm -f $copy $copy.secret; exit \$status" <&4 3<&- 4<&- &
    started="$started $!"
    [ $rank != 0 ] || chief=$!
    rank=$((rank + 1))
done
status=0
wait "$chief" || status=$?
for one in $started; do wait "$one" || :; done
exit $status
