#include "tests/support/mirrored_ops.h"

#include <cstring>
#include <gtest/gtest.h>
#include <string>
#include <vector>

namespace trivet::test {
namespace {

class MirroredOps : public Ops {
 public:
  MirroredOps() : device_(create_cuda_device(0)), stream_(device_->create_compute_stream()) {
    ops_ = create_cuda_ops(*device_);
  }

  void matmul(Tensor a, Tensor b, Tensor c, const Matmul& how, Stream&) override {
    Call call(*this);
    Matmul mine = how;
    mine.bias = call(how.bias);
    mine.before_gelu = call(how.before_gelu);
    mine.gelu_backward = call(how.gelu_backward);
    ops_->matmul(call(a), call(b), call(c), mine, *stream_);
  }
  void column_sum(Tensor x, Tensor sum, Stream&) override {
    Call call(*this);
    ops_->column_sum(call(x), call(sum), *stream_);
  }
  void layernorm_forward(Tensor x, Tensor gamma, Tensor beta, float eps, Tensor y, Tensor mean, Tensor rstd,
                         Stream&) override {
    Call call(*this);
    ops_->layernorm_forward(call(x), call(gamma), call(beta), eps, call(y), call(mean), call(rstd), *stream_);
  }
  void layernorm_backward(Tensor dy, Tensor x, Tensor gamma, Tensor mean, Tensor rstd, Tensor residual, Tensor dx,
                          Tensor dgamma, Tensor dbeta, Stream&) override {
    Call call(*this);
    ops_->layernorm_backward(call(dy), call(x), call(gamma), call(mean), call(rstd), call(residual), call(dx),
                             call(dgamma), call(dbeta), *stream_);
  }
  void gelu_forward(Tensor x, Tensor y, Stream&) override {
    Call call(*this);
    ops_->gelu_forward(call(x), call(y), *stream_);
  }
  void gelu_backward(Tensor x, Tensor dy, Tensor dx, Stream&) override {
    Call call(*this);
    ops_->gelu_backward(call(x), call(dy), call(dx), *stream_);
  }
  void attention_forward(Tensor qkv, Tensor out, Tensor lse, const Attention& how, Stream&) override {
    Call call(*this);
    ops_->attention_forward(call(qkv), call(out), call(lse), how, *stream_);
  }
  void attention_backward(Tensor dout, Tensor qkv, Tensor out, Tensor lse, Tensor dqkv, const Attention& how,
                          Stream&) override {
    Call call(*this);
    ops_->attention_backward(call(dout), call(qkv), call(out), call(lse), call(dqkv), how, *stream_);
  }
  void embedding_forward(Tensor tokens, Tensor table, int64_t first_row, Tensor out, Stream&) override {
    Call call(*this);
    ops_->embedding_forward(call(tokens), call(table), first_row, call(out), *stream_);
  }
  void embedding_backward(Tensor tokens, Tensor dout, int64_t first_row, Tensor dtable, Stream&) override {
    Call call(*this);
    ops_->embedding_backward(call(tokens), call(dout), first_row, call(dtable), *stream_);
  }
  void position_forward(Tensor x, Tensor positions, const Dropout& dropout, Tensor out, Stream&) override {
    Call call(*this);
    ops_->position_forward(call(x), call(positions), dropout, call(out), *stream_);
  }
  void position_backward(Tensor dout, const Dropout& dropout, Tensor dx, Tensor dpositions, Stream&) override {
    Call call(*this);
    ops_->position_backward(call(dout), dropout, call(dx), call(dpositions), *stream_);
  }
  void bias_dropout_add(Tensor x, Tensor bias, Tensor residual, const Dropout& dropout, Tensor out, Stream&) override {
    Call call(*this);
    ops_->bias_dropout_add(call(x), call(bias), call(residual), dropout, call(out), *stream_);
  }
  void dropout_backward(Tensor dout, const Dropout& dropout, Tensor dx, Stream&) override {
    Call call(*this);
    ops_->dropout_backward(call(dout), dropout, call(dx), *stream_);
  }
  void cross_entropy_forward(Tensor logits, Tensor targets, int64_t first_column, int64_t vocab_size, Tensor row_max,
                             Tensor row_sum, Tensor target_logit, Stream&) override {
    Call call(*this);
    ops_->cross_entropy_forward(call(logits), call(targets), first_column, vocab_size, call(row_max), call(row_sum),
                                call(target_logit), *stream_);
  }
  void cross_entropy_rescale(Tensor row_max, Tensor global_max, Tensor row_sum, Stream&) override {
    Call call(*this);
    ops_->cross_entropy_rescale(call(row_max), call(global_max), call(row_sum), *stream_);
  }
  void cross_entropy_loss(Tensor row_max, Tensor row_sum, Tensor target_logit, float scale, Tensor loss,
                          Stream&) override {
    Call call(*this);
    ops_->cross_entropy_loss(call(row_max), call(row_sum), call(target_logit), scale, call(loss), *stream_);
  }
  void cross_entropy_backward(Tensor logits, Tensor targets, int64_t first_column, int64_t vocab_size, Tensor row_max,
                              Tensor row_sum, float scale, Stream&) override {
    Call call(*this);
    ops_->cross_entropy_backward(call(logits), call(targets), first_column, vocab_size, call(row_max), call(row_sum),
                                 scale, *stream_);
  }
  void adamw(std::span<const AdamWPiece> pieces, Tensor grad_scale, Tensor proceed, const AdamW& how,
             Stream&) override {
    Call call(*this);
    std::vector<AdamWPiece> mine;
    for (const AdamWPiece& p : pieces)
      mine.push_back({call(p.weight), call(p.grad), call(p.m), call(p.v), call(p.model_weight), p.decays});
    ops_->adamw(mine, call(grad_scale), call(proceed), how, *stream_);
  }
  void sum_of_squares(std::span<const Tensor> xs, Tensor bins, Stream&) override {
    Call call(*this);
    std::vector<Tensor> mine;
    for (const Tensor& x : xs) mine.push_back(call(x));
    ops_->sum_of_squares(mine, call(bins), *stream_);
  }
  void clip_scale(Tensor bins, float multiplier, float max_norm, Tensor norm, Tensor grad_scale, Stream&) override {
    Call call(*this);
    ops_->clip_scale(call(bins), multiplier, max_norm, call(norm), call(grad_scale), *stream_);
  }
  void judge_step(Tensor numbers, const StepLimits& limits, Tensor proceed, Stream&) override {
    Call call(*this);
    ops_->judge_step(call(numbers), limits, call(proceed), *stream_);
  }
  void find_non_finite(Tensor x, Tensor proceed, Tensor found, Stream&) override {
    Call call(*this);
    ops_->find_non_finite(call(x), call(proceed), call(found), *stream_);
  }
  void fill(Tensor x, float value, Stream&) override {
    Call call(*this);
    ops_->fill(call(x), value, *stream_);
  }
  void convert(Tensor from, Tensor to, Stream&) override {
    Call call(*this);
    ops_->convert(call(from), call(to), *stream_);
  }
  void add(Tensor a, Tensor b, Tensor out, Stream&) override {
    Call call(*this);
    ops_->add(call(a), call(b), call(out), *stream_);
  }

 private:
  // The tensors of one call. They come back when it ends, also when the op refused them.
  class Call {
   public:
    explicit Call(MirroredOps& ops) : device_(*ops.device_), stream_(*ops.stream_) {}
    ~Call() {
      try {
        for (const Mirror& mirror : mirrors_) bring_back(mirror);
      } catch (const std::exception& error) {  // a kernel failed: the test has, and the device is of no more use
        ADD_FAILURE() << error.what();
      }
      for (const Mirror& mirror : mirrors_) device_.deallocate(mirror.block, mirror.block_bytes);
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    // The GPU's view of a host tensor.
    Tensor operator()(const Tensor& host) {
      if (!host) return host;
      for (const Mirror& mirror : mirrors_)
        if (mirror.host.data == host.data) {
          if (mirror.host.bytes() != host.bytes()) ADD_FAILURE() << "tensors of one call overlap in part";
          return {mirror.data, host.dtype, host.shape};
        }
      Mirror mirror;
      mirror.host = host;
      const auto offset = static_cast<int64_t>(reinterpret_cast<uintptr_t>(host.data) % 256);
      mirror.block_bytes = 2 * kGuard + offset + host.bytes();
      mirror.block = device_.allocate(mirror.block_bytes);
      mirror.data = static_cast<std::byte*>(mirror.block) + kGuard + offset;
      mirror.image.assign(static_cast<size_t>(mirror.block_bytes), kGuardByte);
      std::memcpy(mirror.image.data() + kGuard + offset, host.data, static_cast<size_t>(host.bytes()));
      device_.copy_to_device(mirror.image.data(), {mirror.block, DType::u8, {mirror.block_bytes}}, stream_);
      stream_.synchronize();
      mirrors_.push_back(mirror);
      return {mirror.data, host.dtype, host.shape};
    }

   private:
    static constexpr int64_t kGuard = 512;
    static constexpr unsigned char kGuardByte = 0xa5;
    struct Mirror {
      Tensor host;
      void* block = nullptr;
      int64_t block_bytes = 0;
      std::byte* data = nullptr;
      std::vector<unsigned char> image;  // of the block, on the host
    };

    void bring_back(const Mirror& mirror) {
      std::vector<unsigned char> image(mirror.image.size());
      device_.copy_to_host({mirror.block, DType::u8, {mirror.block_bytes}}, image.data(), stream_);
      stream_.synchronize();
      const size_t begin = static_cast<size_t>(mirror.data - static_cast<std::byte*>(mirror.block));
      const size_t end = begin + static_cast<size_t>(mirror.host.bytes());
      for (size_t i = 0; i < image.size(); ++i)
        if ((i < begin || i >= end) && image[i] != kGuardByte) {
          ADD_FAILURE() << "byte " << static_cast<int64_t>(i) - static_cast<int64_t>(begin) << " of "
                        << to_string(mirror.host.shape) << " " << name_of(mirror.host.dtype) << " was written";
          break;
        }
      std::memcpy(mirror.host.data, image.data() + begin, end - begin);
    }

    Device& device_;
    Stream& stream_;
    std::vector<Mirror> mirrors_;
  };

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Ops> ops_;  // ends before its device
};

}  // namespace

std::unique_ptr<Ops> create_test_ops(int threads) {
  if (threads != kOnCuda) return create_cpu_ops(threads);
  return cuda_device_count() > 0 ? std::make_unique<MirroredOps>() : nullptr;
}

}  // namespace trivet::test
