// Measures the scratch memory that a pass needs by running a model of one block of each kind on a planning device,
// where operations and communication do nothing.
#include "engine/model/gpt_stage.h"
#include "parallel/comm/planning_comm.h"
#include "parallel/context/attention.h"

namespace trivet {
namespace {

constexpr int64_t kEnough = int64_t{1} << 50;

class NullOps : public Ops {
 public:
  void run(const AnyOp&, Stream&) override {}
};

}  // namespace

int64_t GptStage::scratch_bytes(const GptShape& of_rank, const Recompute& of_run, int64_t blocks) {
  // If only the first blocks are recomputed, one that is and one that is not.
  const bool mixed = !of_run.uniform && of_run.num_layers > 0 && of_run.num_layers < blocks;
  Recompute recompute = of_run;
  if (mixed) recompute.num_layers = 1;
  GptShape shape = of_rank;  // its blocks are in FP8 if any block is: FP8 needs more scratch
  shape.bf16_layers_at_start = shape.bf16_layers_at_end = 0;
  const std::unique_ptr<Device> device = create_planning_device();
  const std::unique_ptr<Stream> compute = device->create_compute_stream();
  const std::unique_ptr<Communicator> group = create_planning_communicator(*device, shape.tensor_rank, shape.t);
  std::optional<TensorCommStream> comm_stream;
  if (shape.overlaps_tensor_comm()) comm_stream.emplace(CommStreamSite{*device, *compute, *group});
  const std::unique_ptr<Communicator> sequence = create_planning_communicator(*device, shape.context_rank, shape.c);
  std::optional<ContextGroup> context;
  if (shape.c > 1) context.emplace(CommStreamSite{*device, *compute, *sequence}, shape.cut(), shape.cp_comm_type, true);

  Arena arena(*device, "dry run");
  ParamList params({{Axis::tp, shape.t}}, {{Axis::tp, shape.tensor_rank}}, shape.sequence_parallel);
  GptStage stage(params, shape, {.num_layers = mixed ? 2 : 1}, 0, recompute);
  stage.allocate(arena, 1, 0, true);
  for (Param& param : params.all()) {
    param.weight = arena.allocate(shape.dtype, param.shape);
    param.grad = arena.allocate(DType::f32, param.shape);
    if (!param.spec.quantised || !shape.keeps_fp8_weights) continue;
    param.fp8 = arena.allocate(DType::e4m3, param.shape);
    param.fp8_scale = arena.allocate(DType::f32, param.fp8_scale_shape());
  }

  NullOps ops;
  WeightGradQueue queue;
  UnitHooks hooks;
  Scratch scratch(arena, kEnough);
  Context ctx{.ops = ops,
              .compute = *compute,
              .tensor = {*group, shape.sequence_parallel},
              .weight_grads = queue,
              .units = hooks,
              .scratch = scratch,
              .tensor_comm_stream = comm_stream ? &*comm_stream : nullptr,
              .context = context ? &*context : nullptr,
              .sequence = context ? &*sequence : nullptr};
  const MicroBatch micro_batch{.first_sample = stage.first_sample(0)};
  const Tensor loss = arena.allocate(DType::f32, {1});
  stage.forward(ctx, 0, micro_batch, loss);
  stage.backward(ctx, 0, -1, micro_batch, Residual(arena.allocate(shape.dtype, shape.hidden_shape())), loss);
  Scratch::Frame(scratch).tensor(DType::f32, {shape.padded_vocab});  // one position's logits from all tensor ranks
  return scratch.high_water();
}

}  // namespace trivet
