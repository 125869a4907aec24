#!/usr/bin/env bash
# launch/demo.sh with stand-ins for cmake, ninja, dpkg-query and trivet: its second start goes straight to training, an
# interrupted run is resumed with its arguments, a finished one is kept, and arguments are checked before anything else.
#   demo_test.sh CHECKOUT
set -uo pipefail
checkout=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder"/{bin,tmp,tree/configs,tree/data,tree/launch}
cp "$checkout"/launch/*.sh "$folder/tree/launch/"
cp "$checkout/configs/tiny.yaml" "$folder/tree/configs/"
echo '{}' >"$folder/tree/data/gcide.json"
echo 'echo "install ok installed"' >"$folder/bin/dpkg-query"
echo 'echo cmake >>"$CALLS"; while [[ $1 != -B ]]; do shift; done; mkdir -p "$2"; touch "$2/build.ninja"' >"$folder/bin/cmake"
echo 'echo ninja >>"$CALLS"; cp "$TREE/../trivet" "$TREE/build/trivet"' >"$folder/bin/ninja"
cat >"$folder/trivet" <<'END'
if [[ $* == *typo* ]]; then echo 'model.typo: unknown key' >&2; exit 64; fi
[[ $1 == train ]] || exit 0
for argument; do case $argument in train.run_dir=*) run=${argument#*=} ;; train.train_iters=*) iters=${argument#*=} ;; esac; done
echo "train ${run##*/} $*" >>"$CALLS"
mkdir -p "$run"
for ((step = 1; step <= iters; ++step)); do echo "{\"step\":$step,\"step_seconds\":0.9}" >>"$run/metrics.jsonl"; done
code=0
if [[ $run == runs/demo ]]; then code=$END_OF_RUN; else code=$END_OF_MEASUREMENT; fi
((code == 0)) && echo '{"validation_loss":4.25}' >>"$run/metrics.jsonl"
[[ $code == 137 ]] || printf '{\n "status": "…",\n "exit_code": %s,\n "root_cause_rank": -1\n}\n' "$code" >"$run/outcome.json"
exit "$code"
END
for file in "$folder"/bin/* "$folder/trivet"; do sed -i '1i #!/usr/bin/env bash' "$file"; chmod +x "$file"; done
export CALLS=$folder/calls TREE=$folder/tree TMPDIR=$folder/tmp PATH=$folder/bin:$PATH
unset TRIVET
failed=0
# expect WHAT CODE TEXT CALLS ARGUMENT…: starts the demo; CALLS: a pattern for the calls, joined
expect() {
  local what=$1 code=$2 text=$3 calls=$4 found=0 output
  shift 4
  : >"$CALLS"
  output=$(END_OF_RUN=${run:-0} END_OF_MEASUREMENT=${measurement:-0} "$TREE/launch/demo.sh" "$@" 2>&1 </dev/null) || found=$?
  # shellcheck disable=SC2053
  if ((found != code)) || [[ $output != *"$text"* || $(tr '\n' ' ' <"$CALLS") != $calls ]]; then
    printf '%s: exit %s (expected %s), text "%s" in:\n%s\ncalls (expected %s):\n' "$what" "$found" "$code" "$text" "$output" "$calls"
    cat "$CALLS"
    failed=1
  fi
  [[ -z $(ls "$TMPDIR") ]] || { echo "$what: left behind: $(ls "$TMPDIR")"; failed=1; }
}
measured='train tmp.*train.train_iters=8 '
expect 'help' 0 'launch/demo.sh [--minutes M]' '' --help
expect 'no time' 64 'expected a number above 0' '' --minutes 0.0
expect 'an argument that is none' 64 'unknown argument --mintes' '' --mintes 2
[[ ! -e $TREE/runs && ! -e $TREE/build ]] || { echo "something was done"; failed=1; }
expect 'the first start' 0 'validation loss 4.2500' "cmake ninja ${measured}train demo *train.train_iters=200 *"
expect 'the second start' 0 'kept as runs/demo.1' "ninja ${measured}train demo *"
expect 'an argument that trivet refuses' 64 'unknown key' 'ninja ' --set model.typo=1
[[ -e $TREE/runs/demo/metrics.jsonl && ! -e $TREE/runs/demo.2 ]] || { echo "a run was touched: $(ls "$TREE/runs")"; failed=1; }
measurement=75 expect 'an interrupted measurement' 75 '' "ninja $measured"
run=75 expect 'an interrupted run' 75 'kept as runs/demo.2' \
  'ninja *train demo *optimizer.lr=1e-2*' --minutes 1 --set optimizer.lr=1e-2
run=137 expect 'is resumed, and killed' 137 'not finished; this resumes it: launch/demo.sh' \
  'ninja train demo *train.train_iters=60 *optimizer.lr=1e-2 --generate A house is ' --minutes 1 --set=optimizer.lr=1e-2
expect 'other arguments: a new run' 0 'kept as runs/demo.3' "ninja train demo *train.train_iters=7 --generate The sea " --set train.train_iters=7 --generate "The sea"
expect 'too little time' 0 '60 steps (the least) for about 0.9 minutes' "ninja *train.train_iters=60 *" --minutes .2
run=137 expect 'killed' 137 'kept as runs/demo.5' "ninja *" --minutes .2
expect 'resumed without arguments' 0 'it goes on' "ninja train demo *train.train_iters=60 *"
expect 'done: not resumed' 0 'kept as runs/demo.6' "ninja ${measured}train demo *"
exec 5<"$TREE/runs/demo" && flock 5
expect 'a run that is written' 69 'another program trains' "ninja ${measured}"
exit "$failed"
