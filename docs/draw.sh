#!/usr/bin/env bash
# Draws the pictures of docs/schedules.md, context.md, tensor.md, data.md and chapter 17 with the program itself.
#   docs/draw.sh [TRIVET [FOLDER]]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
trivet=${1:-build/trivet} folder=${2:-docs/img}
draw() { "$trivet" schedule "${@:2}" --svg "$folder/schedule-$1.svg" >/dev/null; }

draw 1f1b --kind gpipe,1f1b
draw interleaved --kind interleaved,interleaved-bfs
draw zero-bubble --kind zb-h1,zb-h2
draw v --kind zb-v,dualpipe-v
draw latency --kind 1f1b,1f1b-eager,zb-h1 --microbatches 12 --latency 0.5 --transfers
draw head --kind 1f1b,zb-h1 --head 0.5,0.5,0.5
"$trivet" schedule context --ranks 4 --svg "$folder/schedule-context.svg" >/dev/null
"$trivet" schedule context --ranks 4 --documents 900,3200,400,1700,1100,892 --svg "$folder/schedule-documents.svg" >/dev/null

explain() {  # NAME ARGUMENT…: a layer and a step of the course's run on two ranks
  "$trivet" explain docs/course/one_rank.yaml --ranks 2 --set model.vocab_size=257 "${@:2}" --svg "$folder/explain-$1.svg"
}
tensor=(--set parallel.tensor_model_parallel_size=2 --set model.num_attention_heads=2 --set batch.global_batch_size=4)
explain tensor "${tensor[@]}"
explain sequence "${tensor[@]}" --set parallel.sequence_parallel=true
explain overlap --set parallel.data_parallel_sharding_strategy=optim --set overlap.overlap_grad_reduce=true \
  --set overlap.overlap_param_gather=true --set parallel.bucket_size=30000
for strategy in no_shard optim optim_grads optim_grads_params; do
  explain "$strategy" --set parallel.data_parallel_sharding_strategy=$strategy
done

scaling=$(mktemp -d)
"$trivet" study configs/studies/scaling.csv --fit scaling --out "$scaling" >/dev/null
mv "$scaling/scaling.svg" "$folder/study-scaling.svg"
rm -r "$scaling"
