// The table of fields(): one entry per key.
#include "engine/config/batch_sizes.h"
#include "engine/config/field_types.h"

namespace trivet {
namespace {

// Declares the key of a member of Config, with its meaning and valid range.
#define KEY(section, member, ...)               \
  add_field<decltype(Config().section.member)>( \
      table, #section "." #member, [](Config& c) -> void* { return &c.section.member; }, __VA_ARGS__)

#define LINK_KEY(k, group, value, unit)                                                                \
  add_field<std::optional<double>>(                                                                    \
      table, "comm." group "_link_" #value, [](Config& c) -> void* { return &c.comm.links[k].value; }, \
      "of " group " groups; auto: link_" #value, at_least(0, unit))
// k: the index in kCommClasses.
#define LINK_KEYS(k, group) LINK_KEY(k, group, latency_us, "us"), LINK_KEY(k, group, gbps, "Gbit/s")

constexpr Numbers dropout() { return {.low = 0, .high = 0.999}; }

constexpr auto kOneLayer = "the same for one linear layer";
void of_layer(Field& field, bool bulk) {
  field.empty = "default";
  if (!bulk) field.words = {"none", "ring", "pipeline"};
}

// Together with the rules for values, the upper bounds keep every product of sizes (parameters, bytes, tokens per step)
// within 63 bits.

void declare_model(std::vector<Field>& table) {
  KEY(model, num_layers, "transformer layers, L", range(1, 10'000, "layers")).required = true;
  KEY(model, hidden_size, "width of the residual stream, h", range(1, 1'000'000, "columns")).required = true;
  KEY(model, ffn_hidden_size, "width of the MLP, f; auto: 4 h, with swiglu 8/3 h in multiples of 64",
      range(1, 4'000'000, "columns"));
  KEY(model, num_attention_heads, "attention heads, a", range(1, 1'000'000, "heads")).required = true;
  KEY(model, num_query_groups, "key and value heads, each shared by a group of attention heads; auto: a",
      range(1, 1'000'000, "heads"));
  KEY(model, kv_channels, "width of an attention head; auto: h / a", range(1, 1'000'000, "columns"));
  KEY(model, seq_length, "tokens per sample, s", range(1, 10'000'000, "tokens")).required = true;
  KEY(model, vocab_size, "vocabulary size; auto: that of the dataset's tokenizer", range(1, 1'000'000'000, "tokens"));
  KEY(model, make_vocab_size_divisible_by, "the embedding is padded to a multiple of this times t",
      range(1, 1'000'000, "tokens"));
  KEY(model, untie_embeddings_and_output_weights, "give the output layer a weight of its own");
  KEY(model, normalization, "type of the norms: LayerNorm subtracts the mean and adds a bias, RMSNorm does neither");
  KEY(model, swiglu, "a gated MLP: SiLU of one half of fc1 times the other, f columns each; otherwise GELU");
  KEY(model, add_bias_linear, "biases of the linear layers");
  KEY(model, add_qkv_bias, "biases of queries, keys and values where add_bias_linear is false");
  KEY(model, qk_layernorm, "normalise each head of queries and keys, before rope; one norm for all heads of a layer");
  KEY(model, position_embedding_type, "positions: a learned embedding, or rotated queries and keys (RoPE)");
  KEY(model, rotary_base, "rope: base of the frequencies", at_least(1));
  KEY(model, rotary_percent, "rope: share of a head's columns that are rotated",
      {.low = 0, .high = 1, .low_open = true});
  KEY(model, use_rope_scaling, "rope: stretch long wavelengths, as Llama 3.1 does to extend its context");
  KEY(model, rope_scaling_factor, "rope scaling: factor by which wavelengths are stretched", at_least(1));
  KEY(model, rope_scaling_low_freq_factor, "rope scaling: stretch fully below this many turns per original context",
      above(0, "turns"));
  KEY(model, rope_scaling_high_freq_factor, "rope scaling: do not stretch above this many turns", above(0, "turns"));
  KEY(model, rope_scaling_original_max_position_embeddings, "rope scaling: length of the original context",
      range(1, 10'000'000, "tokens"));
  KEY(model, init_method_std, "standard deviation of the initial weights", above(0));
  KEY(model, scale_output_layer_init, "divide it by sqrt(2 L) in layers that write to the residual stream");
  KEY(model, hidden_dropout, "dropout of the residual branches", dropout());
  KEY(model, attention_dropout, "dropout of the attention probabilities", dropout());
  KEY(model, layernorm_epsilon, "added to the variance, or to the mean square",
      {.low = 0, .high = 1, .low_open = true});
  KEY(model, recompute_granularity,
      "activations recomputed in the backward pass: modules of each layer, or whole layers");
  KEY(model, recompute_modules, "selective: which modules of each layer").takes =
      "core_attn, layernorm or mlp, or several separated by commas";
  KEY(model, recompute_method, "full: groups of layers that save only their input, or the first layers of each stage");
  KEY(model, recompute_num_layers, "full: layers per group (uniform) or per stage (block)", range(0, 10'000, "layers"));
  KEY(model, cross_entropy_chunk_rows,
      "tokens of a rank's micro-batch that have logits at a time; 0: all; auto: all up to 1.75 GiB, else 512 MiB at "
      "most",
      at_least(0, "tokens"));
}

void declare_parallel(std::vector<Field>& table) {
  KEY(parallel, tensor_model_parallel_size, "ranks that share each layer, t", range(1, 65'536, "ranks"));
  KEY(parallel, context_parallel_size, "ranks that share each sequence, c; each has 1/c of the positions",
      range(1, 65'536, "ranks"));
  KEY(parallel, cp_comm_type, "how ranks exchange keys and values: around a ring (ring attention), or by all-gather");
  KEY(parallel, pipeline_model_parallel_size, "pipeline stages, each a run of consecutive layers, p",
      range(1, 65'536, "ranks"));
  Field& chunks = KEY(parallel, virtual_pipeline_model_parallel_size,
                      "model chunks of a pipeline rank, v; default: what the schedule needs; auto: the same, but the "
                      "fastest that `trivet plan` finds",
                      range(1, 10'000, "chunks"));
  chunks.empty = "default";
  chunks.planned = true;
  KEY(parallel, pipeline_schedule, "a kind that `trivet schedule --kinds` lists, or a file with a schedule");
  KEY(parallel, microbatch_group_size_per_vp_stage,
      "interleaved: consecutive micro-batches of a chunk; auto: the smallest that fits",
      range(1, 1'000'000, "micro-batches"));
  KEY(parallel, decoder_first_pipeline_num_layers,
      "layers of the first stage (interleaved: of its rank, over all chunks); auto: like the others",
      range(0, 10'000, "layers"));
  KEY(parallel, decoder_last_pipeline_num_layers, "the same for the last stage; auto: like the others",
      range(0, 10'000, "layers"));
  KEY(parallel, account_for_embedding_in_pipeline_split, "the embedding counts as a layer of the first stage");
  KEY(parallel, account_for_loss_in_pipeline_split, "the output layer counts as a layer of the last stage");
  KEY(parallel, sequence_parallel, "norms and dropout hold 1/t of the sequence; needs t > 1");
  KEY(parallel, order, "which ranks are neighbours, innermost first").takes =
      "tp, cp, dp and pp in any order, separated by '-', innermost first, such as tp-cp-dp-pp; cp may be left out";
  KEY(parallel, data_parallel_sharding_strategy,
      "what data-parallel ranks shard (ZeRO): nothing, optimizer state, gradients too, weights too");
  KEY(parallel, bucket_size, "elements per bucket of gradients and weights; auto: max(40e6, 1e6 d)",
      at_least(1, "elements"));

  KEY(overlap, overlap_p2p_comm, "overlap pipeline transfers with compute; false: wait for each");
  KEY(overlap, p2p_receive_ahead, "receives posted ahead on each pipeline channel while overlapping",
      range(1, 64, "receives"));
  KEY(overlap, overlap_cp_comm, "overlap context-parallel communication with attention; false: wait for each call");
  KEY(overlap, overlap_grad_reduce,
      "reduce each bucket of gradients during the backward pass, as soon as its last micro-batch has filled it");
  KEY(overlap, overlap_param_gather, "gather sharded weights during the next forward pass");
  KEY(overlap, collectives_in_flight,
      "at most this many gradient reductions, and as many weight gathers, in flight at a time",
      range(1, 64, "collectives"));
  KEY(overlap, align_grad_reduce, "start overlapped reductions at the same time on all pipeline ranks");
  KEY(overlap, align_param_gather, "start overlapped gathers of each chunk at the same time on all pipeline ranks");
  KEY(overlap, average_in_collective, "divide gradients by d while they are reduced; false: scale the loss beforehand");
  KEY(overlap, defer_embedding_wgrad_compute,
      "compute the output weight's gradient while the pipeline drains at the end of a step");
  KEY(overlap, wgrad_deferral_limit, "for this many of the last micro-batches; 0: all. Each keeps its logits' gradient",
      at_least(0, "micro-batches"));
  KEY(overlap, tp_comm_overlap,
      "how tensor-parallel communication overlaps GEMMs: whole collectives, or split into chunks");
  of_layer(KEY(overlap, tp_comm_overlap_qkv, kOneLayer), true);
  of_layer(KEY(overlap, tp_comm_overlap_proj, kOneLayer), false);
  of_layer(KEY(overlap, tp_comm_overlap_fc1, kOneLayer), true);
  of_layer(KEY(overlap, tp_comm_overlap_fc2, kOneLayer), false);
}

void declare_training(std::vector<Field>& table) {
  KEY(batch, micro_batch_size, "samples per micro-batch, b; auto: what `trivet plan` finds fastest",
      range(1, 1'000'000, "samples"))
      .planned = true;
  KEY(batch, global_batch_size, "samples per step; auto: b times d", range(1, kMostBatchSamples, "samples"));
  Field& ramp = KEY(batch, rampup_batch_size, "a smaller batch at first: start,increment,samples of the ramp",
                    range(1, 1e12, {}));
  ramp.takes = "three integers of at least 1 such as 16,16,300000: start, increment, samples; or none";
  ramp.empty = "none";
  KEY(batch, step_batch_size_schedule, "batch sizes by tokens consumed, such as \"0:768 250B:1536\"");

  KEY(optimizer, lr, "peak learning rate", above(0));
  KEY(optimizer, min_lr, "learning rate after the decay; auto: lr / 10", at_least(0));
  KEY(optimizer, lr_warmup_iters, "steps of linear warm-up; auto: lr_decay_iters / 10", range(0, 1e12, "steps"));
  KEY(optimizer, lr_warmup_fraction, "the warm-up as a share of lr_decay_iters, instead of lr_warmup_iters",
      range(0, 1, {}));
  KEY(optimizer, lr_warmup_init, "learning rate at which the warm-up begins", at_least(0));
  KEY(optimizer, lr_decay_iters, "step at which min_lr is reached; auto: train_iters", range(1, 1e12, "steps"));
  KEY(optimizer, lr_decay_style, "shape of the decay; WSD: constant (stable), then decay");
  KEY(optimizer, lr_wsd_decay_iters, "WSD: steps of decay, the last ones before lr_decay_iters",
      range(0, 1e12, "steps"));
  KEY(optimizer, lr_warmup_samples, "samples of linear warm-up, with train.train_samples", range(0, 1e15, "samples"));
  KEY(optimizer, lr_decay_samples, "sample at which min_lr is reached; auto: train_samples", range(1, 1e15, "samples"));
  KEY(optimizer, lr_wsd_decay_samples, "WSD: samples of decay, the last ones before lr_decay_samples",
      range(0, 1e15, "samples"));
  KEY(optimizer, lr_wsd_decay_style, "WSD: shape of that decay");
  KEY(optimizer, decoupled_lr, "peak learning rate of word embeddings and output layer; auto: lr", above(0));
  KEY(optimizer, decoupled_min_lr, "learning rate of these after the decay; auto: min_lr", at_least(0));
  KEY(optimizer, adam_beta1, "decay rate of the first moment", range(0, 0.9999999, {}));
  KEY(optimizer, adam_beta2, "decay rate of the second moment", range(0, 0.9999999, {}));
  KEY(optimizer, adam_eps, "added to the root of the second moment", at_least(1e-30));
  KEY(optimizer, weight_decay, "weight decay, decoupled (AdamW)", at_least(0));
  KEY(optimizer, start_weight_decay, "weight decay at the start of the ramp", at_least(0));
  KEY(optimizer, end_weight_decay, "weight decay at the end of the ramp", at_least(0));
  KEY(optimizer, weight_decay_incr_style, "shape of the ramp; constant: weight_decay throughout");
  KEY(optimizer, decay_norms_and_biases, "apply weight decay to norms and biases too");
  KEY(optimizer, override_opt_param_scheduler, "on resume, use this run's schedules where the checkpoint's differ");
  KEY(optimizer, use_checkpoint_opt_param_scheduler, "on resume, use the checkpoint's schedules where they differ");
  KEY(optimizer, clip_grad, "maximum gradient norm; 0: no clipping", at_least(0));

  KEY(precision, dtype, "dtype of weights and activations; main weights, moments and gradients are fp32");
  KEY(precision, fp8, "GEMMs of the blocks' linear layers in FP8; hybrid: gradients in E5M2, the rest in E4M3");
  KEY(precision, fp8_recipe, "tensorwise: one scale per tensor; blockwise: per 1 x 128 block, of weights 128 x 128");
  KEY(precision, fp8_wgrad, "weight-gradient GEMMs in FP8 too; false: in bf16");
  KEY(precision, fp8_param_gather, "gather sharded weights in FP8 where the GEMMs use FP8");
  KEY(precision, fp8_accumulator_bits,
      "accumulator bits of FP8 GEMMs: 24, as fp32, or 14, as a Hopper GPU sums 128 products");
  KEY(precision, fp8_report,
      "report rounding of each layer's weights, activations and gradients at the end of the log");
  KEY(precision, first_last_layers_bf16, "keep some layers at either end of the model in precision.dtype");
  KEY(precision, num_layers_at_start_in_bf16, "layers kept so at the start of the model", range(0, 10'000, "layers"));
  KEY(precision, num_layers_at_end_in_bf16, "layers kept so at the end of the model", range(0, 10'000, "layers"));

  KEY(data, path, "dataset prefix (.bin/.idx), or a blend: weight,prefix,…; split by data.split").list = true;
  KEY(data, split, "how data.path is split", at_least(0)).takes =
      "up to three shares of train, validation and test such as 98,2,0";
  KEY(data, train_path, "the same for training, instead of data.path").list = true;
  KEY(data, valid_path, "the same for validation, with data.train_path").list = true;
  KEY(data, test_path, "the same for the test at the end").list = true;
  KEY(data, repeat, "reshuffle and repeat the training data; false: one epoch at most");
  KEY(data, tokenizer_model, "tokenizer; \"\": PREFIX.tokenizer.json or PREFIX.model of the dataset, if any");
  KEY(data, reset_position_ids, "positions count from 0 in each document of a sample");
  KEY(data, reset_attention_mask, "attention inside documents only");
  KEY(data, eod_mask_loss, "leave the prediction made at a document's last token out of the loss");
  KEY(data, seed, "seed of the shuffles", at_least(0));
  KEY(data, prefetch, "micro-batches prepared ahead by a background thread", range(1, 10'000, "micro-batches"));
}

void declare_run(std::vector<Field>& table) {
  KEY(comm, backend, "what the ranks are (thread, mpi), or how their GPUs communicate (nccl, staged)");
  KEY(comm, nccl_ub,
      "weights and gradients in memory registered with NCCL's data-parallel groups, which need no copies (user "
      "buffers)");
  KEY(comm, timeout_s, "end the run if a call waits longer; must exceed what a rank computes between calls; 0: never",
      range(0, 1e8, "s"));
  KEY(comm, link_latency_us, "latency of an emulated link between ranks; 0: none", at_least(0, "us"));
  KEY(comm, link_gbps, "bandwidth of an emulated link, 10^9 bits per second; 0: no limit", at_least(0, "Gbit/s"));
  LINK_KEYS(0, "tensor");
  LINK_KEYS(1, "context");
  LINK_KEYS(2, "pipeline");
  LINK_KEYS(3, "data");
  KEY(comm, shared_port, "traffic of all classes leaves a rank through one emulated port, as through one network card");
  KEY(comm, measure_links,
      "at start, measure latency and bandwidth of links that are not emulated: the floor of the time on the wire");

  KEY(checkpoint, save_interval, "steps between checkpoints in run_dir/checkpoints; 0: none", range(0, 1e12, "steps"));
  KEY(checkpoint, keep_last, "latest checkpoints to keep; 0: all", range(0, 1e9, "checkpoints"));
  KEY(checkpoint, save_retain_interval, "also keep those whose step is a multiple of this; 0: none",
      range(0, 1e12, "steps"));
  KEY(checkpoint, keep_best, "also keep this many with the lowest validation losses", range(0, 1e9, "checkpoints"));
  KEY(checkpoint, mirror, "second checkpoint folder: each checkpoint is copied there and verified in the background");
  KEY(checkpoint, async_save, "keep training while a copy of the state is written");
  KEY(checkpoint, max_failed_saves, "saves that may fail in a row before the run ends", range(1, 1e9, "saves"));

  KEY(train, train_iters, "optimizer steps; 0: from train_samples", range(0, 1e12, "steps"));
  KEY(train, train_samples, "samples to train on, instead of train_iters", range(0, 1e15, "samples"));
  KEY(train, eval_interval, "steps between evaluations; 0: never", range(0, 1e12, "steps"));
  KEY(train, eval_iters, "batches per evaluation", range(1, 1e9, "batches"));
  KEY(train, full_validation, "evaluate the whole set instead, in order");
  KEY(train, eval_samples, "evaluate the set's first samples instead, in order; 0: eval_iters batches",
      range(0, 1e15, "samples"));
  KEY(train, skip_train, "only evaluate a checkpoint on the validation and test sets: nothing is trained or saved");
  KEY(train, seed, "seed of weights and dropout", at_least(0));
  KEY(train, run_dir, "folder of metrics.jsonl, config.resolved.yaml, trace.json");
  KEY(train, tensorboard_dir, "folder for TensorBoard's event files, of this run alone");
  KEY(train, log_interval, "steps between log lines", range(1, 1e12, "steps"));
  KEY(train, exit_duration_in_mins, "save and stop before the run has lasted this many minutes; 0: no limit",
      range(0, 1e7, "minutes"));
  KEY(train, exit_interval, "save and stop after each multiple of this many steps; 0: never", range(0, 1e12, "steps"));
  KEY(train, straggler_factor, "name a rank that takes this many times as long as its peers; 0: never", at_least(0));
  KEY(train, straggler_interval, "steps between these checks", range(1, 1e12, "steps"));
  KEY(train, check_for_nan_in_loss_and_grad, "check for a loss or gradient that is not finite");
  KEY(train, non_finite_policy, "what to do with such a step").words = {"stop", "skip"};
  KEY(train, spike_factor, "a loss or gradient norm above this many times its running median is a spike; 0: never",
      at_least(0));
  KEY(train, spike_policy, "what to do with such a step").words = {"warn", "skip", "stop"};
  KEY(train, max_consecutive_skips, "end the run after this many skipped steps in a row", range(1, 1e12, "steps"));
  KEY(train, check_weight_hash_across_dp_replicas_interval,
      "steps between comparisons of replicated weights across data-parallel ranks; 0: never", range(0, 1e12, "steps"));
  KEY(train, deterministic_mode,
      "choose no kernel by timing, so that two runs on GPUs give the same bits; on CPUs they always do");
  KEY(train, trace, "write run_dir/trace.json");
  KEY(train, flops_convention, "how model FLOPs are counted for TFLOP/s and MFU");

  KEY(device, kind, "what ranks compute on");
  KEY(device, cpu_isa, "instruction set of the CPU kernels; auto: the best that the CPUs of all hosts have");
  KEY(device, tf32, "fp32 GEMMs on the tensor cores of a GPU, with 10 bits of mantissa");
  KEY(device, cuda_graph_impl,
      "launch the work that micro-batches repeat on a GPU as CUDA graphs: for small, host-bound models");
  KEY(device, threads_per_rank, "CPU threads per rank; 0: the host's cores divided by its ranks",
      range(0, 4096, "threads"));
  KEY(device, peak_tflops, "peak of one rank in the run's dtype; auto: by GPU name, or measured", above(0, "TFLOP/s"));
}

#undef KEY
#undef LINK_KEYS
#undef LINK_KEY

// The conditions under which keys have an effect.
void declare_needs(std::vector<Field>& table) {
  const auto need = [&](const std::vector<std::string_view>& keys, const std::vector<std::string_view>& of,
                        bool (*holds)(const Config&), std::string_view otherwise) {
    for (const std::string_view key : keys)
      std::ranges::find(table, key, &Field::name)->needs.push_back({of, holds, otherwise});
  };
#define WHERE(condition) [](const Config& c) -> bool { return condition; }
  need({"model.add_qkv_bias"}, {"model.add_bias_linear"}, WHERE(!c.model.add_bias_linear),
       "with add_bias_linear true: all linear layers have biases");
  need({"model.rotary_base", "model.rotary_percent", "model.use_rope_scaling"}, {"model.position_embedding_type"},
       WHERE(c.model.position_embedding_type == Positions::rope), "with position_embedding_type learned_absolute");
  need({"model.rope_scaling_factor", "model.rope_scaling_low_freq_factor", "model.rope_scaling_high_freq_factor",
        "model.rope_scaling_original_max_position_embeddings"},
       {"model.use_rope_scaling"}, WHERE(c.model.use_rope_scaling), "with use_rope_scaling false");
  need({"model.use_rope_scaling"}, {"model.rope_scaling_factor"}, WHERE(c.model.rope_scaling_factor != 1),
       "with rope_scaling_factor 1");
  need({"model.recompute_modules"}, {"model.recompute_granularity"},
       WHERE(c.model.recompute_granularity == RecomputeGranularity::selective),
       "without recompute_granularity selective");
  need({"model.recompute_method", "model.recompute_num_layers"}, {"model.recompute_granularity"},
       WHERE(c.model.recompute_granularity == RecomputeGranularity::full), "without recompute_granularity full");

  need({"precision.fp8_recipe", "precision.fp8_wgrad", "precision.fp8_param_gather", "precision.fp8_accumulator_bits",
        "precision.fp8_report", "precision.first_last_layers_bf16"},
       {"precision.fp8"}, WHERE(c.precision.fp8 != Fp8::none), "without precision.fp8");
  need({"precision.num_layers_at_start_in_bf16", "precision.num_layers_at_end_in_bf16"},
       {"precision.first_last_layers_bf16"}, WHERE(c.precision.first_last_layers_bf16),
       "without first_last_layers_bf16");

  need({"parallel.sequence_parallel"}, {"parallel.tensor_model_parallel_size"},
       WHERE(c.parallel.tensor_model_parallel_size > 1),
       "with tensor_model_parallel_size 1: the sequence is divided among the tensor-parallel ranks");
  need({"overlap.tp_comm_overlap", "overlap.tp_comm_overlap_qkv", "overlap.tp_comm_overlap_proj",
        "overlap.tp_comm_overlap_fc1", "overlap.tp_comm_overlap_fc2"},
       {"parallel.sequence_parallel"}, WHERE(c.parallel.sequence_parallel),
       "without sequence_parallel (and so tensor_model_parallel_size above 1): it splits the all-gather and "
       "reduce-scatter of positions");
  need({"overlap.p2p_receive_ahead", "overlap.overlap_p2p_comm"}, {"parallel.pipeline_model_parallel_size"},
       WHERE(c.parallel.pipeline_model_parallel_size > 1),
       "with pipeline_model_parallel_size 1: nothing is sent or received");
  need({"parallel.decoder_first_pipeline_num_layers", "parallel.decoder_last_pipeline_num_layers"},
       {"parallel.pipeline_model_parallel_size"}, WHERE(c.parallel.pipeline_model_parallel_size > 1),
       "with pipeline_model_parallel_size 1: one rank has all layers");
  need({"parallel.account_for_embedding_in_pipeline_split", "parallel.account_for_loss_in_pipeline_split"},
       {"parallel.decoder_first_pipeline_num_layers", "parallel.decoder_last_pipeline_num_layers"},
       WHERE(!c.parallel.decoder_first_pipeline_num_layers && !c.parallel.decoder_last_pipeline_num_layers),
       "with decoder_first_pipeline_num_layers or decoder_last_pipeline_num_layers: these say what the ends hold");
  need({"parallel.microbatch_group_size_per_vp_stage"}, {"parallel.pipeline_schedule"},
       WHERE(c.parallel.pipeline_schedule == "interleaved"), "without pipeline_schedule interleaved");
  need({"overlap.p2p_receive_ahead"}, {"overlap.overlap_p2p_comm"}, WHERE(c.overlap.overlap_p2p_comm),
       "with overlap_p2p_comm false: then as few receives are posted ahead as the schedule needs");

  need({"optimizer.lr_wsd_decay_style"}, {"optimizer.lr_decay_style"},
       WHERE(c.optimizer.lr_decay_style == LrDecay::wsd), "without lr_decay_style WSD");
  need({"optimizer.start_weight_decay", "optimizer.end_weight_decay"}, {"optimizer.weight_decay_incr_style"},
       WHERE(c.optimizer.weight_decay_incr_style != Ramp::constant),
       "with weight_decay_incr_style constant, only with linear or cosine");
  need({"optimizer.weight_decay"}, {"optimizer.weight_decay_incr_style"},
       WHERE(c.optimizer.weight_decay_incr_style == Ramp::constant),
       "with a weight_decay_incr_style, which goes from start_weight_decay to end_weight_decay");
  need({"optimizer.decay_norms_and_biases"}, {"optimizer.weight_decay"},
       WHERE(c.optimizer.weight_decay_incr_style != Ramp::constant || c.optimizer.weight_decay != 0),
       "with weight_decay 0");
  need({"device.tf32"}, {"precision.dtype"}, WHERE(c.precision.dtype == DType::f32),
       "with precision.dtype bf16: it applies to fp32 GEMMs");
  need({"comm.nccl_ub", "device.tf32", "device.cuda_graph_impl"}, {"device.kind"},
       WHERE(c.device.kind != DeviceKind::cpu), "where a run computes on CPUs (device.kind)");
  need({"device.cpu_isa"}, {"device.kind"}, WHERE(c.device.kind != DeviceKind::cuda),
       "where a run computes on GPUs (device.kind)");
  need({"data.split"}, {"data.path", "data.train_path", "data.valid_path", "data.test_path"},
       WHERE(c.data.train_path.empty()), "with data.train_path: only data.path is split");

  need({"checkpoint.async_save", "checkpoint.keep_last", "checkpoint.max_failed_saves", "checkpoint.mirror"},
       {"checkpoint.save_interval"}, WHERE(c.checkpoint.save_interval != 0), "with save_interval 0: nothing is saved");
  need({"checkpoint.save_retain_interval", "checkpoint.keep_best"}, {"checkpoint.keep_last"},
       WHERE(c.checkpoint.keep_last > 0), "with keep_last 0: all checkpoints are kept");
  need({"checkpoint.keep_best"}, {"train.eval_interval"}, WHERE(evaluates(c)),
       "with eval_interval 0: no checkpoint has a validation loss");
  need({"train.eval_iters", "train.full_validation", "train.eval_samples", "data.valid_path", "data.test_path"},
       {"train.eval_interval"}, WHERE(evaluates(c)), "with eval_interval 0: nothing is evaluated");
  need({"train.eval_iters"}, {"train.full_validation"}, WHERE(!evaluates(c) || !c.train.full_validation),
       "with full_validation: all of the validation set is evaluated");
  need({"train.eval_iters", "train.full_validation"}, {"train.eval_samples"},
       WHERE(!evaluates(c) || c.train.eval_samples == 0), "with eval_samples: the first samples are evaluated");
  need({"train.straggler_interval"}, {"train.straggler_factor"}, WHERE(c.train.straggler_factor != 0),
       "with straggler_factor 0: nothing looks for stragglers");
  need({"train.spike_policy"}, {"train.spike_factor"}, WHERE(c.train.spike_factor != 0),
       "with spike_factor 0: nothing looks for spikes, as a factor above 1 does");
  need({"train.max_consecutive_skips"}, {"train.non_finite_policy", "train.spike_policy"},
       WHERE(c.train.non_finite_policy == StepAction::skip || c.train.spike_policy == StepAction::skip),
       "where neither non_finite_policy nor spike_policy is skip: no step is skipped");
#undef WHERE
}

}  // namespace

const std::vector<Field>& fields() {
  static const std::vector<Field> all = [] {
    std::vector<Field> table;
    declare_model(table);
    declare_parallel(table);
    declare_training(table);
    declare_run(table);
    declare_needs(table);
    for (const ToolSection& section : tool_sections())
      if (section.declare) section.declare(table);
    return table;
  }();
  return all;
}

}  // namespace trivet
