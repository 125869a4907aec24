#include "tests/support/mirrored_ops.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "tests/support/mapped_ops.h"

namespace trivet::test {
namespace {

class MirroredOps : public MappedOps {
 public:
  explicit MirroredOps(const CudaOptions& options)
      : device_(create_cuda_device(0)), stream_(device_->create_compute_stream()) {
    ops_ = create_cuda_ops(*device_, options);
  }

 private:
  // The tensors of one call. They are copied back when it ends, even if the op rejected them.
  class MirroredCall : public Call {
   public:
    explicit MirroredCall(MirroredOps& owner) : device_(*owner.device_), stream_(*owner.stream_), ops_(*owner.ops_) {}
    ~MirroredCall() override {
      try {
        for (const Mirror& mirror : mirrors_) bring_back(mirror);
      } catch (const std::exception& error) {  // a kernel failed, so the test has failed and the device is unusable
        ADD_FAILURE() << error.what();
      }
      for (const Mirror& mirror : mirrors_) device_.deallocate(mirror.block, mirror.block_bytes);
    }

    // The GPU's view of a host tensor.
    Tensor map(const Tensor& host, Role, int) override {
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
    Ops& ops() override { return ops_; }
    Stream& stream() override { return stream_; }

   private:
    static constexpr int64_t kGuard = 512;
    static constexpr unsigned char kGuardByte = 0xa5;
    struct Mirror {
      Tensor host;
      void* block = nullptr;
      int64_t block_bytes = 0;
      std::byte* data = nullptr;
      std::vector<unsigned char> image;  // the block's bytes, on the host
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
    Ops& ops_;
    std::vector<Mirror> mirrors_;
  };

  std::unique_ptr<Call> begin_call(const char*, Stream&) override { return std::make_unique<MirroredCall>(*this); }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Ops> ops_;  // destroyed before its device
};

}  // namespace

CpuIsa tested_cpu_isa() {
  const char* const name = std::getenv("TRIVET_TEST_CPU_ISA");
  if (!name) return best_cpu_isa();
  const auto found = std::ranges::find(kCpuIsaNames, name);
  check(found != kCpuIsaNames.end(), std::string("TRIVET_TEST_CPU_ISA: found ") + name + ", expected a CpuIsa");
  return static_cast<CpuIsa>(found - kCpuIsaNames.begin());
}

std::unique_ptr<Ops> create_test_ops(int threads, const CudaOptions& options) {
  if (threads != kOnCuda)
    return cpu_isa_problem(tested_cpu_isa()).empty() ? create_cpu_ops(threads, tested_cpu_isa()) : nullptr;
  return cuda_device_count() > 0 ? std::make_unique<MirroredOps>(options) : nullptr;
}

bool gpu_is_emulated() { return create_cuda_device(0)->name() == "emulated GPU"; }

}  // namespace trivet::test
